"""Connections of a job's workers, and a switch that knows no job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from host_agent.transport import TransportConfig
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.simulation.rack import configs as configs_of
from p4reduce.simulation.rack import routes_of


def ring_configs(
    ranks: int,
    *,
    window: int = 2,
    message_packets: int = 4,
    first_psns: Sequence[int] | None = None,
    **how: Any,
) -> list[TransportConfig]:
    """Return the configurations that a controller would hand out to the workers of one job."""
    psns = list(first_psns) if first_psns is not None else [1000 * (rank + 1) for rank in range(ranks)]
    return configs_of(ranks, window=window, packets=message_packets, psns=psns, **how)


def router(configs: list[TransportConfig]) -> SwitchModel:
    """Return a switch that forwards by destination address."""
    return SwitchModel([], routes_of(configs))
