"""Process groups, call by call: the right result in the right tensors, and sentences where there is none."""

from __future__ import annotations

import gc
import os
import threading
import traceback
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

import torch.distributed as dist

from host_agent.errors import MismatchError, UsageError
from p4reduce.torch import process_group
from p4reduce.torch.group import Options
from p4reduce.torch.process_group import P4ReduceProcessGroup, create
from tests.p4reduce.torch.ranks import CONTROLLER, Ranks

SUMMED = [torch.float32, torch.float16, torch.bfloat16, torch.int32]
OTHERS = [torch.float64, torch.int64, torch.uint8, torch.int8, torch.bool]


def of(rank: int, dtype: Any = torch.float32, shape: tuple[int, ...] = (3, 5)) -> Any:
    """Return small whole numbers, others on each rank."""
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 + 10 * rank).to(dtype)


def options(kind: Any, op: Any = None, root: int = 0) -> Any:
    made = kind()
    if op is not None:
        made.reduceOp = op
    if hasattr(made, "rootRank"):
        made.rootRank = root
    return made


def reduced(op: str, values: list[Any]) -> Any:
    stacked = torch.stack([value.double() for value in values])
    by_name = {"SUM": stacked.sum(0), "AVG": stacked.mean(0), "MAX": stacked.amax(0), "MIN": stacked.amin(0)}
    return by_name[op].to(values[0].dtype)


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX", "MIN"])
def test_all_reduce_in_the_network(dtype: Any, op: str) -> None:
    ranks = Ranks(2)

    def work(group: P4ReduceProcessGroup) -> Any:
        tensor = of(group.rank(), dtype)
        group.allreduce(
            [tensor], options(dist.AllreduceOptions, dist.ReduceOp.RedOpType.__members__[op])
        ).wait()
        assert not group.group.by_gloo
        return tensor

    expected = reduced(op, [of(0, dtype), of(1, dtype)])
    for result in ranks.run(work):
        assert torch.equal(result, expected)
    assert ranks.joined == {"job": {0, 1}}


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_what_no_switch_adds_is_added_by_gloo(dtype: Any) -> None:
    def work(group: P4ReduceProcessGroup) -> Any:
        tensor = of(group.rank(), dtype)
        group.allreduce([tensor], options(dist.AllreduceOptions, dist.ReduceOp.SUM)).wait()
        assert len(group.group.by_gloo) == 1
        return tensor

    a, b = of(0, dtype), of(1, dtype)
    for result in Ranks(2).run(work):
        assert torch.equal(result, a | b if dtype == torch.bool else a + b)


SHAPES = {
    "0-dim": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
    "one": torch.ones(1),
    "odd": torch.arange(1001.0),
    "a slice": torch.arange(40.0).reshape(8, 5)[::2, 1:4],
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "channels last": torch.arange(48.0).reshape(2, 3, 4, 2).contiguous(memory_format=torch.channels_last),
    "with a gradient": torch.ones(5, requires_grad=True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_strides(shape: str) -> None:
    whole = SHAPES[shape]

    def work(group: P4ReduceProcessGroup) -> None:
        tensor = whole.detach().clone(memory_format=torch.preserve_format)
        if shape == "a slice":
            tensor = torch.arange(40.0).reshape(8, 5)[::2, 1:4]
        tensor.requires_grad_(whole.requires_grad)
        strides = tensor.stride()
        group.allreduce([tensor], options(dist.AllreduceOptions, dist.ReduceOp.SUM)).wait()
        assert torch.equal(tensor, 2 * whole)
        group.broadcast([tensor], options(dist.BroadcastOptions, root=1)).wait()
        assert torch.equal(tensor, 2 * whole)
        outputs = [torch.zeros_like(whole) for _ in range(2)]
        group.allgather([outputs], [tensor]).wait()
        assert all(torch.equal(output, 2 * whole) for output in outputs)
        assert tensor.stride() == strides

    assert Ranks(2).run(work) == [None, None]


@pytest.mark.parametrize("dtype", [*SUMMED, *OTHERS, torch.complex64, torch.int16], ids=str)
def test_bytes_of_any_type_are_copied(dtype: Any) -> None:
    def work(group: P4ReduceProcessGroup) -> None:
        rank = group.rank()
        tensor = of(rank, dtype)
        group.broadcast([tensor], options(dist.BroadcastOptions, root=1)).wait()
        assert torch.equal(tensor, of(1, dtype))
        row = torch.zeros(2, 3, 5, dtype=dtype)
        group.all_gather_single(row, of(rank, dtype)).wait()
        assert torch.equal(row, torch.stack([of(0, dtype), of(1, dtype)]))
        lists = [[torch.zeros(3, 5, dtype=dtype), torch.zeros(2, dtype=dtype)] for _ in range(2)]
        group.allgather_coalesced(lists, [of(rank, dtype), of(rank, dtype, (2,))]).wait()
        for other, (large, small) in enumerate(lists):
            assert torch.equal(large, of(other, dtype))
            assert torch.equal(small, of(other, dtype, (2,)))
        assert not group.group.by_gloo

    assert Ranks(2).run(work) == [None, None]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8], ids=str)
