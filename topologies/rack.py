"""One rack: N hosts on one switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topologies import layout
from topologies.options import FabricOptions


@dataclass(frozen=True, kw_only=True)
class RackOptions(FabricOptions):
    """Options of a rack."""

    topology: ClassVar[str] = "rack"

    hosts: int

    def layout(self) -> layout.Layout:
        """Return the rack on paper."""
        return layout.rack(self.hosts)
