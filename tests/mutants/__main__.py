"""python -m tests.mutants: make one change after the other, and say which no test, scope or seed finds.

The exit code is 1 where one survives that `accepted.yaml` does not name with a reason, or where that file
names one that is found, or that there is no more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.mutants.finding import ROOT, Finder, StepError, Verdict
from tests.mutants.targets import TARGETS

ACCEPTED = Path(__file__).parent / "accepted.yaml"
KINDS = ("tests", "scopes", "seeds")


def accepted() -> dict[str, dict[str, str]]:
    """Return the reasons why mutants may survive, by target and mutant."""
    return yaml.safe_load(ACCEPTED.read_text()) or {}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all")
    parser.add_argument("--kinds", default=",".join(KINDS), help="look by these alone")
    parser.add_argument("--steps", type=int, help="look by the first so many steps alone: for a first look")
    parser.add_argument("--match", default="", help="mutants whose names have this pattern alone")
    parser.add_argument("--sample", type=int, help="so many of each target's alone, evenly spread")
    parser.add_argument("--after", type=Path, help="those alone that survive in what --json has written")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write what became of each mutant there")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"there is no target {min(unknown)}: known are {', '.join(TARGETS)}")
    names = [name for name in options.targets or TARGETS if ":" in name or (ROOT / name).exists()]
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    scratch = tempfile.mkdtemp(prefix="p4reduce-mutants-")
    os.environ |= {
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{scratch}/hypothesis",
        "PYTEST_DEBUG_TEMPROOT": scratch,
        "OPENBLAS_NUM_THREADS": "1",
        "SOFT_SWITCH_COMPILE": "quick",  # most programs run once
    }
    try:
        return run(names, options)
    except StepError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(names: Sequence[str], options: argparse.Namespace) -> int:
    reasons, started, wrong = accepted(), time.monotonic(), 0
    before = [] if options.after is None else json.loads(options.after.read_text())
    survived = {(name, mutant) for name, _, _, mutant, found_by, *_ in before if not found_by}
    verdicts: dict[str, list[Verdict]] = {}
    whole = (
        not options.match
        and options.sample is None
        and options.steps is None
        and options.after is None
        and options.kinds == ",".join(KINDS)
    )
    finder = Finder(options.processes, lambda verdict: say(verdict))
    for name in names:
        target = TARGETS[name]
        mutants = [mutant for mutant in target.mutants() if re.search(options.match, mutant.name)]
        if options.after is not None:
            mutants = [mutant for mutant in mutants if (name, mutant.name) in survived]
        if options.sample is not None:
            mutants = mutants[:: max(1, len(mutants) // options.sample)]
        if options.list:
            for mutant in mutants:
                print(f"{mutant.path}:{mutant.line}: {mutant.name}")
            continue
        steps = [step for step in target.steps if step.kind in options.kinds.split(",")]
        steps = steps[: options.steps]
        print(f"== {name}: {len(mutants)} mutants", flush=True)
        finder.measure(steps)
        verdicts[name] = finder.find(mutants, steps)
        if options.json is not None:  # after each: whoever ends it has the rest
            write(options.json, verdicts)
    if options.list:
        return 0
    print(f"\n{'':32}{'mutants':>9}{'tests':>9}{'scopes':>9}{'seeds':>9}{'survive':>9}{'accepted':>9}")
    for name, found in verdicts.items():
        counts = Counter(verdict.found_by for verdict in found)
        known = reasons.get(name, {})
        survivors = {verdict.mutant.name for verdict in found if not verdict.found_by}
        columns = [len(found), *(counts[kind] for kind in KINDS), len(survivors), len(survivors & set(known))]
        print(f"{name:32}" + "".join(f"{column:>9}" for column in columns))
        every = {verdict.mutant.name for verdict in found}
        stale = set(known) - survivors if whole else set()
        wrong += len(survivors - set(known)) + len(stale)
        for old in sorted(stale):
            print(f"   {ACCEPTED.name} names {old!r}, which {'is found' if old in every else 'is not there'}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, passed_s = used.ru_utime + used.ru_stime, time.monotonic() - started
    print(f"{cpu_s:.0f} s of processor time, {passed_s:.0f} s on the clock")
    return 1 if wrong else 0


def write(file: Path, verdicts: Mapping[str, Sequence[Verdict]]) -> None:
    """Keep what became of each mutant."""
    rows = [
        [name, v.mutant.path, v.mutant.line, v.mutant.name, v.found_by, v.evidence, round(v.cpu_s, 2)]
        for name, found in verdicts.items()
        for v in found
    ]
    file.write_text(json.dumps(rows, indent=1))


def say(verdict: Verdict) -> None:
    """Print a verdict at once if nothing has found its mutant."""
    if not verdict.found_by:
        print(f"   {verdict.mutant.path}:{verdict.mutant.line}: {verdict.mutant.name}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
