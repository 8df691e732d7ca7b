"""The two switch targets as Mininet nodes: both are driven by P4Runtime and start without a program."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from mininet.node import Switch

from controller.config import Target
from controller.security.files import TlsFiles
from p4src import CPU_PORT
from topologies.errors import TopologyError, UnsupportedError
from topologies.layout import Role
from topologies.processes import end
from topologies.starting import Start, last_words
from topologies.state import METRICS

START_TIMEOUT_S: Final = 120.0  # the embedded switch compiles its engine at its first start
BMV2: Final = "simple_switch_grpc"
_THRIFT_PORT: Final = 9090
_LOOK_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class SwitchSettings:
    """How to start a switch: P4Runtime `address` host:port, `loss` on each port, both ways.

    `number` tells the switches of one namespace apart, from 0.
    """

    device_id: int
    address: str
    directory: Path
    number: int = 0
    pcap: Path | None = None
    role: Role = Role.LEAF
    loss: float = 0.0
    tls: TlsFiles | None = None


class P4RuntimeSwitch(Switch):  # type: ignore[misc]
    """A switch process on the veths that Mininet made; port n is interface <name>-ethn."""

    target: ClassVar[Target]

    def __init__(self, name: str, *, settings: SwitchSettings, **params: Any) -> None:
        super().__init__(name, **{**params, "inNamespace": False})
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the switch wrote."""
        return self.settings.directory / f"{self.name}.log"

    def interfaces(self) -> dict[int, str]:
        """The interfaces of its ports."""
        return {port: intf.name for port, intf in sorted(self.intfs.items()) if intf.name != "lo"}

    def command(self) -> list[str]:
        """The command line that both targets take."""
        settings = self.settings
        command = [*self.program(), "--no-p4", "--device-id", str(settings.device_id)]
        for port, interface in self.interfaces().items():
            command += ["-i", f"{port}@{interface}"]
        if settings.pcap is not None:
            command.append(f"--pcap={settings.pcap}")
        command += self.options()
        command += ["--", "--grpc-server-addr", settings.address, "--cpu-port", str(CPU_PORT)]
        return command if settings.tls is None else [*command, *tls_options(settings.tls)]

    def program(self) -> list[str]:
        """What to start."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """What only this target takes, before the "--"."""
        raise NotImplementedError

    def starting(self) -> Start:
        """How its process is started."""
        return Start.of(self.command(), directory=self.settings.directory, log=self.log)

    def launch(self) -> None:
        """Start the process."""
        self.process = self.starting().launch()

    def serves(self) -> bool:
        """Whether it takes P4Runtime connections; TopologyError where its process has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise self.failure()
        host, _, port = self.settings.address.rpartition(":")
        return accepts(host, int(port))

    def failure(self) -> TopologyError:
        """Says that it does not start, with its last words."""
        return TopologyError(
            f"switch {self.name} ({self.target.value}) does not start: {last_words(self.log)}"
        )

    def stop(self, deleteIntfs: bool = True) -> None:
        """Stop the process."""
        if self.process is not None:
            end([self.process])
        super().stop(deleteIntfs)


class EmbeddedSwitch(P4RuntimeSwitch):
    """This project's own switch."""

    target = Target.EMBEDDED

    def program(self) -> list[str]:
        return [sys.executable, "-m", "soft_switch"]

    def options(self) -> list[str]:
        directory = self.settings.directory
        options = [
            f"--metrics=unix:{directory / METRICS / f'switch-{self.name}.sock'}",
            f"--faults=unix:{faults_socket(directory, self.name)}",
        ]
        if self.settings.loss:
            losses = [
                f"{port}:{way}:{self.settings.loss:f}" for port in self.interfaces() for way in ("in", "out")
            ]
            options += [word for loss in losses for word in ("--loss", loss)]
        return options


class Bmv2Switch(P4RuntimeSwitch):
    """BMv2's simple_switch_grpc, from the PATH."""

    target = Target.BMV2

    def program(self) -> list[str]:
        return [require_bmv2()]

    def options(self) -> list[str]:
        settings = self.settings
        return [
            *("--log-console", "-L", "warn"),
            # Both have defaults that the second switch of a namespace, or of the machine, could not have.
            *("--thrift-port", str(_THRIFT_PORT + settings.number)),
            *("--notifications-addr", f"ipc://{settings.directory / self.name}.ipc"),
        ]


TARGETS: Final[dict[Target, type[P4RuntimeSwitch]]] = {
    Target.EMBEDDED: EmbeddedSwitch,
    Target.BMV2: Bmv2Switch,
}


def tls_options(tls: TlsFiles) -> list[str]:
    """What both targets take for mutual TLS."""
    return [
        *("--grpc-server-ssl", "--grpc-server-with-client-auth"),
        *("--grpc-server-cacert", str(tls.ca)),
        *("--grpc-server-cert", str(tls.cert)),
        *("--grpc-server-key", str(tls.key)),
    ]


def require_bmv2() -> str:
    """The path of simple_switch_grpc; UnsupportedError says what to do where there is none."""
    path = shutil.which(BMV2)
    if path is None:
        raise UnsupportedError(
            f"{BMV2} is not on the PATH ({os.environ.get('PATH', '')}): install BMv2 "
            "(https://github.com/p4lang/behavioral-model), or use the embedded switch, which needs nothing"
        )
    return path


def faults_socket(directory: Path, name: str) -> Path:
    """Where a switch, or the wires, can be told of faults."""
    return directory / f"faults-{name}.sock"


def accepts(host: str, port: int) -> bool:
    """Whether something takes TCP connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def start_all(
    switches: Sequence[P4RuntimeSwitch],
    *,
    progress: Callable[[str], None],
    started: Callable[[P4RuntimeSwitch], None],
) -> None:
    """Start several, as many side by side as there are processors: more would only take turns.

    `started` is called with each as soon as there is a process. TopologyError where one does not serve
    P4Runtime in time.
    """
    at_once = max(2, len(os.sched_getaffinity(0)))
    waiting = list(switches)
    starting: dict[P4RuntimeSwitch, float] = {}
    while waiting or starting:
        while waiting and len(starting) < at_once:
            switch = waiting.pop(0)
            progress(f"switch {switch.name} ({switch.target.value})")
            switch.launch()
            started(switch)
            starting[switch] = time.monotonic() + START_TIMEOUT_S
        for switch, deadline in list(starting.items()):
            if switch.serves():
                del starting[switch]
            elif time.monotonic() > deadline:
                raise switch.failure()
        if starting:
            time.sleep(_LOOK_S)
