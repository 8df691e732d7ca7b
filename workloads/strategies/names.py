"""The strategies' names, as users type them."""

from __future__ import annotations

from typing import Final

from workloads.errors import WorkloadError

IN_NETWORK: Final = "in-network"
RING: Final = "ring"
HALVING_DOUBLING: Final = "halving-doubling"
PARAMETER_SERVER: Final = "parameter-server"
PARAMETER_SERVER_SWITCH: Final = "parameter-server-switch"
GLOO: Final = "gloo"

ALL: Final = (IN_NETWORK, RING, HALVING_DOUBLING, PARAMETER_SERVER, PARAMETER_SERVER_SWITCH, GLOO)
# Those that run over the connections of the job itself, and not over more of their own.
OF_THE_JOB: Final = (IN_NETWORK, RING, PARAMETER_SERVER_SWITCH)


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
