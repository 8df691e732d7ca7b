"""Machinery of bench.switch: namespaces, their processes with a processor each, their entries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.switch_frames import DEVICE_ID
from controller.entries import Entry
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.pipeline import Program
from controller.switches.updates import SwitchUnreachableError, Update, UpdateKind
from p4src import CPU_PORT
from soft_switch.optimiser import VARIABLE as OPTIMISER
from topologies.namespaces import run

NATIVE: Final = Path(__file__).parent / "native"
MTU: Final = 4400  # a packet of 16 chunks fits
WARM_UP_S: Final = 0.3
START_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Processors:
    """The processors in use: one for all that the hosts do, one for the switch."""

    hosts: int
    switch: int

    @classmethod
    def first_two(cls) -> Processors:
        """Return the first two that this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            raise SystemExit("a switch and its hosts need two processors")
        return cls(usable[0], usable[1])


@dataclass(frozen=True)
class Outcome:
    """One timed run: packets are those that entered the switch, and as many left.

    `cpu_s` is what the switch took (with the softirq thread of its processor), `hosts_cpu_s` what the hosts
    took; `checked` packets were compared in every byte, all others in their first 128.
    """

    packets: int
    seconds: float
    cpu_s: float
    hosts_cpu_s: float
    checked: int

    @property
    def pps(self) -> float:
        """Packets a second."""
        return self.packets / self.seconds

    @property
    def cpu_ns(self) -> float:
        """Nanoseconds of the switch's processor for a packet."""
        return self.cpu_s / self.packets * 1e9


@dataclass
class Subject:
    """The forwarder and its ports: s1, s2... in a namespace; the hosts have their other ends w1, w2..."""

    name: str
    hosts: str
    process: subprocess.Popen[bytes]
    processors: Processors
    next_round: dict[Any, int] = field(default_factory=dict)

    def measure(self, traffic: Path, plan: bytes, stream: Any, seconds: float) -> Outcome:
        """Send for some time; rounds of a `stream` count on from the run before."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(plan)
            file.flush()
            own = [str(self.process.pid), *softirq_thread(self.processors.switch)]
            command = inside(
                self.hosts,
                [
                    str(traffic),
                    file.name,
                    str(self.next_round.get(stream, 0)),
                    str(seconds),
                    str(WARM_UP_S),
                    *own,
                ],
                self.processors.hosts,
            )
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        if done.returncode:
            raise SystemExit(f"{self.name}, {stream}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        if not report["rounds"]:
            raise SystemExit(
                f"{self.name}, {stream}: no packet came through in {seconds:g} s: try more --seconds"
            )
        self.next_round[stream] = report["next"]
        ports = int.from_bytes(plan[:4], "little")
        return Outcome(
            packets=report["rounds"] * ports,
            seconds=report["seconds"],
            cpu_s=sum(report["cpu_s"]),
            hosts_cpu_s=report["own_cpu_s"],
            checked=report["sampled"],
        )

    def pin(self, processors: Sequence[int]) -> None:
        """Move all of its threads onto these processors."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), processors)


def softirq_thread(processor: int) -> list[str]:
    """Return the kernel thread that takes over the processor's softirqs under load, if it can be seen."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "comm").read_text().strip() == f"ksoftirqd/{processor}":
                    return [entry.name]
    return []


def compile_native(folder: Path) -> dict[str, Path]:
    """Compile the programs of bench/native."""
    compiler = os.environ.get("CC") or "cc"
    made = {}
    for source in sorted(NATIVE.glob("*.c")):
        made[source.stem] = folder / source.stem
        run(compiler, "-O2", "-march=native", "-std=gnu11", "-o", str(made[source.stem]), str(source))
    return made


def inside(namespace: str, command: Sequence[str], processor: int) -> list[str]:
    """Return a command line that runs another one in a namespace, on one processor."""
    return ["taskset", "-c", str(processor), "ip", "netns", "exec", namespace, *command]


@contextlib.contextmanager
def cables(name: str, ports: int) -> Iterator[tuple[str, str]]:
    """Make two quiet namespaces, of hosts and of a switch, with veth pairs between them."""
    hosts, switch = f"{name}h", f"{name}s"
    with contextlib.ExitStack() as stack:
        for namespace in (hosts, switch):
            run("ip", "netns", "add", namespace)
            stack.callback(run, "ip", "netns", "delete", namespace)
            for setting in ("all", "default"):
                run(
                    "ip",
                    "netns",
                    "exec",
                    namespace,
                    "sysctl",
                    "-qw",
                    f"net.ipv6.conf.{setting}.disable_ipv6=1",
                )
        for port in range(1, ports + 1):
            run(
                *("ip", "link", "add", f"w{port}", "netns", hosts, "type", "veth"),
                *("peer", "name", f"s{port}", "netns", switch),
            )
            for namespace, end in ((hosts, f"w{port}"), (switch, f"s{port}")):
                run("ip", "-n", namespace, "link", "set", end, "mtu", str(MTU), "arp", "off", "up")
        yield hosts, switch


@contextlib.contextmanager
def awake(processors: Processors) -> Iterator[None]:
    """Keep the processors awake: a process of the idle class runs whenever nothing else does.

    A forwarder sleeps between two bursts. In a virtual machine a sleeping processor takes longer to wake up
    than a burst takes. Without this, the same forwarder is three times as fast beside other work.
    """
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [
        subprocess.Popen(["taskset", "-c", str(number), sys.executable, "-c", spin])
        for number in (processors.hosts, processors.switch)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def interfaces(ports: int) -> list[str]:
    """Return the hosts' ends."""
    return [f"w{port}" for port in range(1, ports + 1)]


@contextlib.contextmanager
def subject(name: str, ports: int, command: Sequence[str], processors: Processors) -> Iterator[Subject]:
    """Run a process that forwards between s1, s2...."""
    with cables(f"bench{os.getpid()}{name}", ports) as (hosts, switch), tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            inside(switch, command, processors.switch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, OPTIMISER: "wait"},  # what is measured is the program's optimised version
        )
        try:
            yield Subject(name, hosts, process, processors)
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-2000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def p4_switch(
    name: str,
    ports: int,
    program: Program,
    entries: Sequence[Entry],
    processors: Processors,
    *,
    bmv2: str | None = None,
) -> Iterator[Subject]:
    """Run soft_switch, or BMv2's `simple_switch_grpc` at a path, with a program and entries."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        address = f"unix:{folder}/p4rt"
        command = [sys.executable, "-m", "soft_switch"]
        if bmv2 is not None:
            command = [bmv2, "--notifications-addr", f"ipc://{folder}/notifications"]
        for port in range(1, ports + 1):
            command += ["-i", f"{port}@s{port}"]
        command += ["--no-p4", "--device-id", str(DEVICE_ID)]
        command += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
        with subject(name, ports, command, processors) as made:
            asyncio.run(_install(address, program, entries))
            yield made


async def _install(address: str, program: Program, entries: Sequence[Entry]) -> None:
    client = await _connected(address, program)
    async with client:
        await client.set_pipeline(program.device_config, cookie=program.cookie)
        for entry in entries:  # in their order
            await client.write([Update(UpdateKind.INSERT, entry)])


async def _connected(address: str, program: Program) -> P4RuntimeClient:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        client = P4RuntimeClient(address, device_id=DEVICE_ID, schema=program.schema)
        try:
            await client.open(1)
            return client
        except SwitchUnreachableError:
            await client.close()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


def find_switch(path: str | None) -> str | None:
    """Return the path of an executable, given by path or name, if it is there."""
    return shutil.which(path) if path else None
