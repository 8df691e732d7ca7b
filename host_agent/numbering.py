"""How many messages one generation of a job may have, and what is done about it.

A switch tells an older message of a slot from a newer one by their numbers, 32-bit serial numbers: it can be
wrong of two that are 2^31 apart. So it sums only those below 2^31 of a generation, and a job gets a new one
long before: the controller hears of the numbers with the heartbeats. Where it is away for so long that
`IN_NETWORK_LIMIT` is reached, what begins after that goes by ring, whose messages are compared with their
neighbours only.

All ranks have the same numbers when a collective begins, so they decide alike.
"""

from __future__ import annotations

from typing import Final

from controller.api.messages import Mode

# What begins below it may have 2^28 messages. A collective has 2^26 and a few: 2^32 - 1 elements at most, of
# which a message holds 64 or more.
IN_NETWORK_LIMIT: Final = 2**31 - 2**28


def mode_of(mode: Mode, numbered: int) -> Mode:
    """The mode of a collective before which a generation of a job in `mode` has so many messages."""
    return Mode.RING if numbered >= IN_NETWORK_LIMIT else mode
