"""Packets a second that a switch moves and adds up, beside the least cost of moving them, and BMv2.

    sudo .venv/bin/python -m bench.switch --json results.json

All in one run, in turns, round by round: (a) `native/forwarder.c`, which only moves frames between two
veths: the ceiling; (b) soft_switch with the router l3.p4 of its tests between two ports; (c) soft_switch with
p4src's program, adding up the messages of a job on 4 or 8 ports, in packets of 1, 4 and 16 chunks (path MTU
256, 1024, 4096); (d) the same on BMv2, which is measured on both processors too: the better figure counts.

The set-up is the same for all: what forwards has one processor, the hosts (one thread, `native/traffic.c`)
another, and neither falls asleep. Every port gets and gives a packet in every round: in (c) a slot takes one
from each rank and gives its sum to each. The hosts never have more rounds under way than buffers hold, so
nothing is lost, and they compare every packet: PSN, length, first 128 bytes (with lanes of the sum), and in
one of 251 all bytes and the ICRC. Counted are packets that came in (as many went out) by wall clock. Beside
it stands the CPU time per packet of the switch.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import command
from bench.switch_frames import Job, crossing, host_entries, router_entries
from bench.switch_rig import (
    Outcome,
    Processors,
    Subject,
    awake,
    compile_native,
    find_switch,
    interfaces,
    p4_switch,
    subject,
)
from controller.switches.pipeline import Program
from topologies.switches import BMV2

ROUTER: Final = Path(__file__).parents[1] / "tests" / "soft_switch" / "programs"
CHUNKS: Final = (1, 4, 16)
PORTS: Final = (4, 8)
WINDOW: Final = 128  # packets under way on a port
_SMALLEST_SHARE: Final = 0.7  # percent
BMV2_WINDOW: Final = 16  # its capture buffers hold 32


@dataclass
class Case:
    """One row: what is measured in each round, and what came out so far."""

    what: str
    switch: str
    ports: int
    chunks: int
    once: Callable[[], Outcome]
    subject: Subject
    processors: int = 1
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def pps(self) -> float:
        """The median of packets a second."""
        return statistics.median(outcome.pps for outcome in self.outcomes)

    @property
    def cpu_ns(self) -> float:
        """The median of the switch's nanoseconds for a packet."""
        return statistics.median(outcome.cpu_ns for outcome in self.outcomes)

    def report(self) -> dict[str, Any]:
        """Return the row for JSON."""
        samples = [round(outcome.pps) for outcome in self.outcomes]
        hosts = statistics.median(outcome.hosts_cpu_s / outcome.seconds for outcome in self.outcomes)
        return {
            "what": self.what,
            "switch": self.switch,
            "ports": self.ports,
            "chunks": self.chunks,
            "processors": self.processors,
            "pps": round(self.pps),
            "min_pps": min(samples),
            "max_pps": max(samples),
            "cpu_ns_per_packet": round(self.cpu_ns, 1),
            "hosts_processor": round(hosts, 3),
            "checked": sum(outcome.checked for outcome in self.outcomes),
            "samples_pps": samples,
            "samples_cpu_ns": [round(outcome.cpu_ns, 1) for outcome in self.outcomes],
        }


