"""The fabric that a command brings up for itself, and the options that describe it."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from controller.api.messages import MAX_PLANES
from controller.config import Target
from p4reduce.cli.options import parse_host_counts, parse_intra_rate, parse_rate, parse_uplink_rate
from p4reduce.cli.output import Say
from p4reduce.cli.runs import is_given
from topologies import state
from topologies.errors import TopologyError
from topologies.fabric import Fabric
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import ClusterState


class Kind(str, Enum):
    """Kinds of fabric."""

    RACK = "rack"
    SPINE_LEAF = "spine-leaf"


Hosts = Annotated[
    str,
    typer.Option(metavar="N|N,N...", help="Hosts, a worker on each; on spine-leaf also a number a leaf."),
]
Rate = Annotated[str, typer.Option(help="Rate of the hosts' links: 100mbit, 1gbit, none.")]
UplinkRate = Annotated[
    str | None, typer.Option(help="Rate of the links between switches; as --rate if not given.")
]
GpusPerHost = Annotated[
    int, typer.Option(min=1, max=MAX_PLANES, help="GPUs of a host: a worker on each, behind one link.")
]
IntraRate = Annotated[
    str | None,
    typer.Option(help="Rate of the channel into each GPU from others of its host; unlimited if not given."),
]
Spines = Annotated[int, typer.Option(min=1, max=4, help="Spines (spine-leaf).")]
Leaves = Annotated[int, typer.Option(min=1, max=8, help="Leaves: the switches of the racks (spine-leaf).")]
PathMtu = Annotated[
    int, typer.Option("--mtu", "--path-mtu", help="RoCE path MTU: 256, 512, 1024, 2048 or 4096.")
]
Name = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Name of the fabric.")]
NameOrCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        envvar="P4REDUCE_CLUSTER",
        help="Which cluster, or the name of the fabric of its own.",
    ),
]
Switch = Annotated[Target, typer.Option(help="What runs the P4 program.")]

Tls = Annotated[
    bool, typer.Option("--tls", help="TLS with certificates between controller, switches and workers.")
]


@dataclass(frozen=True, kw_only=True)
class ItsOwn:
    """The options of a fabric that a command brings up for itself, but for its hosts and its name."""

    rate: Rate = "100mbit"
    uplink_rate: UplinkRate = None
    gpus_per_host: GpusPerHost = 1
    intra_rate: IntraRate = None
    spines: Spines = 2
    leaves: Leaves = 2
    mtu: PathMtu = 4096
    switch: Switch = Target.EMBEDDED
    tls: Tls = False

    def options(self, context: typer.Context, kind: Kind, hosts: str) -> FabricOptions:
        """Return the fabric's options. Raise BadParameter if they make no sense.

        A fabric without a given name is named after the command and this process.
        """
        named = context.params["cluster"] if is_given(context, "cluster") else None
        common: dict[str, Any] = {
            "name": named or f"{context.info_name}-{os.getpid()}",
            "switch": self.switch,
            "path_mtu": self.mtu,
            "rate_mbit": parse_rate(self.rate),
            "gpus_per_host": self.gpus_per_host,
            "intra_rate_mbit": parse_intra_rate(self.intra_rate),
            "tls": self.tls,
        }
        options: FabricOptions
        if kind is Kind.SPINE_LEAF:
            options = SpineLeafOptions(
                spines=self.spines,
                leaves=self.leaves,
                hosts=parse_host_counts(hosts, leaves=self.leaves),
                uplink_rate_mbit=parse_uplink_rate(self.uplink_rate),
                **common,
            )
        elif self.uplink_rate is not None:
            raise typer.BadParameter("--uplink-rate is of spine-leaf fabrics: a rack has no uplinks")
        elif not hosts.strip().isdigit():
            raise typer.BadParameter(f"{hosts!r} is no number of hosts: a rack has 2 to 32")
        else:
            options = RackOptions(hosts=int(hosts), **common)
        options.validate()
        return options


OF_ITS_OWN = tuple(field.name for field in fields(ItsOwn))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its dataclasses of options as parameters of its own."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group: Any = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            parameters += inspect.signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    vars(called)["__signature__"] = signature.replace(parameters=parameters)
    return called


def gpus_per_host(options: FabricOptions | None, cluster: str | None) -> int:
    """Return the GPUs of a host in a fabric of the command's own, or in the running cluster.

    Return 1 if no cluster runs: `running` reports that.
    """
    if options is not None:
        return options.gpus_per_host
    with suppress(TopologyError):
        return state.controlled(cluster).gpus_per_host
    return 1


@contextmanager
def running(options: FabricOptions | None, cluster: str | None, progress: Say) -> Iterator[ClusterState]:
    """Yield a fabric that is brought up for the block, or the running cluster if there are no options."""
    if options is None:
        yield state.controlled(cluster)
        return

    def say(text: str) -> None:
        progress(f"bringing up cluster {options.name}: {text}")

    with Fabric(options, progress=say) as fabric:
        yield fabric.state
