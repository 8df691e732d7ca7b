"""Tensors in, tensors out."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest

from host_agent.errors import UsageError
from host_agent.tensors import Mapped
from tests.host_agent.fakes import FakeRack

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def rack() -> FakeRack:
    return FakeRack(3)


@pytest.mark.parametrize("name", ["int32", "float32", "float16", "bfloat16", "int64", "float64"])
def test_a_sum_of_tensors_is_a_tensor(rack: FakeRack, name: str) -> None:
    dtype = getattr(torch, name)
    inputs = [torch.full((2, 5), rank + 1, dtype=dtype) for rank in range(3)]
    for result in rack.run(lambda c: c.all_reduce(inputs[c.rank])):
        assert isinstance(result, torch.Tensor)
        assert result.dtype is dtype
        assert result.tolist() == [[6] * 5] * 2
    assert [int(one[0, 0]) for one in inputs] == [1, 2, 3], "as they were"


def test_in_place(rack: FakeRack) -> None:
    inputs = [torch.full((10,), float(rank), dtype=torch.bfloat16) for rank in range(3)]
    results = rack.run(lambda c: c.all_reduce(inputs[c.rank], out=inputs[c.rank]))
    assert all(result is given for result, given in zip(results, inputs, strict=True))
    assert [one.tolist() for one in inputs] == [[3.0] * 10] * 3


def test_the_other_collectives(rack: FakeRack) -> None:
    rows = rack.run(lambda c: c.all_gather(torch.tensor([c.rank, 7])))
    assert all(one.tolist() == [[0, 7], [1, 7], [2, 7]] for one in rows)
    assert rows[0].dtype is torch.int64
    got = rack.run(lambda c: c.broadcast(torch.tensor([c.rank == 1, False]), root=1))
    assert all(one.tolist() == [True, False] for one in got)
    sums = rack.run(lambda c: c.reduce(array=torch.ones(4), root=2))
    assert sums[:2] == [None, None]
    assert sums[2].tolist() == [3.0] * 4
    parts = rack.run(lambda c: c.reduce_scatter(torch.arange(3, dtype=torch.float32)))
    assert [one.tolist() for one in parts] == [[0.0], [3.0], [6.0]]


def test_futures(rack: FakeRack) -> None:
    def work(c: Any) -> Any:
        future = c.all_reduce(torch.ones(4, requires_grad=True), async_op=True)
        return future.result(20), future.done(), future.cancel()

    for result, done, cancelled in rack.run(work):
        assert result.tolist() == [3.0] * 4
        assert not result.requires_grad
        assert (done, cancelled) == (True, False)


def test_a_future_that_fails_or_is_cancelled() -> None:
    failed: Future[Any] = Future()
    mapped = Mapped(failed, torch.from_numpy)
    failed.set_exception(UsageError("the test"))
    assert str(mapped.exception(20)) == "the test"
    waiting: Future[Any] = Future()
    mapped = Mapped(waiting, torch.from_numpy)
    assert mapped.cancel()
    assert waiting.cancelled()
    assert mapped.cancelled()
    assert wait([mapped], 20).done == {mapped}


def test_arrays_stay_arrays(rack: FakeRack) -> None:
    for result in rack.run(lambda c: c.all_reduce(np.ones(3, np.float32))):
        assert isinstance(result, np.ndarray)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"array": np.ones(3, np.float32), "out": torch.ones(3)}, "out is a tensor, but"),
        ({"array": torch.ones(3), "out": np.ones(3, np.float32)}, "out is no tensor, but"),
        ({"array": torch.ones(3), "out": torch.ones(6)[::2]}, "out has to be a contiguous tensor on the CPU"),
        ({"array": torch.ones(3).to_sparse()}, "call to_dense"),
        ({"array": torch.ones(3, dtype=torch.complex64)}, "dtype complex64 cannot be reduced"),
        ({"array": torch.ones(3).to(torch.float8_e4m3fn)}, "tensors of torch.float8_e4m3fn cannot be sent"),
    ],
)
def test_what_cannot_be(rack: FakeRack, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rack.communicators[0].all_reduce(**arguments)