class Bench:
    """The cases that are measured, side by side."""

    def __init__(self, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.arguments = arguments
        self.stack = stack
        self.processors = Processors.first_two()
        stack.enter_context(awake(self.processors))
        self.native = compile_native(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench"))))
        self.cases: list[Case] = []

    def prepare(self, bmv2: str | None) -> None:
        """Start what the parts need."""
        parts = self.arguments.parts
        if "ceiling" in parts:
            words = [str(self.native["forwarder"]), "s1", "s2"]
            made = self.stack.enter_context(subject("f", 2, words, self.processors))
            self._crossing("forwarder", made, "C", routed=False)
        self._switches("soft_switch", None)
        if bmv2 is not None:
            self._switches("BMv2", bmv2)

    def _switches(self, kind: str, bmv2: str | None) -> None:
        parts, tag = self.arguments.parts, "b" if bmv2 else "e"
        if "l3" in parts:
            program = Program.read(ROUTER / "l3.json", ROUTER / "l3.p4info.txtpb")
            manager = p4_switch(f"{tag}l", 2, program, router_entries(), self.processors, bmv2=bmv2)
            self._crossing("l3", self.stack.enter_context(manager), kind, routed=True)
        if "aggregate" in parts:
            jobs = [Job(ports, number) for number, ports in enumerate(self.arguments.ports)]
            most = max(self.arguments.ports)
            entries = [*host_entries(most), *(entry for job in jobs for entry in job.entries())]
            manager = p4_switch(f"{tag}a", most, Program.read(), entries, self.processors, bmv2=bmv2)
            made = self.stack.enter_context(manager)
            for job in jobs:
                for chunks in self.arguments.chunks:
                    plan = job.plan(interfaces(job.ports), chunks, self._window(kind))
                    self._add("aggregate", kind, made, job.ports, chunks, plan, stream=job.number)

    def _crossing(self, what: str, made: Subject, kind: str, *, routed: bool) -> None:
        for chunks in self.arguments.chunks:
            plan = crossing(interfaces(2), chunks, self._window(kind), routed=routed)
            self._add(what, kind, made, 2, chunks, plan, stream=0)

    def _add(
        self, what: str, kind: str, made: Subject, ports: int, chunks: int, plan: bytes, *, stream: int
    ) -> None:
        def once() -> Outcome:
            return made.measure(self.native["traffic"], plan, stream, self.arguments.seconds)

        def once_on_both() -> Outcome:
            made.pin([self.processors.hosts, self.processors.switch])
            try:
                return once()
            finally:
                made.pin([self.processors.switch])

        self.cases.append(Case(what, kind, ports, chunks, once, made))
        if kind == "BMv2":  # it has a thread for each step
            self.cases.append(Case(what, kind, ports, chunks, once_on_both, made, processors=2))

    @staticmethod
    def _window(kind: str) -> int:
        return BMV2_WINDOW if kind == "BMv2" else WINDOW


def where_time_goes(bench: Bench) -> Iterator[tuple[Case, dict[str, float], list[str]]]:
    """Run each case once more under perf; yield percentages of the switch's time by library and symbol."""
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("perf is not installed: --profile needs it")
    for case in bench.cases:
        with tempfile.NamedTemporaryFile() as file:
            pid = str(case.subject.process.pid)
            record = subprocess.Popen(
                [perf, "record", "-q", "-e", "cpu-clock", "-F", "9973", "-p", pid, "-o", file.name],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            case.once()
            record.terminate()
            record.wait()
            report = subprocess.run(
                [
                    perf,
                    *["report", "-q", "--stdio", "--sort", "dso,symbol", "-g", "none", "-t", "|"],
                    "-i",
                    file.name,
                ],
                capture_output=True,
                text=True,
                check=True,
            )
        libraries: dict[str, float] = {}
        symbols = []
        for line in report.stdout.splitlines():
            if line.count("|") < 2 or line.startswith("#"):
                continue
            percent, library, symbol = (part.strip() for part in line.split("|", 2))
            share = float(percent.rstrip("%"))
            library = library.strip("[]").split("-")[0]  # without a compiled program's hash
            libraries[library] = round(libraries.get(library, 0.0) + share, 2)
            if share >= _SMALLEST_SHARE:
                symbols.append(f"{share:6.2f} {library:18} {symbol}")
        yield case, dict(sorted(libraries.items(), key=lambda item: -item[1])[:6]), symbols


def by_chunks(cases: Sequence[Case], what: str) -> dict[str, int] | None:
    """Return packets a second by chunks: the better figure if a case ran on one and on two processors."""
    found: dict[str, int] = {}
    for case in cases:
        if case.what == what:
            found[str(case.chunks)] = max(round(case.pps), found.get(str(case.chunks), 0))
    return found or None


def by_chunks_and_ports(cases: Sequence[Case]) -> dict[str, dict[str, int]] | None:
    """Return packets a second by chunks, and by ports among these."""
    found: dict[str, dict[str, int]] = {}
    for case in cases:
        if case.what == "aggregate":
            by_ports = found.setdefault(str(case.chunks), {})
            by_ports[str(case.ports)] = max(round(case.pps), by_ports.get(str(case.ports), 0))
    return found or None


def summary(cases: Sequence[Case], reference: int) -> dict[str, Any]:
    """Return the figures that others ask for. Plain numbers are those of packets with `reference` chunks."""
    own = [case for case in cases if case.switch == "soft_switch"]
    theirs = [case for case in cases if case.switch == "BMv2"]
    ceiling = {str(case.chunks): case for case in cases if case.switch == "C"}
    beside = [(case, ceiling[str(case.chunks)]) for case in own if str(case.chunks) in ceiling]
    l3 = by_chunks(own, "l3") or {}
    return {
        "ceiling_pps": round(ceiling[str(reference)].pps) if str(reference) in ceiling else None,
        "ceiling_pps_by_chunks": {chunks: round(case.pps) for chunks, case in ceiling.items()},
        "l3_pps": l3.get(str(reference)),
        "l3_pps_by_chunks": l3,
        "aggregate_pps": by_chunks_and_ports(own),
        "bmv2_pps": (by_chunks(theirs, "l3") or {}).get(str(reference)),
        "bmv2_pps_by_chunks": by_chunks(theirs, "l3"),
        "bmv2_aggregate_pps": by_chunks_and_ports(theirs),
        "of_ceiling": {_name(case): round(case.pps / top.pps, 3) for case, top in beside},
        "of_ceiling_by_cpu_time": {_name(case): round(top.cpu_ns / case.cpu_ns, 3) for case, top in beside},
        "of_bmv2": _against(own, theirs),
    }


def _name(case: Case) -> str:
    return f"{case.what}, {case.chunks} chunks, {case.ports} ports"


def _against(own: Sequence[Case], theirs: Sequence[Case]) -> dict[str, float]:
    slow = {_name(case): case.pps for case in sorted(theirs, key=lambda case: case.pps)}
    return {_name(case): round(case.pps / slow[_name(case)], 1) for case in own if _name(case) in slow}


def show(cases: Sequence[Case], ceiling: dict[str, int]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "Packets a second through a switch on one processor",
        ("what", "switch"),
        ("on", "ports", "chunks", "median", "min", "max", "of ceiling", "CPU per packet", "hosts' CPU"),
        (_row(case, ceiling.get(str(case.chunks))) for case in cases),
    )


def _row(case: Case, top: int | None) -> Sequence[str]:
    found = case.report()
    return (
        *(case.what, case.switch, f"{case.processors} CPU", str(case.ports), str(case.chunks)),
        *(f"{found[name]:,}" for name in ("pps", "min_pps", "max_pps")),
        f"{case.pps / top:.0%}" if top else "",
        f"{case.cpu_ns:,.0f} ns",
        f"{found['hosts_processor']:.0%}",
    )


def numbers(text: str) -> tuple[int, ...]:
    """Parse numbers such as "1,4,16"."""
    return tuple(int(part) for part in text.split(","))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = command.parser(__doc__)
    command.add_parts(parser, ("ceiling", "l3", "aggregate", "bmv2"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run, behind its warm-up")
    parser.add_argument("--chunks", type=numbers, default=CHUNKS, help="256-byte chunks of a packet")
    parser.add_argument("--ports", type=numbers, default=PORTS, help="of the job that is added up")
    parser.add_argument(
        "--bmv2", default=BMV2, metavar="PATH", help="a simple_switch_grpc; by default on the PATH"
    )
    parser.add_argument(
        "--profile", action="store_true", help="where time goes on the switch's processor (perf)"
    )
    return parser.parse_args()


def main() -> None:
    """Run the parts asked for."""
    arguments = parse()
    console = command.console(180)
    bmv2 = find_switch(arguments.bmv2) if "bmv2" in arguments.parts else None
    if "bmv2" in arguments.parts and bmv2 is None:
        console.print(f"{arguments.bmv2} is not here: BMv2 is left out")
    profiles = []
    with contextlib.ExitStack() as stack:
        with console.status("starting"):
            bench = Bench(arguments, stack)
            bench.prepare(bmv2)
        for number in range(arguments.rounds):
            for case in bench.cases:
                with console.status(
                    f"round {number + 1} of {arguments.rounds}: {case.switch}, {_name(case)}"
                ):
                    case.outcomes.append(case.once())
        if arguments.profile:
            for case, libraries, symbols in where_time_goes(bench):
                title = f"{case.switch}, {_name(case)}"
                console.print(f"\n[bold]{title}[/bold]: {libraries}")
                for line in symbols:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
                profiles.append({"case": title, "libraries": libraries, "symbols": symbols})
    reference = 4 if 4 in arguments.chunks else arguments.chunks[0]
    figures = summary(bench.cases, reference)
    console.print(show(bench.cases, figures["ceiling_pps_by_chunks"]))
    report = {
        "command": [Path(sys.executable).name, "-m", "bench.switch", *sys.argv[1:]],
        "bmv2": bmv2,
        **figures,
        "cases": [case.report() for case in bench.cases],
        "profiles": profiles,
    }
    command.write(arguments.json, report)


if __name__ == "__main__":
    main()
