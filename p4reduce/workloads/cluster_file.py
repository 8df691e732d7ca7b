"""The cluster file: a fabric, its switches and controller, jobs, and the work of their workers.

topology: {kind: spine-leaf, spines: 2, leaves: 2, hosts: 8, rate: 100mbit}
switch: {target: embedded}
controller: {quotas: {tenants: {red: {weight: 2}}}}
jobs:
  - name: red
    tenant: red
    hosts: [h1, h2, h5]
workload:
  - all_reduce: {bytes: [64K, 1M], dtype: int32, iterations: 5}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    create_model,
    field_validator,
    model_validator,
)

from controller.api.errors import InvalidRequestError
from controller.api.messages import MAX_PLANES
from controller.config import MAX_LEAVES, MAX_SPINES, Config, Target, check_window
from controller.slots.admission import tenant_of
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import PACKED, SPREAD, counts_of
from p4reduce.workloads.sizes import parse_bytes
from p4reduce.workloads.tensors import added_by_switches, dtype_of, operation_of, require_wire
from p4reduce.workloads.traffic.model import GRADIENTS, gradient_type
from p4reduce.workloads.validation import ClusterFileError, Document, Mistake, Part
from p4src import PATH_MTUS
from topologies import layout
from topologies.errors import TopologyError
from topologies.links import parse_rate_mbit
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import HostKind

Parsed = TypeVar("Parsed")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"


def _rate(text: Any) -> Any:
    return _must(parse_rate_mbit, text) if isinstance(text, str) else text


def _size(text: Any) -> Any:
    return _must(parse_bytes, text) if isinstance(text, str) else text


def _listed(given: Any) -> Any:
    """Make a list of a single value."""
    return [given] if isinstance(given, str | int) else given


def _path_mtu(given: Any) -> Any:
    if str(given) not in map(str, PATH_MTUS):
        raise ValueError(f"this is no path MTU of RoCE: {', '.join(map(str, PATH_MTUS))}")
    return int(given)


def _tenant(given: str) -> str:
    _must(tenant_of, given)
    return given


def _gradients(given: str) -> str:
    _must(gradient_type, given)
    return given.lower()


Tenant = Annotated[str, AfterValidator(_tenant)]
Rate = Annotated[float | None, BeforeValidator(_rate)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1, lt=2**32)]
PathMtu = Annotated[int, BeforeValidator(_path_mtu)]
HostCount = Annotated[int, Field(ge=1, le=layout.MAX_HOSTS)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=_NAME)]


class _Topology(Part):
    rate: Rate = None
    gpus_per_host: Annotated[int, Field(ge=1, le=MAX_PLANES)] = 1
    intra_rate: Rate = None
    path_mtu: PathMtu = 1024
    delay_ms: Annotated[float, Field(ge=0)] = 0.0
    loss: Probability = 0.0
    host_kind: Annotated[tuple[HostKind, ...], BeforeValidator(_listed)] = (HostKind.EMULATED,)

    def common(self) -> dict[str, Any]:
        """Return the topology's part of a FabricOptions."""
        kinds = tuple(kind.value for kind in self.host_kind)
        total = len(self.on_paper().hosts)
        return {
            "path_mtu": self.path_mtu,
            "rate_mbit": self.rate,
            "gpus_per_host": self.gpus_per_host,
            "intra_rate_mbit": self.intra_rate,
            "delay_ms": self.delay_ms,
            "loss": self.loss,
            "host_kinds": kinds * total if len(kinds) == 1 else kinds,
        }

    def on_paper(self) -> layout.Layout:
        """Return the fabric's switches and hosts. TopologyError."""
        raise NotImplementedError


class RackTopology(_Topology):
    """Hosts on one switch."""

    kind: Literal["rack"]
    hosts: Annotated[int, Field(ge=layout.MIN_HOSTS, le=layout.MAX_HOSTS_A_LEAF)] = 4

    def on_paper(self) -> layout.Layout:
        return layout.rack(self.hosts)


