"""python -m tests.torch_suite: PyTorch's own tests with p4reduce and with Gloo, and ours beside Gloo."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from p4reduce.cli.failing import ending_on_signals
from tests.torch_suite.known import KNOWN
from tests.torch_suite.rack import missing, rack, run
from tests.torch_suite.results import Outcome, Result, fails_beside, wrongs

RUNS: Final = (("upstream", "gloo"), ("upstream", "p4reduce"), ("beside_gloo", "p4reduce"))


def main() -> int:
    """Run what was asked for, print a summary; 1 where p4reduce fails what it should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite", description=__doc__)
    parser.add_argument("--suite", choices=("upstream", "beside_gloo"), help="only this one")
    parser.add_argument("--only", type=_regex, default="", metavar="REGEX", help="only checks so named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes there")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write a table for the documentation there"
    )
    given = parser.parse_args()
    if reason := missing():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    outcomes: dict[str, list[Outcome]] = {}
    with ending_on_signals(), rack() as running:
        for suite, backend in RUNS:
            if given.suite in (None, suite):
                outcomes[f"{suite} {backend}"] = found = run(running, suite, backend, only=given.only)
                _summarise(suite, backend, found)
    if given.json:
        told = {name: [vars(one) for one in found] for name, found in outcomes.items()}
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    if given.table:
        from tests.torch_suite.table import table

        given.table.write_text(table(outcomes))
    gloo, ours = outcomes.get("upstream gloo", []), outcomes.get("upstream p4reduce", [])
    for one in fails_beside(gloo, ours):
        print(f"Gloo passes, p4reduce does not: {one.name}: {KNOWN.get(one.name, one.reason)}")
    wrong = wrongs(gloo, ours, KNOWN if ours else {}, whole=not given.only)
    wrong += [
        f"{one.name} {one.result.value}: {one.reason}"
        for one in outcomes.get("beside_gloo p4reduce", [])
        if one.result in (Result.FAILED, Result.HUNG)
    ]
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    return 1 if wrong else 0


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def _summarise(suite: str, backend: str, outcomes: Sequence[Outcome]) -> None:
    counted = Counter(one.result for one in outcomes)
    said = ", ".join(f"{counted[result]} {result.value}" for result in Result if counted[result])
    seconds = sum(one.seconds for one in outcomes)
    print(f"{suite}, {backend}: {said or 'no check of that name'} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
