"""`make soak`: bring a fabric up, and try to get a wrong sum, a hang or a leak out of it."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Final

EXIT_INTERRUPTED: Final = 130  # as shells report SIGINT


def main() -> int:
    """Run the soak. Returns 0 if all sums were right, every job ended, and nothing grew."""
    try:
        return _main()
    except KeyboardInterrupt:  # also while modules load, which takes a while
        print("p4reduce: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _main() -> int:
    from p4reduce.workloads.errors import WorkloadError
    from p4reduce.workloads.soak.plan import KINDS
    from p4reduce.workloads.soak.running import SoakOptions, soak
    from topologies.errors import TopologyError

    parser = argparse.ArgumentParser(
        prog="python -m p4reduce.workloads.soak", description=(__doc__ or "").strip()
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, help="what is drawn from (default: a new one, which is printed)")
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds, separated by commas (default: all)")
    parser.add_argument("--crews", type=int, default=4, help="jobs at once (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    options = SoakOptions(
        name=f"soak-{os.getpid()}",
        seconds=arguments.minutes * 60,
        seed=seed,
        kinds=[kind for kind in arguments.faults.split(",") if kind],
        crews=arguments.crews,
        calm_s=min(300.0, arguments.minutes * 60 / 4),
    )
    try:
        outcome = soak(options, progress=lambda text: print(text, flush=True))
    except (TopologyError, WorkloadError) as error:
        print(f"p4reduce: {error}", file=sys.stderr)
        return 1
    report = outcome.as_json()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    for what in ("figures", "faults"):
        print(f"{what}: " + ", ".join(f"{name} {value}" for name, value in report[what].items()))
    for complaint in outcome.complaints:
        print(f"WRONG (seed {seed}): {complaint}", file=sys.stderr)
    if outcome.interrupted:
        print(f"p4reduce: interrupted after {outcome.seconds:.0f} s", file=sys.stderr)
    elif not outcome.complaints:
        print(f"{outcome.seconds:.0f} s, no wrong sum, no hang, nothing grew")
    return 1 if outcome.complaints else EXIT_INTERRUPTED if outcome.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
