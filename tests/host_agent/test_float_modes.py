"""One worker's threads take subnormals for zeros, or round up: no bit of any result changes anywhere."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent import quantisation
from host_agent.communicator import RingFallbackWarning
from host_agent.error_feedback import ErrorFeedback
from host_agent.float_mode import default_float_mode
from host_agent.front import Collectives
from host_agent.quantisation import BFLOAT16
from tests.host_agent.fakes import FakeRack
from tests.host_agent.float_modes import MODES, float_mode
from tests.host_agent.machine.machines import Machines

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the mode is only known of x86-64 and 64-bit Arm"
)

Array = NDArray[Any]
WORLD, ODD = 4, 1  # the rank with another mode
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
SIZES = (60, 3001)  # in the network: whole, and scaled


@cache
def tensors(dtype: np.dtype[Any], size: int, *, special: bool) -> list[Array]:
    """Return all ranks' tensors: subnormals, numbers that round, and if `special` some Inf and NaN."""
    rng = np.random.default_rng(size)
    tiny = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}[dtype.name]
    scales = np.ldexp(1.0, rng.choice([tiny, tiny + 4, tiny + 9, -3, 4], size))
    arrays = [(rng.integers(-255, 256, size) * scales).astype(dtype) for _ in range(WORLD)]
    if special:
        arrays[0][::300], arrays[1][3], arrays[2][::300] = np.inf, np.nan, 1.5
    return arrays


def made_in_the_usual_mode() -> None:
    """Make all tensors, which are the same from then on."""
    for size in SIZES:
        for special in (False, True):
            for dtype in (*FLOATS, np.dtype(np.float64)):
                tensors(dtype, size, special=special)


def collectives(odd_mode: str | None) -> Callable[[Collectives], list[bytes]]:
    """Return a function that runs all that adds floats on a worker; rank ODD's is in another mode."""
    made_in_the_usual_mode()

    def work(c: Collectives) -> list[bytes]:
        found: list[bytes] = []
        with float_mode(odd_mode) if odd_mode is not None and c.rank == ODD else nullcontext():
            for size in SIZES:
                for dtype in FLOATS:
                    for special in (False, True):
                        mine = tensors(dtype, size, special=special)[c.rank]
                        for op in ("sum", "avg", "max", "min", "prod"):
                            found.append(c.all_reduce(mine, op).tobytes())
                            found.append(c.all_reduce(mine, op, async_op=True).result().tobytes())
                        padded = np.resize(mine, (WORLD, size))
                        found.append(c.all_gather(c.reduce_scatter(padded, "avg")).tobytes())
                        if dtype == np.float32:
                            found.append(c.all_reduce(mine, "sum", wire="16bit").tobytes())
                            found.append(c.all_reduce(mine, "avg", wire="16bit").tobytes())
                wide = tensors(np.dtype(np.float64), size, special=True)[c.rank]
                found += [c.all_reduce(wide, op).tobytes() for op in ("sum", "avg", "prod")]
        return found

    return work


def results(group: FakeRack | Machines, odd_mode: str | None) -> list[Any]:
    found = group.run(collectives(odd_mode))
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found


def rack(mode: Mode) -> FakeRack:
    return FakeRack(WORLD, mode=mode, reason="no free slots" if mode is Mode.RING else "")


