"""Process groups: of some ranks, overlapping, of one, meshes, made again; and what fails in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from host_agent.errors import CommunicatorError
from tests.torch_suite.beside_gloo import Check, Pair
from tests.torch_suite.beside_gloo.tensors import elements

_SUBSETS: Final = ([0, 2], [1, 2, 3], [3, 0], [2])


@contextmanager
def _refused(kind: type[BaseException], word: str) -> Iterator[None]:
    said = f"no {kind.__name__}"
    try:
        yield
    except kind as error:
        said = str(error)
    assert word in said, said


def _try(group: Any, gloo: Any) -> None:
    """Run one collective of each sort, and compare the results with Gloo's."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for dtype in (torch.int32, torch.int64):
        results = []
        for one in (group, gloo):
            tensor = elements(5000, dtype, rank)
            dist.all_reduce(tensor, group=one)
            parts = [torch.zeros(7, dtype=dtype) for _ in range(size)]
            dist.all_gather(parts, elements(7, dtype, rank), one)
            part = torch.zeros(11, dtype=dtype)
            dist.reduce_scatter_tensor(part, elements(11 * size, dtype, rank), group=one)
            copied = elements(3000, dtype, rank)
            dist.broadcast(copied, group=one, group_src=size - 1)
            results.append([tensor, *parts, part, copied])
        assert all(itertools.starmap(torch.equal, zip(*results, strict=True))), f"{dtype} differs from Gloo's"
    dist.barrier(group)


def _subsets(pair: Pair) -> None:
    for ranks in _SUBSETS:
        group, gloo = dist.new_group(ranks), pair.gloo_of(ranks)
        if pair.rank in ranks:
            _try(group, gloo)
            assert dist.get_process_group_ranks(group) == sorted(ranks)
        else:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()
    _try(dist.group.WORLD, pair.gloo)


def _overlapping(pair: Pair) -> None:
    """Let each rank begin with another group, whose job nobody joined before: none waits for the others."""
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in ([0, 1, 2, 3], [0, 1], [1, 2], [2, 3], [3, 0])}
    mine = [ranks for ranks in groups if pair.rank in ranks]
    turned = mine[pair.rank % len(mine) :] + mine[: pair.rank % len(mine)]
    for _ in range(3):
        under_way = []
        for ranks in turned:
            tensor = torch.full((2000,), float(pair.rank + 1))
            work = dist.all_reduce(tensor, group=groups[ranks], async_op=True)
            under_way.append((ranks, tensor, work))
        for ranks, tensor, work in reversed(under_way):
            work.wait()
            assert torch.equal(tensor, torch.full((2000,), float(sum(rank + 1 for rank in ranks)))), ranks


def _alone(pair: Pair) -> None:
    """Check a group of one rank, each rank's own: with results, and with futures."""
    for rank in range(pair.size):
        group, gloo = dist.new_group([rank]), pair.gloo_of([rank])
        if rank == pair.rank:
            _try(group, gloo)
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            assert torch.equal(work.get_future().wait()[0], torch.ones(3))


