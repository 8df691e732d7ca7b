"""Programs of operations, run on simulated links."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_agent.transport import ElementType, EventType, Operation, SwitchOp
from host_agent.wire.aggregation import Reduction
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.rack import Simulation
from tests.host_agent.transport.fabric import ring_configs

FAULTS = st.builds(
    Rates,
    loss=st.sampled_from([0.0, 0.01, 0.1, 0.3]),
    duplicate=st.sampled_from([0.0, 0.05, 0.3]),
    reorder=st.sampled_from([0.0, 0.05, 0.3]),
    corrupt=st.sampled_from([0.0, 0.02]),
)


SEEDS = st.integers(0, 2**32)


PSNS = st.one_of(st.integers(0, 2**24 - 1), st.integers(2**24 - 40, 2**24 - 1))


def switched(
    ranks: int,
    *,
    faults: Rates | None = None,
    seed: int = 0,
    adapters: Container[int] = (),
    drop: Callable[[int, bool, bytes], bool] = lambda rank, outbound, frame: False,
    **how: Any,
) -> Simulation:
    """Return a rack with the switch model, which checks the slot invariant at every claim."""
    configs = ring_configs(ranks, **{"window": 2, "message_packets": 4, **how})
    return Simulation(configs, faults=faults, seed=seed, adapters=adapters, drop=drop)


def contributions(ranks: int, elements: int, seed: int = 0) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    return [random.integers(-(2**31), 2**31, elements, dtype=np.int64).astype(np.int32) for _ in range(ranks)]


@dataclass
class Program:
    """One rank's operations, each posted when the one before is received, and what must come out."""

    rank: int
    operations: list[Operation] = field(default_factory=list)
    expected: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = field(default_factory=list)
    posted: int = 0

    def advance(self, fabric: Simulation) -> bool:
        """Post the next operation if it is time; whether all are received."""
        received = sum(event.type is EventType.RECEIVED for event in fabric.workers[self.rank].events)
        if received == self.posted < len(self.operations):
            fabric.post(self.rank, self.operations[self.posted])
            self.posted += 1
        return received == len(self.operations)


def aggregate(programs: list[Program], op: SwitchOp, elements: int, seed: int) -> None:
    """Let every rank contribute to one SUM or MAX, in place."""
    values = contributions(len(programs), elements, seed)
    expected = np.zeros(elements, np.int32)
    if op is SwitchOp.SUM:
        for value in values:
            expected = expected + value
    else:
        expected = np.max(values, axis=0)
    for program, value in zip(programs, values, strict=True):
        program.operations.append(
            Operation(
                switch_op=op,
                send=value,
                receive=value,
                element_type=ElementType.INT32,
                reduction=Reduction.SUM if op is SwitchOp.SUM else Reduction.MAX,
                collective=seed,
                total_elements=elements,
            )
        )
        program.expected.append((value, expected))


def gather(programs: list[Program], elements: int, seed: int) -> None:
    """Send every rank's array all the way around: N - 1 steps; sizes differ by rank."""
    ranks = len(programs)
    sources = [
        np.resize(value, elements + rank)
        for rank, value in enumerate(contributions(ranks, elements + 1, seed))
    ]
    for program in programs:
        send = sources[program.rank].copy()
        for step in range(1, ranks):
            source = sources[program.rank - step]
            receive = np.zeros_like(source)
            program.operations.append(
                Operation(
                    switch_op=SwitchOp.PASS,
                    send=send,
                    receive=receive,
                    element_type=ElementType.INT32,
                    reduction=Reduction.NONE,
                    collective=seed,
                    total_elements=elements,
                    cut_elements=elements + ranks,
                )
            )
            program.expected.append((receive, source))
            send = receive


def programs_of(ranks: int, kinds: list[str], elements: int) -> list[Program]:
    """Return programs of one collective of each kind, in order: "sum", "max" or "gather"."""
    programs = [Program(rank) for rank in range(ranks)]
    for number, kind in enumerate(kinds):
        if kind == "gather":
            gather(programs, elements, number)
        else:
            aggregate(programs, SwitchOp.SUM if kind == "sum" else SwitchOp.MAX, elements, number)
    return programs


def run(fabric: Simulation, programs: list[Program], *, limit_s: float = 1000.0) -> None:
    """Run to the end; every result is exact, everything is acknowledged."""

    def over() -> bool:
        fabric.completed(0)  # raises failures
        over_by_rank = [program.advance(fabric) for program in programs]
        return all(over_by_rank)

    fabric.until(over, limit_s=limit_s)
    last = len(programs[0].operations)
    fabric.until(lambda: fabric.completed(last), limit_s=limit_s)
    for program in programs:
        for result, expected in program.expected:
            assert np.array_equal(result, expected)
