"""The strategies' names, as users type them."""

from __future__ import annotations

from typing import Final

from p4reduce.workloads.errors import WorkloadError

IN_NETWORK: Final = "in-network"
IN_NETWORK_16BIT: Final = "in-network-16bit"  # float32 over a wire of 16 bits
RING: Final = "ring"
HALVING_DOUBLING: Final = "halving-doubling"
PARAMETER_SERVER: Final = "parameter-server"
PARAMETER_SERVER_SWITCH: Final = "parameter-server-switch"
GLOO: Final = "gloo"
# Of hosts with several GPUs (p4reduce/workloads/hierarchy.py).
HIERARCHICAL: Final = "hierarchical"  # in the network, pieces in a pipeline
HIERARCHICAL_PHASES: Final = "hierarchical-phases"  # the same, one phase after the other
HIERARCHICAL_RING: Final = "hierarchical-ring"
FLAT_RING: Final = "flat-ring"
REDUCE_BROADCAST: Final = "reduce-broadcast"

ALL: Final = (
    IN_NETWORK,
    IN_NETWORK_16BIT,
    RING,
    HALVING_DOUBLING,
    PARAMETER_SERVER,
    PARAMETER_SERVER_SWITCH,
    GLOO,
)
BY_PLANES: Final = frozenset({HIERARCHICAL, HIERARCHICAL_PHASES, HIERARCHICAL_RING})
OF_SEVERAL_GPUS: Final = (HIERARCHICAL, HIERARCHICAL_PHASES, HIERARCHICAL_RING, FLAT_RING, REDUCE_BROADCAST)
# A switch adds up; all others need nothing of the fabric but forwarding.
IN_THE_SWITCH: Final = frozenset(
    {IN_NETWORK, IN_NETWORK_16BIT, PARAMETER_SERVER_SWITCH, HIERARCHICAL, HIERARCHICAL_PHASES}
)


_HOSTS: Final = {ALL: "one GPU", OF_SEVERAL_GPUS: "several GPUs"}


def strategies_of(text: str, there: tuple[str, ...] = ALL) -> tuple[str, ...]:
    """Parse `in-network,ring` or `all`; WorkloadError lists the strategies that are there."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return there
    for word in words:
        if word not in there:
            hosts = next((gpus for names, gpus in _HOSTS.items() if word in names and there in _HOSTS), None)
            if hosts is not None:
                raise WorkloadError(
                    f"strategy {word} is for hosts with {hosts} (--gpus-per-host); "
                    f"here there are {', '.join(there)}, and all"
                )
            raise WorkloadError(f"{word!r} is no strategy; there are {', '.join(there)}, and all")
        if words.count(word) > 1:
            raise WorkloadError(f"strategy {word} is given twice: leave one out")
    if not words:
        raise WorkloadError(f"no strategy is given; there are {', '.join(there)}, and all")
    return tuple(words)
