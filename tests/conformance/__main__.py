"""python -m tests.conformance: run p4c's samples, print the pass rate and the failures with their reasons."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.conformance.running import Verdict, judge
from tests.conformance.samples import Sample, missing, more, sources, yardstick
from tests.conformance.ways import WAYS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these samples")
    parser.add_argument("--suite", choices=("bmv2", "more", "all"), default="bmv2", help="which samples")
    parser.add_argument(
        "--on",
        choices=tuple(WAYS),
        default="direct",
        help="this switch by its own methods or over P4Runtime, or simple_switch_grpc",
    )
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    parser.add_argument("--again", type=Path, help="run only those that failed in this file of --json")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each verdict as it comes")
    options = parser.parse_args()
    reason = missing()
    root = sources()
    if reason is not None or root is None:
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    suites = {"bmv2": yardstick(root), "more": more(root), "all": (*yardstick(root), *more(root))}
    samples: list[Sample] = list(suites[options.suite])
    if options.names:
        samples = [s for s in samples if s.name in options.names]
    left_out = [s for s in samples if s.why_not is not None]
    samples = [s for s in samples if s.why_not is None]
    before: dict[str, Verdict] = {}
    if options.again:
        before = {v["sample"]: Verdict(**v) for v in json.loads(options.again.read_text())}
    verdicts = []
    for sample in samples:
        known = before.get(sample.name)
        if known is not None and known.passed:
            verdicts.append(known)
            continue
        start = time.monotonic()
        verdicts.append(judge(sample, options.on))
        if options.verbose:
            v = verdicts[-1]
            print(f"{time.monotonic() - start:5.1f} s  {v.stage:8} {v.sample}  {v.reason[:300]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([vars(v) for v in verdicts], indent=1) + "\n")
    report(verdicts)
    for why in sorted({str(s.why_not) for s in left_out}):
        print(f"{sum(s.why_not == why for s in left_out)} were left out: {why}")
    return 0 if all(v.passed for v in verdicts) else 1


def report(verdicts: list[Verdict]) -> None:
    """Print the pass rate, and what failed by stage."""
    failed = [v for v in verdicts if not v.passed]
    for stage in sorted({v.stage for v in failed}):
        print(f"\n{stage}:")
        for v in failed:
            if v.stage == stage:
                print(f"  {v.sample}: {v.reason}")
    good = len(verdicts) - len(failed)
    print(f"\n{good} of {len(verdicts)} pass, {100 * good / max(1, len(verdicts)):.1f} %")


if __name__ == "__main__":
    sys.exit(main())
