"""Options of a fabric, whatever its kind, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from controller.api.errors import InvalidRequestError
from controller.api.messages import MAX_PLANES
from controller.config import Target
from controller.switches.pipeline import Program
from p4src import PATH_MTUS
from topologies.errors import TopologyError, UnsupportedError
from topologies.layout import Layout
from topologies.links import LinkShape
from topologies.machines import image, machine
from topologies.state import HostKind
from topologies.switches import require_bmv2


@dataclass(frozen=True, kw_only=True)
class FabricOptions:
    """Options of all kinds of fabric. `switch_loss`: the embedded switch's loss, on every port, both ways.

    A host has `gpus_per_host`, a worker on each, which pass data on at `intra_rate_mbit`. With `fault_wires`,
    faults can be injected with any switch: each link goes through a process. With `program` (p4c's JSON) and
    `p4info`, the switches run that, and there is no controller. With `tls`, controller and switches talk TLS,
    with certificates that are made with the cluster. `host_kinds` has the kind of each host ("emulated",
    "roce"); empty: all are emulated. `controller_options` go into the controller's configuration.
    """

    topology: ClassVar[str]

    name: str
    switch: Target = Target.EMBEDDED
    path_mtu: int = 1024
    rate_mbit: float | None = None
    gpus_per_host: int = 1
    intra_rate_mbit: float | None = None
    delay_ms: float = 0.0
    loss: float = 0.0
    switch_loss: float = 0.0
    pcap: Path | None = None
    host_kinds: tuple[str, ...] = ()
    tls: bool = False
    fault_wires: bool = False
    program: Path | None = None
    p4info: Path | None = None
    controller_options: dict[str, Any] = field(default_factory=dict)

    def layout(self) -> Layout:
        """Return the fabric on paper. Raise TopologyError if it is not possible."""
        raise NotImplementedError

    @property
    def kinds(self) -> list[HostKind]:
        """The kind of each host."""
        return [HostKind(kind) for kind in self.host_kinds] or [HostKind.EMULATED] * len(self.layout().hosts)

    @property
    def link_shape(self) -> LinkShape:
        """Shape of each host's link."""
        return LinkShape(
            path_mtu=self.path_mtu, rate_mbit=self.rate_mbit, delay_ms=self.delay_ms, loss=self.loss
        )

    @property
    def uplink_shape(self) -> LinkShape:
        """Shape of each link between switches."""
        return self.link_shape

    def validate(self) -> None:
        """Raise TopologyError for options that are not possible."""
        layout = self.layout()
        if self.path_mtu not in PATH_MTUS:
            raise TopologyError(
                f"path MTU {self.path_mtu} is none of RoCE's: {', '.join(map(str, PATH_MTUS))}"
            )
        for what, value in (("loss", self.loss), ("switch loss", self.switch_loss)):
            if not 0 <= value < 1:
                raise TopologyError(f"a {what} of {value:g} is no probability below 1")
        if not 1 <= self.gpus_per_host <= MAX_PLANES:
            raise TopologyError(f"a host has 1 to {MAX_PLANES} GPUs, not {self.gpus_per_host}")
        if self.gpus_per_host == 1 and self.intra_rate_mbit is not None:
            raise TopologyError(
                "a rate between the GPUs of a host is for hosts with several: say how many (--gpus-per-host)"
            )
        if self.delay_ms < 0:
            raise TopologyError(f"a delay of {self.delay_ms:g} ms is negative")
        if self.pcap is not None and self.pcap.exists() and not self.pcap.is_dir():
            raise TopologyError(f"{self.pcap} is no directory: name one for captures")
        self._validate_kinds(len(layout.hosts))
        self._validate_program()
        if self.switch is Target.BMV2:
            if self.switch_loss:
                raise UnsupportedError(
                    "BMv2 loses no packets on request: use the embedded switch, or lossy links"
                )
            require_bmv2()

    def _validate_program(self) -> None:
        if (self.program is None) != (self.p4info is None):
            raise TopologyError(
                "a program of your own is two files that p4c-bm2-ss writes: --program FILE.json (-o) and "
                "--p4info FILE.txtpb (--p4runtime-files)"
            )
        if self.program is None or self.p4info is None:
            return
        if self.controller_options:
            raise TopologyError(
                "what is said of the controller does not go with a program of your own: there is none"
            )
        try:
            Program.read(self.program, self.p4info)
        except InvalidRequestError as error:
            raise TopologyError(str(error)) from error

    def _validate_kinds(self, hosts: int) -> None:
        known = [kind.value for kind in HostKind]
        for kind in self.host_kinds:
            if kind not in known:
                raise TopologyError(f"{kind!r} is no kind of host, there are {', '.join(known)}")
        if len(self.host_kinds) not in (0, hosts):
            raise TopologyError(f"{len(self.host_kinds)} kinds of host do not fit {hosts} hosts")
        if HostKind.ROCE in self.kinds:
            if self.gpus_per_host > 1:
                raise UnsupportedError(
                    "hosts of kind roce have one GPU each: leave --gpus-per-host out, or take emulated hosts"
                )
            machine.require_programs()
            image.require()
