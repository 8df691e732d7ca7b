"""The two switch targets as Mininet nodes: both are driven by P4Runtime and start without a program."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final

from mininet.node import Switch

from topologies.errors import TopologyError, UnsupportedError
from topologies.processes import end, wait_until

CPU_PORT: Final = 255
_START_TIMEOUT_S: Final = 120.0  # the embedded switch compiles its engine at its first start
BMV2: Final = "simple_switch_grpc"


class SwitchTarget(str, Enum):
    """What runs the P4 program."""

    EMBEDDED = "embedded"
    BMV2 = "bmv2"


@dataclass(frozen=True, kw_only=True)
class SwitchSettings:
    """How to start a switch: P4Runtime `address` host:port, losses as (port, direction, probability)."""

    device_id: int
    address: str
    directory: Path
    pcap: Path | None = None
    losses: list[tuple[int, str, float]] = field(default_factory=list)


class P4RuntimeSwitch(Switch):  # type: ignore[misc]
    """A switch process on the veths that Mininet made; port n is interface <name>-ethn."""

    target: ClassVar[SwitchTarget]

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
        return [*command, "--", "--grpc-server-addr", settings.address, "--cpu-port", str(CPU_PORT)]

    def program(self) -> list[str]:
        """What to start."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """What only this target takes, before the "--"."""
        raise NotImplementedError

    def start(self, controllers: object = ()) -> None:
        """Start the process and wait until it serves P4Runtime."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.settings.directory,  # `python -m` looks for modules where it starts
                start_new_session=True,
            )
        host, _, port = self.settings.address.rpartition(":")
        served = wait_until(
            lambda: self.process_ended() or accepts(host, int(port)), timeout_s=_START_TIMEOUT_S
        )
        if not served or self.process_ended():
            raise TopologyError(
                f"switch {self.name} ({self.target.value}) does not start: {self.last_words()}"
            )

    def stop(self, deleteIntfs: bool = True) -> None:
        """Stop the process."""
        if self.process is not None:
            end([self.process])
        super().stop(deleteIntfs)

    def process_ended(self) -> bool:
        """Whether the process was started and is gone."""
        return self.process is not None and self.process.poll() is not None

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or f"it wrote nothing to {self.log}"


class EmbeddedSwitch(P4RuntimeSwitch):
    """This project's own switch."""

    target = SwitchTarget.EMBEDDED

    def program(self) -> list[str]:
        return [sys.executable, "-m", "soft_switch"]

    def options(self) -> list[str]:
        options = []
        for port, direction, probability in self.settings.losses:
            options += ["--loss", f"{port}:{direction}:{probability:f}"]
        return options


class Bmv2Switch(P4RuntimeSwitch):
    """BMv2's simple_switch_grpc, from the PATH."""

    target = SwitchTarget.BMV2

    def program(self) -> list[str]:
        return [require_bmv2()]

    def options(self) -> list[str]:
        if self.settings.losses:
            raise UnsupportedError("BMv2 cannot lose packets on request: use --switch embedded, or --loss")
        return ["--log-console", "-L", "warn"]


TARGETS: Final[dict[SwitchTarget, type[P4RuntimeSwitch]]] = {
    SwitchTarget.EMBEDDED: EmbeddedSwitch,
    SwitchTarget.BMV2: Bmv2Switch,
}


def require_bmv2() -> str:
    """The path of simple_switch_grpc; UnsupportedError says what to do where there is none."""
    path = shutil.which(BMV2)
    if path is None:
        raise UnsupportedError(
            f"{BMV2} is not on the PATH ({os.environ.get('PATH', '')}): install BMv2 "
            "(https://github.com/p4lang/behavioral-model), or use --switch embedded, which needs nothing"
        )
    return path


def accepts(host: str, port: int) -> bool:
    """Whether something takes TCP connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
