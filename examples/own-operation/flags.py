"""A worker whose flags the switch puts together: python3 flags.py RANK WORLD_SIZE

It takes what bitwise-or.patch adds. Each rank knows of some experts that they are busy, one bit for each.
After an all-reduce with "bor" every rank knows what any knows. Prints whether NumPy makes the same of them.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from p4reduce import Communicator

EXPERTS = 1_000_000
CONTROLLER = "172.31.255.254:50051"


def flags_of(rank: int) -> NDArray[np.int32]:
    """Return one bit for each expert, 32 in a word; this rank says that a quarter of them are busy."""
    busy = np.random.default_rng(rank).random(EXPERTS) < 0.25
    return np.packbits(busy).view(np.int32)


def main(rank: int, world_size: int) -> bool:
    expected = np.bitwise_or.reduce([flags_of(each) for each in range(world_size)])
    right = True
    with Communicator.join(CONTROLLER, job="flags", rank=rank, world_size=world_size) as comm:
        for strategy in ("in-network", "ring"):
            result = comm.all_reduce(flags_of(rank), "bor", strategy=strategy)
            same = result.tobytes() == expected.tobytes()
            busy = int(np.unpackbits(result.view(np.uint8)).sum())
            verdict = "as" if same else "NOT AS"
            print(f"rank {rank}, {strategy}: {busy} of {EXPERTS} busy, {verdict} NumPy has it")
            right &= same
    return right


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]), int(sys.argv[2])))
