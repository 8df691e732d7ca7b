"""The file that `compare` and `replay` write and `report` reads: measurements, and where they were made.

All times are in seconds and all sizes in bytes. Times of a timeline or of samples count from the start of
the measurement. `up` is towards the switches (towards the spines between switches), `down` from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p4reduce.workloads.errors import WorkloadError

FORMAT: Final = "p4reduce-run/1"


class Part(BaseModel):
    """Base of all parts: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class LinkBytes(Part):
    """Bytes over a link each way: whole frames, from the Ethernet header on."""

    up: int
    down: int


class Switch(Part):
    """A switch of the fabric; in a rack, the only switch is a leaf."""

    name: str
    role: Literal["leaf", "spine"]


class Host(Part):
    """A host, and its switch. `rank` is that of its first GPU; None if the host had no worker."""

    name: str
    switch: str
    rank: int | None = None


class Topology(Part):
    """The fabric. `links` are the names of all links: `h1:s1` of a host, `l1:s1` between leaf and spine.

    Each of `gpus_per_host` has a worker; a GPU gets data from others of its host at `intra_rate_mbit`.
    """

    kind: Literal["rack", "spine-leaf"]
    target: str
    path_mtu: int
    rate_mbit: float | None
    uplink_rate_mbit: float | None = None
    gpus_per_host: int = 1
    intra_rate_mbit: float | None = None
    switches: list[Switch]
    hosts: list[Host]
    links: list[str]


class Bucket(Part):
    """Gradients that are reduced together: those of layers `first` to `last` (indexes in the model)."""

    bytes: int
    first: int
    last: int


class Workload(Part):
    """The model whose training was replayed. Times are those of one iteration, as played (scaled)."""

    name: str
    source: str
    layers: int
    gradient_bytes: int
    forward_s: float
    backward_s: float
    priority: bool = False
    buckets: list[Bucket] = Field(default_factory=list)


class Result(Part):
    """Results of a strategy. `bytes`: the tensor's, or a whole iteration's. `seconds`: the slowest worker's.

    `link_bound_s` is the least time that the strategy could take at the links' rates if headers were free and
    computing took no time; None without rates. `exposed_s` is, in a replay, the time of the median iteration
    in which a worker only waited for gradients (the worst worker's). `bytes_inside` is what a GPU got from
    the others of its host (the GPU that got most); None if hosts have one GPU.
    """

    strategy: str
    workers: int
    bytes: int
    median_s: float
    min_s: float
    max_s: float
    goodput_mbit_s: float
    bytes_per_link: dict[str, LinkBytes]
    fraction_of_link_bound: float | None
    link_bound_s: float | None
    speedup_over_ring: float | None = None
    seconds: list[float]
    exposed_s: float | None = None
    retransmissions: int | None = None
    verified: bool | None = None
    bytes_inside: int | None = None


class Span(Part):
    """A piece of a worker's time. Communication overlaps computing; a wait is for communication."""

    rank: int
    iteration: int
    kind: Literal["compute", "communicate", "wait"]
    what: str
    start_s: float
    end_s: float


class Sample(Part):
    """A look at the fabric: bytes over each link since the start, slots that hold an incomplete sum."""

    at_s: float
    links: dict[str, LinkBytes]
    slots_open: int
    slots_allocated: int


class Run(Part):
    """The whole file. `timelines` and `samples` by strategy; a comparison has no workload and no timelines.

    `dtype` is the type of the elements that were summed; None in older files.
    """

    format: Literal["p4reduce-run/1"] = FORMAT
    kind: Literal["compare", "replay"]
    started: str
    machine: str
    command: str
    versions: dict[str, str] = Field(default_factory=dict)
    topology: Topology
    dtype: str | None = None
    workload: Workload | None = None
    results: list[Result]
    skipped: dict[str, str] = Field(default_factory=dict)
    timelines: dict[str, list[Span]] = Field(default_factory=dict)
    samples: dict[str, list[Sample]] = Field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the run as it is written."""
        return self.model_dump(mode="json")


def read(path: Path) -> Run:
    """Read the run in a file. WorkloadError if it is not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path} is no JSON: {error}") from error
    try:
        return Run.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise WorkloadError(
            f"{path} is no run of 'p4reduce compare' or 'p4reduce replay': {where}: {first['msg']}"
        ) from error