def test_averages_of_integers_are_rounded_towards_zero_whichever_way_they_go(dtype: Any) -> None:
    def work(group: P4ReduceProcessGroup) -> list[list[int]]:
        average = dist.ReduceOp.AVG
        mine = torch.tensor([7, -7, 2, -3], dtype=dtype) * (1 if group.rank() else 2)
        everywhere, at_root, part = mine.clone(), mine.clone(), torch.zeros(2, dtype=dtype)
        own = options(dist.AllreduceOptions, average)
        for _ in range(2):  # options stay as they were
            everywhere = mine.clone()
            group.allreduce([everywhere], own).wait()
        group.reduce([at_root], options(dist.ReduceOptions, average)).wait()
        group.reduce_scatter_single(part, mine, options(dist.ReduceScatterOptions, average)).wait()
        return [everywhere.tolist(), at_root.tolist(), part.tolist()]

    first, second = Ranks(2).run(work)
    average = [10, -10, 3, -4]  # of 21, -21, 6 and -9
    assert first == [average, average, average[:2]]
    assert (second[0], second[2]) == (average, average[2:])  # Gloo adds up in who is not the root, too


@pytest.mark.parametrize("later", [False, True])
def test_sparse_tensors_go_by_gloo(later: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks may have other places and other numbers of them."""

    def work(group: P4ReduceProcessGroup) -> tuple[Any, Any]:
        rows = torch.zeros(4, 2)
        rows[group.rank()], rows[3] = 1.0, 10.0 ** group.rank()
        tensor = rows.to_sparse()
        how = options(dist.AllreduceOptions)
        how.asyncOp = later
        group.allreduce([tensor], how).wait()
        return tensor.to_dense().tolist(), dict(group.group.by_gloo)

    expected = [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [11.0, 11.0]]
    assert Ranks(2).run(work) == [(expected, {"all_reduce sparse float32 SUM": 1})] * 2
    assert caplog.text.count("all_reduce sparse float32 SUM goes by Gloo") == 1  # by rank 0


@pytest.fixture
def two_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.usefixtures("two_a_machine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_a_group_of_uneven_machines_goes_by_gloo(dtype: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Three ranks, two of them on one machine: each collective is right, and a note is said once."""
    ranks = Ranks(3)

    def work(rank: int) -> list[Any]:
        group = ranks.group(rank, name="7", ranks=[0, 1, 2])
        summed, own, sent = of(rank, dtype), of(rank, dtype), of(rank, dtype)
        group.allreduce([summed], options(dist.AllreduceOptions)).wait()
        group.broadcast([sent], options(dist.BroadcastOptions, root=1)).wait()
        rows = [torch.zeros(5, 3).to(dtype).t() for _ in range(3)]
        group.allgather([rows], [own]).wait()
        joined = torch.zeros(9, 5).to(dtype)
        group.all_gather_single(joined, own).wait()
        group.allgather([[torch.empty(0)] * 3], [torch.empty(0)]).wait()
        part = torch.zeros(1, 5).to(dtype)
        group.reduce_scatter_single(part, own, options(dist.ReduceScatterOptions)).wait()
        group.barrier().wait()
        assert group.group.by_gloo["barrier"] == 1
        group.shutdown()
        return [summed, sent, torch.cat(rows), joined, part]

    whole = [of(rank, dtype) for rank in range(3)]
    total = sum(one.double() for one in whole).to(dtype)
    results = ranks.each(work)
    for rank, (summed, sent, rows, joined, part) in enumerate(results):
        assert torch.equal(summed, total)
        assert torch.equal(sent, whole[1])
        assert torch.equal(rows, torch.cat(whole))
        assert torch.equal(joined, torch.cat(whole))
        assert torch.equal(part, total[rank : rank + 1])
    assert not ranks.joined
    assert [record.getMessage() for record in caplog.records] == [
        "process group 7: not all machines (of 2 ranks) have as many of its ranks 0, 1, 2, one machine after "
        "the other: it goes by Gloo over TCP"
    ]


@pytest.mark.usefixtures("two_a_machine")
def test_what_an_uneven_group_waits_for_ends_with_the_default_groups_job() -> None:
    """Gloo itself would wait for the rank that does not come."""
    ranks = Ranks(4)

    def work(rank: int) -> str:
        everybody = ranks.group(rank)
        if rank == 3:
            everybody.barrier().wait()
            return ""
        group = ranks.group(rank, name="7", ranks=[0, 1, 2])
        everybody.barrier().wait()
        if rank == 2:
            everybody.group.abort("it is enough")
            return ""
        with pytest.raises(UsageError) as error:
            group.allreduce([torch.ones(3)]).wait()
        return str(error.value)

    *said, _, _ = ranks.each(work)
    assert all("process group 7 was aborted" in one and "it is enough" in one for one in said)


@pytest.mark.usefixtures("two_a_machine")
def test_a_default_group_of_uneven_machines_is_refused() -> None:
    """Check that it is, as there would be no job; machines may each be told another number of ranks."""

    def work(group: P4ReduceProcessGroup) -> None:
        raise AssertionError("it was made")

    for error in Ranks(3).run(work):
        assert isinstance(error, UsageError)
        assert "not all machines (of 2 ranks) have as many of its ranks 0, 1, 2" in str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_reduce_and_reduce_scatter(dtype: Any) -> None:
    def work(group: P4ReduceProcessGroup) -> None:
        rank = group.rank()
        total = of(0, dtype, (4,)) + of(1, dtype, (4,))
        tensor = of(rank, dtype, (4,))
        group.reduce([tensor], options(dist.ReduceOptions, dist.ReduceOp.SUM, root=1)).wait()
        if rank == 1:
            assert torch.equal(tensor, total)
        part = torch.zeros(2, dtype=dtype)
        how = options(dist.ReduceScatterOptions, dist.ReduceOp.SUM)
        group.reduce_scatter_single(part, of(rank, dtype, (4,)), how).wait()
        assert torch.equal(part, total[2 * rank : 2 * rank + 2])
        part.zero_()
        group.reduce_scatter([part], [list(of(rank, dtype, (4,)).split(2))], how).wait()
        assert torch.equal(part, total[2 * rank : 2 * rank + 2])

    assert Ranks(2).run(work) == [None, None]


def test_several_tensors_in_one_call() -> None:
    def work(group: P4ReduceProcessGroup) -> None:
        tensors = [of(group.rank(), shape=(n,)) for n in (1, 700, 3)]
        how = options(dist.AllreduceCoalescedOptions, dist.ReduceOp.SUM)
        found = group.allreduce_coalesced(tensors, how).get_future().wait()
        for tensor, n in zip(found, (1, 700, 3), strict=True):
            assert torch.equal(tensor, of(0, shape=(n,)) + of(1, shape=(n,)))

    assert Ranks(2).run(work) == [None, None]


def test_float32_over_16_bits_where_the_options_say_so() -> None:
    ranks = Ranks(2, options=Options(controller=CONTROLLER, job="job", wire="16bit"))

    def work(group: P4ReduceProcessGroup) -> int:
        communicator = group.group.communicator
        assert communicator is not None
        before = communicator.counters().data_bytes_sent
        group.allreduce([torch.ones(50_000)], options(dist.AllreduceOptions, dist.ReduceOp.SUM)).wait()
        group.allreduce([torch.ones(9)], options(dist.AllreduceOptions, dist.ReduceOp.MAX)).wait()
        return communicator.counters().data_bytes_sent - before

    assert all(100_000 < sent < 140_000 for sent in ranks.run(work))  # 200,000 and headers in full


def test_in_their_own_memory() -> None:
    """A contiguous tensor is not copied."""
    seen: list[int] = []

    class Watched(Ranks):
        def join(self, *args: Any, **asked: Any) -> Any:
            communicator = super().join(*args, **asked)
            real = communicator.all_reduce

            def all_reduce(array: Any, *more: Any, **how: Any) -> Any:
                seen.extend([array.ctypes.data, how["out"].ctypes.data])
                return real(array, *more, **how)

            communicator.all_reduce = all_reduce  # type: ignore[assignment]
            return communicator

    tensors = [torch.ones(1000), torch.ones(1000)]

    def work(group: P4ReduceProcessGroup) -> None:
        group.allreduce([tensors[group.rank()]], options(dist.AllreduceOptions, dist.ReduceOp.SUM)).wait()

    assert Watched(2).run(work) == [None, None]
    assert sorted(seen) == sorted(2 * [tensor.data_ptr() for tensor in tensors])


def test_a_tensor_can_be_resized_afterwards() -> None:
    """FSDP frees storages and makes them anew."""

    def work(group: P4ReduceProcessGroup) -> None:
        how = options(dist.AllreduceOptions, dist.ReduceOp.SUM)
        summed, given, gathered = torch.ones(8), torch.ones(8), torch.zeros(16)
        group.allreduce([summed], how).wait()
        group.broadcast([summed], options(dist.BroadcastOptions)).wait()
        group.all_gather_single(gathered, given).wait()
        for tensor in (summed, given, gathered):
            tensor.untyped_storage().resize_(0)

    assert Ranks(2).run(work) == [None, None]


def test_a_group_joins_its_job_at_its_first_collective_in_any_order() -> None:
    """Two groups of the same ranks, which each rank uses in another order without waiting."""
    ranks = Ranks(2)

    def work(rank: int) -> list[float]:
        groups = {name: ranks.group(rank, name=name, ranks=[0, 1]) for name in ("a", "b")}
        assert not any(rank in ranks.joined.get(f"job/{name}", ()) for name in groups)
        order = ["a", "b"] if rank == 0 else ["b", "a"]
        tensors = {name: torch.full((4,), rank + 1.0) for name in groups}
        how = options(dist.AllreduceOptions, dist.ReduceOp.SUM)
        works = [groups[name].allreduce([tensors[name]], how) for name in order for _ in range(3)]
        for one in works:
            one.wait()
        for group in groups.values():
            group.shutdown()
        return [float(tensors[name][0]) for name in "ab"]

    assert ranks.each(work) == [[12.0, 12.0], [12.0, 12.0]]
    assert ranks.joined == {"job:a": {0, 1}, "job:b": {0, 1}}


def test_what_is_received_into_gaps_is_put_there() -> None:
    def work(group: P4ReduceProcessGroup) -> Any:
        if group.rank() == 0:
            group.send([torch.arange(6.0)], 1, 0).wait()
            group.send([torch.arange(6).to(torch.int16)], 1, 0).wait()
            return None
        room = torch.zeros(6, 2)
        work = group.recv([room[:, 1]], 0, 0)
        assert work.wait()
        assert work.is_completed()
        assert work.source_rank() == 0
        room[0, 1] = 7.0
        assert work.wait()  # nothing is put there again
        assert room[0, 1] == 7.0
        room[0, 1] = 0.0
        shorts = torch.zeros(12, dtype=torch.int16)
        group.recv_anysource([shorts[::2]], 0).wait()
        return room, shorts

    _, (room, shorts) = Ranks(2).run(work)
    assert room.tolist() == [[0.0, float(number)] for number in range(6)]
    assert shorts.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]