def _mesh(pair: Pair) -> None:
    """Check sums along each dimension of two by two ranks, and a tensor that is cut along both."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for name, partner in (("data", pair.rank ^ 2), ("model", pair.rank ^ 1)):
        group = mesh.get_group(name)
        assert sorted(dist.get_process_group_ranks(group)) == sorted([pair.rank, partner])
        tensor = torch.full((100,), float(pair.rank))
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((100,), float(pair.rank + partner)))
    whole = elements(64, torch.float32, 7).reshape(8, 8)
    cut = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert cut.to_local().shape == (4, 4)
    assert torch.equal(cut.full_tensor(), whole)
    assert torch.equal(cut.redistribute(mesh, [Replicate(), Shard(0)]).full_tensor(), whole)
    torch.testing.assert_close((cut @ cut).full_tensor(), whole @ whole)


def _objects(pair: Pair) -> None:
    mine = {"rank": pair.rank, "text": "x" * (pair.rank * 1000)}
    gathered: list[Any] = [None] * pair.size
    dist.all_gather_object(gathered, mine)
    assert [one["rank"] for one in gathered] == list(range(pair.size))
    at_root: list[Any] | None = [None] * pair.size if pair.rank == 0 else None
    dist.gather_object(mine, at_root)
    assert at_root is None or at_root == gathered
    told = [mine if pair.rank == 3 else None]
    dist.broadcast_object_list(told, src=3)
    assert told == [gathered[3]]
    got: list[Any] = [None]
    dist.scatter_object_list(
        got, [f"for {one}" for one in range(pair.size)] if pair.rank == 1 else None, src=1
    )
    assert got == [f"for {pair.rank}"]


def _again(pair: Pair) -> None:
    """Destroy the default group, and make it anew in one process."""
    pair.spoilt = True
    for number in range(3):
        dist.destroy_process_group()
        store = dist.PrefixStore(f"again {number}", pair.store)
        dist.init_process_group(
            "p4reduce", store=store, rank=pair.rank, world_size=pair.size, timeout=pair.timeout
        )
        tensor = torch.full((10,), float(number + pair.rank))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((10,), float(6 + 4 * number)))


def _aborted(pair: Pair) -> None:
    """Check that a group that one rank aborts ends on all, with a sentence.

    It can be destroyed then, and other groups go on.
    """
    group = dist.new_group(list(range(pair.size)))
    dist.all_reduce(torch.ones(4), group=group)
    pair.gloo.barrier().wait()
    if pair.rank == 2:
        group.abort()
    with _refused(CommunicatorError, "abort"):
        dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)
    _try(dist.group.WORLD, pair.gloo)


def _wrong_sizes(pair: Pair) -> None:
    """Check that they are refused on all ranks before anything is sent: the group can be used afterwards."""
    with _refused(ValueError, "all_gather"):
        dist.all_gather_into_tensor(torch.zeros(7), torch.zeros(2))
    with _refused(ValueError, "reduce_scatter"):
        dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(13))
    with _refused(ValueError, "all_gather"):
        dist.all_gather([torch.zeros(2), torch.zeros(3), torch.zeros(2), torch.zeros(2)], torch.zeros(2))
    _try(dist.group.WORLD, pair.gloo)


def _functional(pair: Pair) -> None:
    """Check what compilers and DTensor call, with gradients."""
    from torch.distributed import _functional_collectives as functional

    tensor = torch.full((6,), float(pair.rank + 1))
    assert torch.equal(functional.all_reduce(tensor, "sum", dist.group.WORLD) + 0, torch.full((6,), 10.0))
    gathered = functional.all_gather_tensor(tensor, 0, dist.group.WORLD) + 0
    assert torch.equal(gathered, torch.arange(1.0, 5).repeat_interleave(6))
    part = functional.reduce_scatter_tensor(torch.arange(8.0), "sum", 0, dist.group.WORLD) + 0
    assert torch.equal(part, 4 * torch.arange(8.0)[2 * pair.rank : 2 * pair.rank + 2])
    leaf = torch.full((3,), float(pair.rank + 1), requires_grad=True)
    functional.all_gather_tensor_autograd(leaf, 0, dist.group.WORLD).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.full((3,), 4.0))


def _coalesced(pair: Pair) -> None:
    for group in (dist.group.WORLD, pair.gloo):
        tensors = [torch.full((size,), float(pair.rank)) for size in (1, 1000, 3)]
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        assert all(torch.equal(tensor, torch.full_like(tensor, 6.0)) for tensor in tensors)


def _callbacks(pair: Pair) -> None:
    """Check callbacks that wait for another collective, as PowerSGD's does, with many under way at once."""

    def once_more(future: Any) -> torch.Tensor:
        (tensor,) = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    # All are called before a callback calls another: whose turn it is has to be the same on all ranks.
    works = [dist.all_reduce(torch.full((10,), 1.0), async_op=True) for _ in range(8)]
    futures = [work.get_future().then(once_more) for work in works]
    assert all(torch.equal(future.wait(), torch.full((10,), 16.0)) for future in futures)


CHECKS: Final[dict[str, Check]] = {
    "groups of some ranks": _subsets,
    "overlapping groups, first used in another order on each rank": _overlapping,
    "a group of one": _alone,
    "a mesh of two by two": _mesh,
    "objects": _objects,
    "destroyed and made again": _again,
    "aborted on one rank": _aborted,
    "wrong sizes": _wrong_sizes,
    "functional collectives": _functional,
    "coalesced": _coalesced,
    "callbacks that wait": _callbacks,
}