@pytest.fixture(params=[Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
def mode(request: pytest.FixtureRequest) -> Mode:
    """The mode: sums are made in the network or by ring."""
    chosen: Mode = request.param
    return chosen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::host_agent.communicator.RingFallbackWarning")
@pytest.mark.parametrize("odd_mode", MODES)
def test_with_one_gpu_a_machine(mode: Mode, odd_mode: str) -> None:
    usual, odd = results(rack(mode), None), results(rack(mode), odd_mode)
    assert usual == [usual[0]] * WORLD
    assert odd == usual


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "in-turns"])
@pytest.mark.parametrize("odd_mode", MODES)
def test_with_several_gpus_a_machine(mode: Mode, odd_mode: str, pipeline: bool) -> None:
    found = []
    for chosen in (None, odd_mode):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RingFallbackWarning)
            group = Machines(WORLD // 2, 2, mode=mode, pipeline=pipeline)
        try:
            found.append(results(group, chosen))
        finally:
            group.close()
    usual, odd = found
    assert usual == [usual[0]] * WORLD
    assert odd == usual


@pytest.mark.parametrize("odd_mode", MODES)
def test_error_feedback(odd_mode: str) -> None:
    """Check that what rounding leaves is owed in full, subnormals too."""

    def work(chosen: str | None) -> Callable[[Collectives], list[bytes]]:
        def on(c: Collectives) -> list[bytes]:
            feedback, found = ErrorFeedback(), []
            mine = tensors(np.dtype(np.float32), 3001, special=False)[c.rank]
            with float_mode(chosen) if chosen is not None and c.rank == ODD else nullcontext():
                for _ in range(4):
                    found.append(c.all_reduce(mine, wire="16bit", feedback=feedback).tobytes())
                    found.append(feedback.owed.tobytes())
            return found

        return on

    made_in_the_usual_mode()
    usual, odd = rack(Mode.IN_NETWORK).run(work(None)), rack(Mode.IN_NETWORK).run(work(odd_mode))
    assert not [one for one in usual if isinstance(one, Exception)]
    assert odd == usual


@pytest.mark.parametrize("odd_mode", MODES)
def test_the_reference_has_the_same_bits_in_any_mode(odd_mode: str) -> None:
    blocks = quantisation.Blocks(message_elements=1000, block_elements=128)

    def computed(dtype: np.dtype[Any]) -> list[bytes]:
        arrays = tensors(dtype, 3001, special=True)
        made = [quantisation.divide(arrays[0], 3), quantisation.max_abs(arrays[1][1:])]
        made += [quantisation.exponents(arrays[0])]
        for half in (False, True):
            made += quantisation.block_sum(arrays, blocks, half=half, divisor=3)
        for invert in (False, True):
            ordered = quantisation.to_ordered(arrays[1], invert=invert)
            made += [ordered, quantisation.from_ordered(ordered, dtype, invert=invert)]
        return [one.tobytes() for one in made]

    for dtype in FLOATS:
        usual = computed(dtype)  # which makes the tensors
        with float_mode(odd_mode):
            assert computed(dtype) == usual


@pytest.mark.parametrize("odd_mode", MODES)
def test_a_thread_gets_its_mode_back(odd_mode: str) -> None:
    """Check it also if the call raises; threads that were started meanwhile keep their mode."""
    tiny = np.full(4, np.finfo(np.float32).smallest_subnormal, np.float32)

    def computed() -> tuple[float, ...]:
        return (*(tiny + tiny).tolist(), float(np.float32(-1) / np.float32(3)))

    usual = computed()

    @default_float_mode()
    def divide_by_zero() -> float:
        assert computed() == usual
        return 1 / 0

    with float_mode(odd_mode):
        odd = computed()
        assert odd != usual
        with pytest.raises(ZeroDivisionError):
            divide_by_zero()
        assert computed() == odd
        with ThreadPoolExecutor(1) as started:
            assert started.submit(computed).result() == odd
    assert computed() == usual


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::host_agent.communicator.RingFallbackWarning")
@pytest.mark.parametrize("gpus", [1, 2])
def test_with_pytorchs_switch(mode: Mode, gpus: int) -> None:
    torch = pytest.importorskip("torch")
    usual_work = collectives(None)

    def work(c: Collectives) -> list[bytes]:
        if c.rank != ODD:
            return usual_work(c)
        assert torch.set_flush_denormal(True)
        try:
            return usual_work(c)
        finally:
            torch.set_flush_denormal(False)

    found = []
    for chosen in (usual_work, work):
        group = rack(mode) if gpus == 1 else Machines(WORLD // gpus, gpus, mode=mode)
        try:
            found.append(group.run(chosen))
        finally:
            if isinstance(group, Machines):
                group.close()
    usual, odd = found
    assert not [one for one in usual if isinstance(one, Exception)]
    assert odd == usual