def test_a_rank_may_have_nothing_to_exchange() -> None:
    def work(group: P4ReduceProcessGroup) -> Any:
        given = torch.full((3 * group.rank(), 2), 5, dtype=torch.int16)
        taken = torch.zeros((3 * group.rank(), 2), dtype=torch.int16)
        sizes = [0, 3] if group.rank() else [0, 0]
        group.all_to_all_single(taken, given, sizes, sizes).wait()
        return taken

    nothing, taken = Ranks(2).run(work)
    assert nothing.shape == (0, 2)
    assert torch.equal(taken, torch.full((3, 2), 5, dtype=torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_views_that_are_negative_or_conjugate(dtype: Any) -> None:
    """Check views whose memory holds other values than they show."""
    how = options(dist.AllreduceOptions, dist.ReduceOp.MAX)

    def work(group: P4ReduceProcessGroup) -> Any:
        tensor = torch._neg_view(torch.tensor([1.0 + group.rank(), -3.0], dtype=dtype))
        group.allreduce([tensor], how).wait()
        outputs = [[torch.zeros(2, dtype=dtype) for _ in range(2)]] if group.rank() == 0 else []
        group.gather(outputs, [torch._neg_view(torch.ones(2, dtype=dtype))], dist.GatherOptions()).wait()
        return tensor.tolist(), [one.tolist() for row in outputs for one in row]

    first, second = Ranks(2).run(work)
    assert first == ([-1.0, 3.0], [[-1.0, -1.0], [-1.0, -1.0]])
    assert second[0] == [-1.0, 3.0]


def test_a_group_of_one_refuses_what_two_would() -> None:
    how = options(dist.AllreduceOptions, dist._make_nccl_premul_sum(3.0))
    (error,) = Ranks(1).run(lambda group: group.allreduce([torch.ones(2)], how).wait())
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float8_e4m3fn], ids=str)
def test_a_group_of_one_has_no_job(dtype: Any) -> None:
    ranks = Ranks(1)

    def work(group: P4ReduceProcessGroup) -> None:
        tensor = of(0, dtype)
        group.allreduce([tensor], options(dist.AllreduceOptions, dist.ReduceOp.SUM)).wait()
        group.broadcast([tensor], options(dist.BroadcastOptions)).wait()
        outputs = [torch.zeros(3, 5, dtype=dtype)]
        group.allgather([outputs], [tensor]).wait()
        group.barrier().wait()
        part = torch.zeros(3, 5, dtype=dtype)
        group.reduce_scatter_single(
            part, tensor, options(dist.ReduceScatterOptions, dist.ReduceOp.SUM)
        ).wait()
        for found in (tensor, outputs[0], part):
            assert torch.equal(found.view(torch.uint8), of(0, dtype).view(torch.uint8))

    assert ranks.run(work) == [None]
    assert not ranks.joined


