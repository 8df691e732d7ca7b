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

ALL: Final = (
    IN_NETWORK,
    IN_NETWORK_16BIT,
    RING,
    HALVING_DOUBLING,
    PARAMETER_SERVER,
    PARAMETER_SERVER_SWITCH,
    GLOO,
)
# A switch adds up; all others need nothing of the fabric but forwarding.
IN_THE_SWITCH: Final = frozenset({IN_NETWORK, IN_NETWORK_16BIT, PARAMETER_SERVER_SWITCH})


def strategies_of(text: str) -> tuple[str, ...]:
    """`in-network,ring` or `all`; WorkloadError lists what there is."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return ALL
    for word in words:
        if word not in ALL:
            raise WorkloadError(f"{word!r} is no strategy; there are {', '.join(ALL)}, and all")
        if words.count(word) > 1:
            raise WorkloadError(f"strategy {word} is given twice")
    if not words:
        raise WorkloadError(f"no strategy is given; there are {', '.join(ALL)}, and all")
    return tuple(words)