class SpineLeafTopology(_Topology):
    """`hosts` in all, or a number for each leaf. `uplink_rate` defaults to `rate`."""

    kind: Literal["spine-leaf"]
    spines: Annotated[int, Field(ge=1, le=MAX_SPINES)] = 2
    leaves: Annotated[int, Field(ge=1, le=MAX_LEAVES)] = 2
    hosts: Annotated[tuple[HostCount, ...], BeforeValidator(_listed)] = (8,)
    uplink_rate: Rate = None

    @property
    def hosts_per_leaf(self) -> tuple[int, ...]:
        """Number of hosts of each leaf."""
        if len(self.hosts) == 1:
            return layout.spread(self.hosts[0], self.leaves)
        return self.hosts

    @field_validator("hosts")
    @classmethod
    def _total(cls, hosts: tuple[int, ...]) -> tuple[int, ...]:
        if not layout.MIN_HOSTS <= sum(hosts) <= layout.MAX_HOSTS:
            raise ValueError(f"a fabric has {layout.MIN_HOSTS} to {layout.MAX_HOSTS} hosts, not {sum(hosts)}")
        return hosts

    def on_paper(self) -> layout.Layout:
        if len(self.hosts) not in (1, self.leaves):
            raise TopologyError(
                f"{len(self.hosts)} numbers of hosts do not fit {self.leaves} leaves: "
                "say one, or one for each"
            )
        return layout.spine_leaf(spines=self.spines, hosts=self.hosts_per_leaf)


class Switch(Part):
    """The target that runs the P4 program, and the share of packets that an embedded switch drops."""

    target: Target = Target.EMBEDDED
    loss: Probability = 0.0


class TenantQuota(Part):
    """A tenant's weight, the most slots that it may have on a switch, and the hosts reserved for it."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    slots: Annotated[int, Field(ge=0)] | None = None
    hosts: Annotated[list[str], Field(min_length=1)] | None = None


class Quotas(Part):
    """Quotas of jobs and tenants. `job_slots`: the most slots of one job on a switch."""

    job_slots: Annotated[int, Field(ge=0)] | None = None
    tenants: dict[Tenant, TenantQuota] = Field(default_factory=dict)
    preemption: bool = False


def _controller_part() -> type[Part]:
    """Make the model of the controller's options, with the types that Config declares.

    Options of the network are left out: the topology sets them.
    """
    hints = get_type_hints(Config)
    other = ("switches", "hosts", "links", "path_mtu", "quotas", "tls", "switch_tls", "by_ip")
    fields: dict[str, Any] = {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(Config)
        if field.name not in other
    }
    made: type[Part] = create_model("Controller", __base__=Part, quotas=(Quotas, Quotas()), **fields)
    return made


if TYPE_CHECKING:
    Controller = Part
else:
    Controller = _controller_part()


class AllReduce(Part):
    """`iterations` all-reduces of each size and type. `late_s`: how much later these ranks start each one."""

    bytes: Annotated[tuple[Size, ...], BeforeValidator(_listed), Field(min_length=1)]
    dtype: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("float32",)
    op: str = "sum"
    iterations: Annotated[int, Field(ge=1)] = 1
    strategy: Literal["auto", "in-network", "ring"] = "auto"
    wire: Literal["full", "16bit"] = "full"
    seed: Annotated[int, Field(ge=0)] = 1
    late_s: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=0)]] = Field(default_factory=dict)

    @field_validator("dtype")
    @classmethod
    def _dtypes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            _must(dtype_of, name)
        return tuple(name.lower() for name in names)

    @field_validator("op")
    @classmethod
    def _operation(cls, name: str) -> str:
        _must(operation_of, name)
        return name.lower()

    @model_validator(mode="after")
    def _whole(self) -> AllReduce:
        for name in self.dtype:
            if self.strategy == "in-network" and not added_by_switches(name, self.op):
                raise ValueError(f"no switch makes the {self.op} of {name}: leave the strategy out")
            _must(partial(require_wire, self.wire, dtype_of(name)), self.op)
            for size in self.bytes:
                if size % dtype_of(name).itemsize:
                    raise ValueError(f"{size} bytes are not a whole number of {name} elements")
        return self


class Train(Part):
    """Steps of training on handwritten digits, with gradients of `dtype`.

    `wire` 16bit: float32 goes through the switches in half the bytes, with error feedback. Other types take
    16 bits anyway.
    """

    steps: Annotated[int, Field(ge=1)] = 50
    dtype: Annotated[str, AfterValidator(_gradients)] = GRADIENTS[0]
    wire: Literal["full", "16bit"] = "full"
    seed: Annotated[int, Field(ge=0)] = 1


class Torch(Part):
    """A PyTorch script (relative to the file) or module, whose processes start as by 'p4reduce torch'."""

    script: str | None = None
    module: str | None = None
    args: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()

    @model_validator(mode="after")
    def _one(self) -> Torch:
        if (self.script is None) == (self.module is None):
            raise ValueError("a script is one of script (a file) and module")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments for Python."""
        return (self.script, *self.args) if self.script is not None else ("-m", str(self.module), *self.args)


