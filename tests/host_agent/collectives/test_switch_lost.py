"""A switch that forgets everything and only routes: the right sum or an error, never anything else."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.collectives import in_network
from host_agent.collectives.plan import Call
from host_agent.wire.aggregation import Reduction
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.invariant import InvariantError
from p4reduce.simulation.rack import configs, routes_of
from tests.host_agent.rack import Simulation


@settings(max_examples=60, deadline=None)
@given(
    after=st.integers(0, 150),
    seed=st.integers(0, 1000),
    workers=st.integers(2, 4),
    shape=st.sampled_from([(256, 2, 4, 200), (1024, 8, 16, 16 * 256 - 64), (512, 2, 4, 1500)]),
)
def test_raw_contributions_are_never_taken_for_the_sum(
    after: int, seed: int, workers: int, shape: tuple[int, int, int, int]
) -> None:
    """Route what the workers send after `after` packets to their successors as it is."""
    path_mtu, window, packets, size = shape
    rack = configs(workers, window=window, packets=packets, path_mtu=path_mtu)
    simulation = Simulation(rack, seed=seed, faults=Rates(reorder=0.3))
    switch, router = simulation.switch, SwitchModel([], routes_of(rack))
    aggregating, seen = switch.process, 0

    def process(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        nonlocal seen
        seen += 1
        return (router.process if seen > after else aggregating)(port, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "process", process)
        tensors = [np.arange(size, dtype=np.int32) + 1000 * (rank + 1) for rank in range(workers)]
        results = [np.zeros(size, np.int32) for _ in range(workers)]

        def body(rank: int) -> Generator[Any, Any, None]:
            call = Call(rank=rank, world_size=workers, collective=1, reduction=Reduction.SUM)
            yield from in_network.all_reduce(call, tensors[rank], results[rank])

        with suppress(InvariantError):  # not all are done in time: lost, and known to be
            simulation.run(body, limit_s=30)
    expected = np.sum(tensors, axis=0)
    for worker, result in zip(simulation.workers, results, strict=True):
        if worker.done:
            assert np.array_equal(result, expected)