def test_groups_that_are_made_again_have_other_jobs() -> None:
    ranks = Ranks(2)
    how = options(dist.AllreduceOptions, dist.ReduceOp.SUM)
    for _ in range(3):
        assert ranks.run(lambda group: group.allreduce([torch.ones(2)], how).wait()) == [True, True]
    assert list(ranks.joined) == ["job", "job@2", "job@3"]


def test_calls_that_differ_are_an_error_on_all_ranks() -> None:
    def work(group: P4ReduceProcessGroup) -> None:
        how = options(dist.AllreduceOptions, dist.ReduceOp.SUM)
        group.allreduce([torch.ones(5000 + group.rank())], how).wait()

    for error in Ranks(2).run(work):
        assert isinstance(error, MismatchError)
        told = "".join(traceback.format_exception(error))
        assert "execution.py" not in told  # only who called, and the sentence
        assert "direct cause" not in told


SPARSE = [
    lambda g: g.gather([], [torch.ones(3).to_sparse()], options(dist.GatherOptions)),
    lambda g: g.scatter([torch.ones(3).to_sparse()], [], options(dist.ScatterOptions)),
    lambda g: g.alltoall([torch.ones(1)] * 2, [torch.ones(1).to_sparse()] * 2),
    lambda g: g.all_to_all_single(torch.ones(2), torch.ones(2).to_sparse(), [], []),
    lambda g: g.send([torch.ones(3).to_sparse()], 1 - g.rank(), 0),
    lambda g: g.recv([torch.ones(3).to_sparse()], 1 - g.rank(), 0),
    lambda g: g.recv_anysource([torch.ones(3).to_sparse()], 0),
]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda g: g.allreduce(
                [torch.ones(3).to_sparse()], options(dist.AllreduceOptions, dist.ReduceOp.MAX)
            ),
            "of sparse tensors Gloo takes the SUM alone, not MAX",
        ),
        (lambda g: g.allreduce([torch.eye(3).to_sparse_csr()]), "dense tensors, not torch.sparse_csr"),
        *((call, "takes dense tensors, not torch.sparse_coo") for call in SPARSE),
        (lambda g: g.allreduce([torch.ones(3, device="meta")]), "on cpu or cuda, not on meta"),
        (
            lambda g: g.all_gather_single(torch.ones(5), torch.ones(3)),
            "of 2 times 3 elements of torch.float32",
        ),
        (lambda g: g.allgather([[torch.ones(2)] * 2], [torch.ones(3)]), "2 outputs of 3 elements"),
        (lambda g: g.allgather([[torch.ones(3)]], [torch.ones(3)]), "2 outputs of 3 elements"),
        (lambda g: g.reduce_scatter_single(torch.ones(3), torch.ones(5)), "an input of 2 times 3 elements"),
        (lambda g: g.reduce_scatter([torch.ones(3)], [[torch.ones(3)]]), "2 inputs of one size"),
        (
            lambda g: g.allreduce([torch.ones(3).bool()], options(dist.AllreduceOptions, dist.ReduceOp.AVG)),
            "all_reduce: truth values have no average",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(call: Any, said: str) -> None:
    def work(group: P4ReduceProcessGroup) -> str:
        with pytest.raises((TypeError, ValueError)) as error:
            call(group)
        group.barrier().wait()  # nobody has been left behind
        return str(error.value)

    for text in Ranks(2).run(work):
        assert said in text


def test_a_destroyed_group_says_so() -> None:
    def work(rank: int) -> str:
        group = ranks.group(rank)
        group.shutdown()
        group.shutdown()
        with pytest.raises(UsageError) as error:
            group.allreduce([torch.ones(3)])
        return str(error.value)

    ranks = Ranks(2)
    assert ranks.each(work) == ["process group 0 was destroyed"] * 2


def test_who_aborts_ends_it_for_all() -> None:
    def work(group: P4ReduceProcessGroup) -> None:
        pending = group.allreduce([torch.ones(3)]) if group.rank() == 0 else None
        if pending is None:
            group.group.abort("it is enough")
        else:
            pending.wait()

    first, _ = Ranks(2).run(work)
    assert "it is enough" in str(first)


def test_what_goes_by_gloo_ends_with_the_job() -> None:
    """Gloo itself would wait for the rank that is gone."""

    def work(group: P4ReduceProcessGroup) -> Any:
        assert not group.group.is_busy()
        if group.rank() == 0:
            group.group.abort("it is enough")
            return None
        pending = group.allreduce([torch.ones(3).double()])
        assert group.group.is_busy() or pending.is_completed()
        pending.wait()
        return None

    _, error = Ranks(2).run(work)
    assert "it is enough" in str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.recv([torch.ones(3)], 1, 0).wait(),
        lambda group: group.recv([torch.ones(3, 2).t()], 1, 0).wait(),
        lambda group: group.send([torch.ones(1 << 22)], 1, 0).wait(),
        lambda group: group.monitored_barrier(timedelta(seconds=30)),
    ],
    ids=["recv", "recv into gaps", "send", "monitored_barrier"],
)
def test_who_waits_in_gloo_is_woken_when_the_job_ends(call: Any) -> None:
    """The other rank does not come. Groups' time-out is 30 s, which would be another error."""
    over = threading.Event()

    def work(group: P4ReduceProcessGroup) -> str:
        if group.rank() == 1:
            assert over.wait(60)
            return ""

        def abort() -> None:
            while not group.group.may_wait():
                over.wait(0.01)
            group.group.abort("interrupted")

        threading.Thread(target=abort, daemon=True).start()
        try:
            with pytest.raises(UsageError) as error:
                call(group)
            return str(error.value)
        finally:
            over.set()

    assert Ranks(2).run(work)[0] == "process group 0 was aborted: rank 0: interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_work_of_one_number_is_kept(dtype: Any) -> None:
    """DDP's join() leaves it to C++ alone, and waits for it after a forward pass that has such calls, too."""

    def work(group: P4ReduceProcessGroup) -> None:
        how, waited = dist.AllreduceOptions(), dist.AllreduceOptions()
        waited.asyncOp = False
        kept = weakref.ref(group.allreduce([torch.ones(1, dtype=dtype)], how))
        waited_for = weakref.ref(group.allreduce([torch.ones(1, dtype=dtype)], waited))
        for _ in range(80):
            group.allreduce([torch.ones(1)], how).wait()
        group.barrier().wait()
        found = kept()
        assert found is not None
        assert found.wait()
        gc.collect()
        assert waited_for() is None

    assert Ranks(2).run(work) == [None, None]


