"""`p4reduce simulate-faults`: whole jobs on a simulated clock, with everything going wrong that may."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4reduce.cli import output
from p4reduce.cli.executors import executor_of, require_workers
from p4reduce.cli.exploring import Tell, explore
from p4reduce.cli.failing import EXIT_INTERRUPTED
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from p4reduce.simulation.faults.playing import Outcome
    from p4reduce.simulation.faults.running import Tally
    from p4reduce.simulation.faults.schedule import Schedule
    from p4reduce.simulation.sequence.observing import SequenceObserver

_SHRUNK = 3  # failures that are made short; of more, only the seed is printed
_LINES = 200  # of a trace


def simulate_faults(
    seeds: Annotated[
        str | None, typer.Option(metavar="A..B", help="Play these seeds, both ends included: 1..1000.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Play this one alone, and say more about it.")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Play the schedule in this file, as a failure leaves one."),
    ] = None,
    exhaustive: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPE", help="Play every order of a small job's frames and faults; list: of which."
        ),
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            metavar="CHOICES", help="With --exhaustive: play this order alone, as a failure prints it."
        ),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            "--jobs",
            metavar="N|dask://HOST:PORT",
            help="With --seeds: processes that play, or a Dask scheduler's workers.",
        ),
    ] = "1",
    seconds: Annotated[float | None, typer.Option(min=0, help="Begin no more after so long.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary there; - is stdout.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="What each frame is given to as well, packet by packet: model (nothing), embedded, bmv2 "
            "(after each run; needs root and simple_switch_grpc)."
        ),
    ] = "model",
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed or --replay: what happened when.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --seed or --replay: write a page that plays it, packet by packet: FILE.html.",
        ),
    ] = None,
    page_from: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="With --page: where a long run's page begins."),
    ] = None,
    shrink_s: Annotated[
        float, typer.Option(min=0, help="How long a failure is made shorter, in seconds.")
    ] = 60.0,
    save: Annotated[
        Path, typer.Option(metavar="DIR", help="Where schedules that fail are written to.")
    ] = Path(),
) -> None:
    """Play jobs, switches, links and the controller on a simulated clock; a seed decides all that goes wrong.

    After every event it is checked that no sum is wrong and no invariant is broken, and in the end that every
    job is over. A failure is made as short as can be, and written to a file that --replay plays again.
    --exhaustive draws nothing: it goes through all states that a small job can be in.
    Ctrl-C ends --seeds with what was found so far, and exit code 130.
    """
    from p4reduce.simulation.faults.targets import (  # other commands do not wait for all of this
        TARGETS,
        TargetError,
    )
    from topologies.switches import require_bmv2

    if sum(given is not None for given in (seeds, seed, replay, exhaustive)) != 1:
        raise TopologyError("give one of --seeds A..B, --seed N, --replay FILE and --exhaustive SCOPE")
    if choices is not None and exhaustive is None:
        raise TopologyError("--choices are a scope's: give --exhaustive SCOPE as well")
    if target not in TARGETS:
        raise TopologyError(f"--target is {target!r}, known are {', '.join(TARGETS)}")
    if target == "bmv2":
        require_bmv2()
    require_workers(workers)
    if seeds is None and workers.startswith("dask://"):
        raise TopologyError(f"--workers {workers} are for --seeds A..B: leave them out")
    _check_page(page, page_from, shows_one=seed is not None or replay is not None)
    if page is not None and page == json_file:
        raise TopologyError("--page and --json are the same file: give each one of its own")
    output.require_writable(json_file)
    output.require_writable(page)
    tell = output.note if str(json_file) == "-" else output.say
    if exhaustive is not None:
        if target != "model":
            raise TopologyError(f"--exhaustive asks the model alone: leave out --target {target}")
        explore(exhaustive, choices, json_file, tell)
        return
    try:
        if seeds is not None:
            _many(_range(seeds), workers, seconds, json_file, tell, target, shrink_s, save)
        else:
            schedule = _read(replay) if seed is None else _drawn(seed)
            wanted = None if page is None else _Page(page, page_from, None if replay is None else replay.stem)
            _one(schedule, json_file, tell, target, trace, wanted, shrink_s, None if seed is None else save)
    except TargetError as error:
        raise TopologyError(str(error)) from error


@dataclass(frozen=True)
class _Page:
    """A page to write of a run: from `from_s` on (None: the part worth seeing), named after `schedule`."""

    path: Path
    from_s: float | None
    schedule: str | None

    def observer(self, schedule: Schedule) -> SequenceObserver:
        """Return an observer that watches the run for the page."""
        from p4reduce.simulation.sequence.observing import SequenceObserver

        return SequenceObserver(schedule, from_ns=None if self.from_s is None else round(self.from_s * 1e9))

    def write(self, outcome: Outcome, observer: SequenceObserver, tell: Tell) -> None:
        """Write the page. Raise TopologyError if there is nothing to see, or the file cannot be written."""
        from p4reduce.simulation.sequence.page import named, page

        observer.ended(outcome.error)
        part = observer.parts.chosen(failed=bool(outcome.error))
        if not part.steps:
            last_s = observer.last_ns / 1e9
            raise TopologyError(f"--page-from {self.from_s:g}: the last that happens is at {last_s:.6f} s")
        output.write_text(self.path, page(named(outcome.schedule, self.schedule), outcome, observer))
        total = part.before + len(part.steps) + part.after
        rest = "" if total == len(part.steps) else f" of {total:,}; --page-from SECONDS begins elsewhere"
        tell(f"{self.path}: {len(part.steps):,} steps{rest}")


def _check_page(page: Path | None, page_from: float | None, *, shows_one: bool) -> None:
    if page_from is not None and not math.isfinite(page_from):
        raise TopologyError(f"--page-from {page_from}: give the seconds, as --trace prints them")
    if page is None:
        if page_from is not None:
            raise TopologyError("--page-from is where a page begins: give --page FILE.html as well")
    elif not shows_one:
        raise TopologyError("--page shows one run: give --seed N or --replay FILE with it")
    elif str(page) == "-":
        raise TopologyError("--page is a file that a browser opens: give its name, FILE.html")


def _range(text: str) -> range:
    found = re.fullmatch(r"(\d{1,99})(?:\.\.(\d{1,99}))?", text)  # int() reads no more than 4300
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise TopologyError(f"--seeds is {text!r}: give a range such as 1..1000")
    _require_seed(last, "--seeds")
    return range(first, last + 1)


def _drawn(seed: int) -> Schedule:
    from p4reduce.simulation.faults.drawing import draw

    _require_seed(seed, "--seed")
    return draw(seed)


def _require_seed(seed: int, option: str) -> None:
    from p4reduce.simulation.faults.schedule import MAX_SEED

    if not 0 <= seed <= MAX_SEED:
        raise TopologyError(f"{option}: {seed} is no seed: seeds are whole numbers from 0 to {MAX_SEED}")


def _many(
    seeds: range,
    workers: str,
    seconds: float | None,
    json_file: Path | None,
    tell: Tell,
    target: str,
    shrink_s: float,
    save: Path,
) -> None:
    from p4reduce.simulation.faults import running, targets
    from p4reduce.simulation.faults.drawing import draw

    printed = time.monotonic()
    total = seeds.stop - seeds.start  # len() has its limits

    said = 0

    def say(tally: Tally) -> None:
        nonlocal printed, said
        for failure in tally.failures[said:]:
            output.note(f"seed {failure.seed}: {failure.error}")
        said = len(tally.failures)
        if time.monotonic() - printed >= 10 or tally.seeds == total:
            printed = time.monotonic()
            output.note(_progress(tally, total))

    with targets.players(target) as play:
        with executor_of(workers) as executor:
            many = play.many if executor is None else partial(targets.play_seeds, target)
            tally = running.run_many(seeds, executor=executor, seconds=seconds, say=say, play=many)
        if json_file is not None:
            _write(json_file, target, seeds.start, tally)
        _summary(tally, total, target, tell)
        for failure in tally.failures:
            tell(f"seed {failure.seed}: {failure.error}", style="red")
        if tally.interrupted:  # whoever wants to end it does not wait for failures to be made short
            output.complain(f"interrupted after {tally.seeds:,} of {total:,} seeds")
            raise typer.Exit(EXIT_INTERRUPTED)
        for failure in tally.failures[:_SHRUNK]:
            _shrink(play.one(draw(failure.seed)), play, shrink_s, save, tell)
    if tally.failures:
        raise typer.Exit(1)


def _one(
    schedule: Schedule,
    json_file: Path | None,
    tell: Tell,
    target: str,
    trace: bool,
    page: _Page | None,
    shrink_s: float,
    save: Path | None,
) -> None:
    """Play one schedule. `save`: the folder for a failure that is made short.

    None: do not make it short, since the schedule was made short already.
    """
    from p4reduce.simulation.faults import running, targets

    with targets.players(target) as play:
        started = time.monotonic()
        observer = None if page is None else page.observer(schedule)
        outcome = play.one(schedule, tracing=trace, observer=observer)
        if json_file is not None:
            tally = running.Tally(seconds=time.monotonic() - started)
            tally.add(outcome)
            _write(json_file, target, schedule.seed, tally)
        for line in outcome.lines[-_LINES:]:
            tell(line)
        tell(_in_words(outcome))
        if page is not None and observer is not None:
            page.write(outcome, observer, tell)
        if outcome.error:
            tell(f"seed {schedule.seed}: {outcome.error}", style="red")
            if save is not None:
                _shrink(outcome, play, shrink_s, save, tell)
            raise typer.Exit(1)


def _write(path: Path, target: str, first_seed: int, tally: Tally) -> None:
    output.write_json(path, {"target": target, "first_seed": first_seed, **tally.as_json()})


def _read(path: Path | None) -> Schedule:
    from p4reduce.simulation.faults.schedule import Schedule, ScheduleError

    assert path is not None  # one of three is given
    try:
        return Schedule.from_json(path.read_text())
    except (OSError, ScheduleError, UnicodeDecodeError) as error:
        raise TopologyError(f"cannot read {path}: {error}") from error


def _shrink(outcome: Outcome, play: Targeted, seconds: float, save: Path, tell: Tell) -> None:
    from p4reduce.simulation.faults.shrinking import Shrinker

    shrunk = Shrinker(outcome, play.one, seconds=seconds).shrink()
    schedule = shrunk.schedule
    path = save / f"p4reduce-seed-{schedule.seed}.json"
    output.write_text(path, schedule.to_json())
    tell(
        f"\nseed {schedule.seed}, made short in {shrunk.runs} runs: {shrunk.outcome.error}\n"
        f"{schedule.in_words()}\n"
        f"  play it again: p4reduce simulate-faults --replay {path} --trace"
    )


def _progress(tally: Tally, total: int) -> str:
    rate = tally.seeds / tally.seconds if tally.seconds else 0.0
    failed = f", {len(tally.failures)} failed" if tally.failures else ""
    return f"{tally.seeds:,} of {total:,} seeds, {rate:.1f} a second{failed}"


def _summary(tally: Tally, total: int, target: str, tell: Tell) -> None:
    beside = "" if target == "model" else f", each frame given to {target} too"
    rate = tally.seeds / tally.seconds if tally.seconds else 0.0
    tell(
        f"{tally.seeds:,} of {total:,} seeds in {tally.seconds:.1f} s ({rate:.1f} a second){beside}: "
        f"{len(tally.failures)} failed"
    )
    tell(
        f"{tally.events:,} events, {tally.packets:,} packets, {tally.collectives:,} collectives, "
        f"{tally.simulated_s:,.0f} s of simulated time"
    )
    tell("faults: " + (", ".join(f"{n:,} {kind}" for kind, n in sorted(tally.faults.items())) or "none"))
    tell("workers: " + ", ".join(f"{n:,} {state}" for state, n in sorted(tally.workers.items())))


def _in_words(outcome: Outcome) -> str:
    faults = len(outcome.schedule.mishaps) + len(outcome.strikes)
    return (
        f"{outcome.events:,} events, {outcome.packets:,} packets, {faults} faults, "
        f"{outcome.simulated_s:.3f} s of simulated time, trace {outcome.trace:08x}"
    )


if TYPE_CHECKING:
    from p4reduce.simulation.faults.targets import Targeted
