"""One rank's threads take subnormals for zeros, or round up: all ranks have the same, right bits."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from host_agent import kernels
from host_agent.wire.aggregation import Reduction
from p4reduce.simulation.cases import DTYPES, REDUCTIONS, Case
from p4reduce.simulation.rack import configs
from tests.host_agent.float_modes import MODES, InMode, float_mode
from tests.host_agent.rack import Simulation, check, program

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the mode is only known of x86-64 and 64-bit Arm"
)

WORLD = 3
ODD = 1  # the rank with another mode
SIZES = {"whole": 300, "scaled": 3000}  # in the network: with, and without agreeing on a scale


class Tiny(Case):
    """Tensors around the smallest normal number, or of subnormals alone."""

    def inputs(self, world_size: int, seed: int) -> list[NDArray[Any]]:
        if self.dtype == np.int32:
            return super().inputs(world_size, seed)
        rng = np.random.default_rng(seed)
        bits = 8 * self.dtype.itemsize
        below = {2: 0x0900, 4: 0x01200000}[self.dtype.itemsize]  # a few powers of two above subnormals
        if seed % 2:
            below = int(np.finfo(np.float32).tiny.view(np.uint32)) >> (32 - bits)
            below = min(below, {"float16": 0x0400, "bfloat16": 0x0080}.get(self.dtype.name, below))
        size = self.elements * world_size if self.name == "reduce_scatter" else self.elements
        arrays = []
        for _ in range(world_size):
            signs = rng.integers(0, 2, size) << (bits - 1)
            arrays.append((rng.integers(0, below, size) | signs).astype(f"u{bits // 8}").view(self.dtype))
        return arrays


def results(case: Case, seed: int, mode: str | None) -> list[bytes]:
    """Return what each rank has, bit for bit, when rank ODD runs in `mode`."""
    inputs = [case.inputs(WORLD, seed)]
    outputs = [[case.output(WORLD) for _ in range(WORLD)]]
    sim = Simulation(configs(WORLD, path_mtu=1024))
    if mode is not None:
        odd = sim.workers[ODD]
        odd.endpoint = InMode(odd.endpoint, mode)  # type: ignore[assignment]
        advance = odd.advance

        def in_mode(now_ns: int) -> None:
            with float_mode(mode):
                advance(now_ns)

        odd.advance = in_mode  # type: ignore[method-assign]
    try:
        sim.run(program([case], inputs, outputs))
        assert [worker.failure for worker in sim.workers] == [None] * WORLD
    finally:
        sim.close()
    check(case, inputs[0], outputs[0])
    return [out.tobytes() for out in outputs[0]]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [0, 1], ids=["around-subnormals", "subnormals"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("module", ["in_network", "ring"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name)
def test_one_ranks_mode_changes_no_bit(
    module: str, dtype: np.dtype[Any], reduction: Reduction, size: str, seed: int, mode: str
) -> None:
    case = Tiny(module, "all_reduce", dtype, SIZES[size], reduction)
    assert results(case, seed, mode) == results(case, seed, None)


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_gets_its_mode_back(mode: str) -> None:
    def computed() -> tuple[float, ...]:
        return (*(tiny + tiny).tolist(), float(np.float32(-1) / np.float32(3)))

    tiny = np.full(4, np.finfo(np.float32).smallest_subnormal, np.float32)
    usual = computed()
    with float_mode(mode):
        odd = computed()
        assert odd != usual
        kernels.divide_in_place(np.ones(9, np.float32), 3)
        assert computed() == odd
    assert computed() == usual
