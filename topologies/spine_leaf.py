"""A spine-leaf fabric: racks whose switches, the leaves, have an uplink to each spine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from topologies import layout
from topologies.errors import TopologyError
from topologies.links import LinkShape
from topologies.options import FabricOptions


@dataclass(frozen=True, kw_only=True)
class SpineLeafOptions(FabricOptions):
    """Options of a spine-leaf fabric: so many `hosts` in all, or a number for each leaf.

    `uplink_rate_mbit`: rate of each link between switches (None: as fast as it goes; "rate": as the hosts').
    """

    topology: ClassVar[str] = "spine-leaf"

    spines: int
    leaves: int
    hosts: int | tuple[int, ...]
    uplink_rate_mbit: float | Literal["rate"] | None = "rate"

    @property
    def hosts_per_leaf(self) -> tuple[int, ...]:
        """The number of hosts on each leaf."""
        if isinstance(self.hosts, int):
            return layout.spread(self.hosts, self.leaves)
        if len(self.hosts) != self.leaves:
            raise TopologyError(f"{len(self.hosts)} numbers of hosts do not fit {self.leaves} leaves")
        return self.hosts

    @property
    def uplink_shape(self) -> LinkShape:
        """Shape of each link between switches."""
        shape = self.link_shape
        rate = shape.rate_mbit if self.uplink_rate_mbit == "rate" else self.uplink_rate_mbit
        return replace(shape, rate_mbit=rate)

    def layout(self) -> layout.Layout:
        """Return the fabric on paper."""
        return layout.spine_leaf(spines=self.spines, hosts=self.hosts_per_leaf)
