"""A worker's part of a soak: collectives of seeded tensors, each result compared with NumPy's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives.plan import Strategy
from host_agent.front import Collectives
from p4reduce.workloads.errors import VerificationError
from p4reduce.workloads.tensors import check, digest, dtype_of, operation_of, tensor

Array = NDArray[Any]
_MOST_MISSING = 3


def run_cases(
    communicator: Collectives,
    *,
    identity: int,
    members: Sequence[int],
    cases: Sequence[dict[str, Any]],
    gpus: int = 1,
) -> dict[str, Any]:
    """Run `cases` as rank `identity` (the rank in the beginning) among `members`, the ranks alive so far.

    `gpus`: so many ranks are of one machine, and live and die together.
    The answer has for each all-reduce the ranks in its sum, and digests of results that all ranks have.
    """
    digests: list[str] = []
    contributors: list[list[int]] = []
    total = 0
    for case in cases:
        source = tensor(
            seed=case["seed"], rank=identity, elements=case["elements"], dtype=dtype_of(case["dtype"])
        )
        total += source.nbytes
        if case["collective"] == "all_reduce":
            result = communicator.all_reduce(source, case["reduction"], strategy=case["strategy"])
            members = _contributors(result, members, case, identity=identity, gpus=gpus)
            contributors.append(list(members))
            digests.append(digest(result))
        else:
            _other(communicator, source, members, case, digests)
    return {
        "digests": digests,
        "contributors": contributors,
        "bytes": total,
        "rank": communicator.rank,
        "world_size": communicator.world_size,
        "retransmissions": communicator.statistics().retransmissions,
    }


def _contributors(
    result: Array, members: Sequence[int], case: dict[str, Any], *, identity: int, gpus: int
) -> Sequence[int]:
    """Find the ranks whose tensors are in a sum: all members, or all but some (not us) that died."""
    for chosen in _subsets(members, identity, gpus):
        if _right(result, chosen, case):
            return chosen
    raise VerificationError(f"a sum is not that of ranks {list(members)}, nor of part of them: {case}")


def _subsets(members: Sequence[int], identity: int, gpus: int) -> Iterator[tuple[int, ...]]:
    others = sorted({member // gpus for member in members} - {identity // gpus})  # machines
    for missing in range(min(_MOST_MISSING, len(others)) + 1):
        for gone in itertools.combinations(others, missing):
            yield tuple(member for member in members if member // gpus not in gone)


def _right(result: Array, ranks: Sequence[int], case: dict[str, Any]) -> bool:
    """Return whether a result is as right as one of the two ways of summing promises.

    A job may have moved between them.
    """
    for strategy in (Strategy.IN_NETWORK, Strategy.RING):
        outcome = check(
            result,
            seed=case["seed"],
            ranks=ranks,
            world_size=len(ranks),
            reduction=operation_of(case["reduction"]),
            strategy=strategy,
        )
        if outcome.passed:
            return True
    return False


def _other(
    communicator: Collectives,
    source: Array,
    members: Sequence[int],
    case: dict[str, Any],
    digests: list[str],
) -> None:
    strategy, kind = case["strategy"], case["collective"]
    if kind == "barrier":
        communicator.barrier()
    elif kind == "reduce":
        found = communicator.reduce(source, 0, case["reduction"], strategy=strategy)
        if found is not None and not _right(found, members, case):
            raise VerificationError(f"a sum at the root is wrong: {case}")
    elif kind == "broadcast":
        result = communicator.broadcast(source, 0, strategy=strategy)
        _require_equal(result, _tensor_of(members[0], case), case)
        digests.append(digest(result))
    elif kind == "all_gather":
        result = communicator.all_gather(source, strategy=strategy)
        _require_equal(result, np.stack([_tensor_of(member, case) for member in members]), case)
        digests.append(digest(result))
    else:
        size = communicator.world_size
        rows = source[: source.size // size * size].reshape(size, -1)
        if not rows.size:
            return
        block = communicator.reduce_scatter(rows, case["reduction"], strategy=strategy)
        whole = communicator.all_reduce(rows, case["reduction"], strategy=strategy)
        _require_close(block[0], whole[communicator.rank], case, size=size)


def _tensor_of(member: int, case: dict[str, Any]) -> Array:
    return tensor(seed=case["seed"], rank=member, elements=case["elements"], dtype=dtype_of(case["dtype"]))


def _require_equal(found: Array, expected: Array, case: dict[str, Any]) -> None:
    if found.shape != expected.shape or found.tobytes() != expected.tobytes():
        raise VerificationError(f"the result is not what the ranks gave: {case}")


def _require_close(found: Array, expected: Array, case: dict[str, Any], *, size: int) -> None:
    """Compare two ways to add: equal for integers, MAX and MIN; else roundings apart. VerificationError."""
    if found.dtype == np.int32 or case["reduction"] in ("max", "min"):
        _require_equal(found, expected, case)
        return
    apart = float(np.max(np.abs(found.astype(np.float64) - expected.astype(np.float64)), initial=0.0))
    largest = float(np.max(np.abs(expected.astype(np.float64)), initial=1.0))
    epsilon = 2.0**-7 if found.dtype.itemsize == 2 else 2.0**-20
    if not apart <= 8 * size * epsilon * max(1.0, largest):  # nor may it be a NaN
        raise VerificationError(f"two ways to the same sum are {apart:g} apart: {case}")
