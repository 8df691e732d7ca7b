"""The file that `compare` and `replay` write and `report` reads: what was measured, where, and how it went.

All times are in seconds and all sizes in bytes; times of a timeline or of samples count from the start of
what was measured. `up` is towards the switches (towards the spines between switches), `down` from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p4reduce.workloads.errors import WorkloadError

FORMAT: Final = "p4reduce-run/1"


class Part(BaseModel):
    """What all parts have in common: nothing in them is unknown."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class LinkBytes(Part):
    """What went over a link each way: whole frames, from the Ethernet header on."""

    up: int
    down: int


class Switch(Part):
    """A switch of the fabric; in a rack, its only one is a leaf."""

    name: str
    role: Literal["leaf", "spine"]


class Host(Part):
    """A host, and the switch it is behind. `rank` is its first GPU's; None where no worker was."""

    name: str
    switch: str
    rank: int | None = None


class Topology(Part):
    """The fabric. `links` are all of it by name: `h1:s1` of a host, `l1:s1` between leaf and spine.

    `gpus_per_host` have a worker each; what a GPU gets from others of its host comes at `intra_rate_mbit`.
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
    """Gradients that are reduced together: those of layers `first` to `last` (as the model has them)."""

    bytes: int
    first: int
    last: int


class Workload(Part):
    """What was trained, or seemed to be. Times are one iteration's, as played (scaled)."""

    name: str
    source: str
    layers: int
    gradient_bytes: int
    forward_s: float
    backward_s: float
    priority: bool = False
    buckets: list[Bucket] = Field(default_factory=list)


class Result(Part):
    """A strategy. `bytes`: the tensor's, or all gradients' of an iteration. `seconds`: the slowest worker's.

    `link_bound_s` is the least that the strategy could take at the links' rates if headers were free and
    computing took no time; None without rates. `exposed_s` is, in a replay, the time of the median iteration
    in which a worker only waited for gradients (the worst worker's). `bytes_inside` is what a GPU got from
    the others of its host (that which got most); None where hosts have one.
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
    """A piece of a worker's time. Communication overlaps computing; waiting is for communication."""

    rank: int
    iteration: int
    kind: Literal["compute", "communicate", "wait"]
    what: str
    start_s: float
    end_s: float


class Sample(Part):
    """A look at the fabric: bytes since the start over each link, slots that hold a sum in the making."""

    at_s: float
    links: dict[str, LinkBytes]
    slots_open: int
    slots_allocated: int


class Run(Part):
    """All of it. `timelines` and `samples` by strategy; a comparison without a workload has no timelines.

    `dtype` is the type of the elements that were summed; None in files from before it was noted.
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
        """As it is written."""
        return self.model_dump(mode="json")


def read(path: Path) -> Run:
    """The run in a file. WorkloadError where it is none."""
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
