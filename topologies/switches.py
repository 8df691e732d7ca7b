"""The two switch targets as Mininet nodes: P4Runtime drives both, and they start without a program."""

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
    """Settings of a switch: P4Runtime `address` host:port, `loss` on each port, both ways.

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
        """The switch's log."""
        return self.settings.directory / f"{self.name}.log"

    def interfaces(self) -> dict[int, str]:
        """Return the interfaces of its ports."""
        return {port: intf.name for port, intf in sorted(self.intfs.items()) if intf.name != "lo"}

    def command(self) -> list[str]:
        """Return the command line: the options that both targets take, and this target's own."""
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
        """Return the command that starts the program."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """Return the options that only this target has, before the "--"."""
        raise NotImplementedError

    def starting(self) -> Start:
        """Return how to start its process."""
        return Start.of(self.command(), directory=self.settings.directory, log=self.log)

    def launch(self) -> None:
        """Start the process."""
        self.process = self.starting().launch()

    def serves(self) -> bool:
        """Tell whether it takes P4Runtime connections. Raise TopologyError if its process has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise self.failure()
        host, _, port = self.settings.address.rpartition(":")
        return accepts(host, int(port))

    def failure(self) -> TopologyError:
        """Return an error that it does not start, with its last words."""
        return TopologyError(
            f"switch {self.name} ({self.target.value}) does not start: {last_words(self.log)}"
        )

    def stop(self, deleteIntfs: bool = True) -> None:
        """Stop the process."""
        if self.process is not None:
            end([self.process])
        super().stop(deleteIntfs)


class EmbeddedSwitch(P4RuntimeSwitch):
    """The project's own switch."""

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
    """Return both targets' options for mutual TLS."""
    return [
        *("--grpc-server-ssl", "--grpc-server-with-client-auth"),
        *("--grpc-server-cacert", str(tls.ca)),
        *("--grpc-server-cert", str(tls.cert)),
        *("--grpc-server-key", str(tls.key)),
    ]


def require_bmv2() -> str:
    """Return the path of simple_switch_grpc. Raise UnsupportedError that says what to do if there is none."""
    path = shutil.which(BMV2)
    if path is None:
        raise UnsupportedError(
            f"{BMV2} is not on the PATH ({os.environ.get('PATH', '')}): install BMv2 "
            "(https://github.com/p4lang/behavioral-model), or use the embedded switch, which needs nothing"
        )
    return path


def faults_socket(directory: Path, name: str) -> Path:
    """Return the socket on which a switch, or the wires, take faults."""
    return directory / f"faults-{name}.sock"


def accepts(host: str, port: int) -> bool:
    """Tell whether a program takes TCP connections there."""
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

    `started` is called with each as soon as there is a process. Raise TopologyError if one does not serve
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