class Step(Part):
    """One of an all-reduce, a training and a script."""

    all_reduce: AllReduce | None = None
    train: Train | None = None
    torch: Torch | None = None

    @model_validator(mode="after")
    def _one(self) -> Step:
        if [self.all_reduce, self.train, self.torch].count(None) != 2:
            raise ValueError("a step is one of all_reduce, train and torch")
        return self


class Job(Part):
    """Workers on `hosts` (rank 0 on the first), or `workers` of them by `placement`; on all hosts if neither.

    Each host has a worker for each GPU.
    """

    name: Name
    tenant: Tenant = ""
    hosts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    workers: Annotated[int, Field(ge=1, le=layout.MAX_HOSTS * MAX_PLANES)] | None = None
    placement: str = PACKED
    mode: Literal["auto", "in-network", "ring"] = "auto"
    path_mtu: PathMtu | None = None
    window: int | None = None
    message_packets: int | None = None
    start_after_s: Annotated[float, Field(ge=0)] = 0.0
    elastic: bool = False
    selective: bool | None = None
    workload: tuple[Step, ...] | None = None

    @field_validator("placement", mode="before")
    @classmethod
    def _counts(cls, given: Any) -> Any:
        text = ",".join(map(str, given)) if isinstance(given, list) else given
        if text not in (PACKED, SPREAD):
            _must(counts_of, str(text))
        return text

    @field_validator("window")
    @classmethod
    def _window(cls, window: int | None) -> int | None:
        check_window(window, None)
        return window

    @field_validator("message_packets")
    @classmethod
    def _packets(cls, packets: int | None) -> int | None:
        check_window(None, packets)
        return packets


class ClusterFile(Part):
    """The whole file. `workload` is for jobs without their own; `timeout_s` limits the time of a run."""

    name: Name | None = None
    topology: Annotated[RackTopology | SpineLeafTopology, Field(discriminator="kind")]
    switch: Switch = Switch()
    controller: Controller = Controller()
    jobs: tuple[Job, ...] = ()
    workload: tuple[Step, ...] = ()
    results: Path | None = None
    tls: bool = False
    timeout_s: Annotated[float, Field(gt=0)] = 600.0

    _document: Document | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, document: Document) -> ClusterFile:
        """Read the model from a document; the cluster's name is the file's if the document has none."""
        found = document.as_(cls)
        if found.name is None:
            found = found.model_copy(update={"name": _name_of(document.path)})
        found._document = document
        return found

    def fabric_options(self, *, name: str | None = None, tls: bool = False) -> FabricOptions:
        """Return the fabric to bring up, under the file's name or `name`; `tls` turns on TLS."""
        chosen = name or self.name
        if chosen is None:
            raise WorkloadError("the cluster needs a name")
        common = {
            "name": chosen,
            "switch": self.switch.target,
            "switch_loss": self.switch.loss,
            "tls": self.tls or tls,
            "controller_options": self.controller_options(),
            **self.topology.common(),
        }
        if isinstance(self.topology, RackTopology):
            return RackOptions(hosts=self.topology.hosts, **common)
        given = "uplink_rate" in self.topology.model_fields_set
        return SpineLeafOptions(
            spines=self.topology.spines,
            leaves=self.topology.leaves,
            hosts=self.topology.hosts_per_leaf,
            uplink_rate_mbit=self.topology.uplink_rate if given else "rate",
            **common,
        )

    def controller_options(self) -> dict[str, Any]:
        """Return the file's settings for the controller's configuration, as JSON."""
        return self.controller.model_dump(mode="json", exclude_unset=True)

    def workload_of(self, job: Job) -> tuple[Step, ...]:
        """Return the steps of a job's workers."""
        return self.workload if job.workload is None else job.workload

    def script_of(self, job: Job) -> Torch | None:
        """Return the script that is the whole workload of a job; None if it has none."""
        return next((step.torch for step in self.workload_of(job) if step.torch is not None), None)

    @property
    def directory(self) -> Path:
        """Directory of the file, to which scripts are relative."""
        return Path.cwd() if self._document is None else self._document.path.absolute().parent

    def wrong(self, mistakes: Sequence[Mistake]) -> ClusterFileError:
        """Return the error to raise about places in the file."""
        if self._document is None:
            return ClusterFileError("\n".join(why for _, why in mistakes))
        return self._document.wrong(mistakes)


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-_")[:32] or "cluster"


def _must(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse `text`; raise ValueError, which pydantic takes, with the reason if that fails."""
    try:
        return parse(text)
    except (InvalidRequestError, TopologyError, WorkloadError) as error:
        raise ValueError(str(error)) from error