def test_a_forked_process_takes_no_part() -> None:
    def work(one: P4ReduceProcessGroup) -> list[str]:
        one.barrier().wait()
        one.group._line._pid = os.getpid() + 1  # as it is seen from a child
        said = []
        for dtype in (torch.float32, torch.int64):  # by the job, by Gloo
            with pytest.raises(UsageError) as error:
                one.allreduce([torch.ones(3, dtype=dtype)])
            said.append(str(error.value))
        one.group.at_exit()
        one.abort()
        one.group._line._pid = os.getpid()
        one.barrier().wait()  # nothing has come of that
        return said

    for said in Ranks(2).run(work):
        assert all("one that was forked" in sentence for sentence in said)


def test_without_a_controller_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)
    with pytest.raises(UsageError, match="set P4REDUCE_CONTROLLER=HOST:PORT"):
        Options().address()
    with pytest.raises(TypeError, match=r"pg_options has to be p4reduce.torch.Options, not dict"):
        create(None, {})


def test_groups_have_the_options_of_the_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """`new_group` and device meshes give none."""
    made: list[SimpleNamespace] = []
    monkeypatch.setattr(process_group, "Group", lambda store, **given: made.append(SimpleNamespace(**given)))
    monkeypatch.setattr(
        process_group, "default_group", lambda: next((g for g in reversed(made) if not g.ranks), None)
    )

    def make(name: str, ranks: list[int], given: Options | None) -> Options:
        told = SimpleNamespace(
            store=None,
            group_rank=0,
            group_size=2,
            timeout=None,
            group_id=name,
            global_ranks_in_group=ranks,
        )
        create(told, given, kind=lambda group: group)
        found: Options = made[-1].options
        return found

    first, own = Options(controller="10.0.0.1:7", wire="16bit"), Options(controller="10.0.0.2:7")
    assert make("0", [], first) == first
    assert make("1", [0, 2], None) == first
    assert make("2", [0, 1], own) == own
    assert make("3", [0, 1], None) == first
    assert make("0", [], None) == Options()
    assert make("1", [0, 1], None) == Options()


def test_no_thread_is_made_for_a_call() -> None:
    def work(group: P4ReduceProcessGroup) -> tuple[int, int]:
        how = options(dist.AllreduceOptions, dist.ReduceOp.SUM)
        group.allreduce([torch.ones(3)], how).wait()
        group.barrier().wait()
        before = threading.active_count()
        works = [group.allreduce([torch.ones(3)], how) for _ in range(100)]
        during = threading.active_count()
        for one in works:
            one.wait()
        return before, during

    for before, during in Ranks(2).run(work):
        assert during - before < 10
