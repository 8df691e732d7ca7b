"""A campaign: `python -m tests.soft_switch.fuzz TARGET... --frames N`.

TARGET is a BMv2 JSON, or `leaf` or `spine` for the aggregation program as the controller sets it up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soft_switch.fuzz.build import BUILDS, build, run
from tests.soft_switch.fuzz.targets import ROLES, aggregation, any_program


def main() -> int:
    """Fuzz the targets; return 1 if some failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--frames", type=int, default=100_000, help="of each target (default 100000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--driver", choices=BUILDS, default="g++")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where harness, corpus and crashes are kept")
    options = parser.parse_args()
    failed = 0
    for name in options.targets:
        target = aggregation(name, options.seed) if name in ROLES else any_program(Path(name), options.seed)
        with tempfile.TemporaryDirectory(prefix="fuzz") as scratch:
            folder = Path(scratch)
            if options.keep is not None:
                folder = (options.keep / target.name).absolute()
                folder.mkdir(parents=True, exist_ok=True)
            harness = build(target, options.driver, folder)
            start = time.monotonic()
            outcome = run(harness, frames=options.frames, seed=options.seed, timeout_s=86400)
            took = time.monotonic() - start
        verdict = "ok" if outcome.exit_code == 0 else f"FAILED ({outcome.exit_code})"
        print(f"{target.name}: {verdict} in {took:.0f} s: {outcome.report}", flush=True)
        if outcome.exit_code != 0:
            failed = 1
            print(outcome.log[-8000:], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
