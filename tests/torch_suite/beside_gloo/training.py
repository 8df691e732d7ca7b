"""Trainings over p4reduce and over Gloo: the same losses but for rounding, and the same bits on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from host_agent.errors import CommunicatorError
from p4reduce.torch import InNetwork, in_network_16bit_hook, in_network_hook
from tests.torch_suite.beside_gloo import Check, Pair

_STEPS: Final = 6
_MANY: Final = 0.01  # megabytes a bucket: several of them
# Of several buckets, PowerSGD's callbacks call collectives in an order that is not the same on all ranks,
# which Gloo fails, too.
_ONE: Final = 25.0
_FLOAT32: Final = 1e-4  # of a loss: sums are rounded in another order
_HALF: Final = 2e-2  # where gradients travel in 16 bits


class _Model(nn.Module):  # type: ignore[misc]
    """Convolution, BatchNorm with its buffers, and a branch that not every rank takes."""

    def __init__(self, *, branches: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(144, 40)
        self.other = nn.Linear(144, 40) if branches else None
        self.last = nn.Linear(40, 10)

    def forward(self, images: torch.Tensor, *, other: bool = False) -> torch.Tensor:
        found = self.first(images)
        hidden = self.other if other and self.other is not None else self.hidden
        return self.last(torch.relu(hidden(found)))


@dataclass
class _Run:
    """One training: what it reached."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)


Train: TypeAlias = Callable[[Any, int], _Run]


def _model(**how: Any) -> _Model:
    torch.manual_seed(1)
    return _Model(**how)


def _batch(rank: int, step: int, *, count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(
        0, 10, (count,), generator=generator
    )


def _loss(model: nn.Module, rank: int, step: int, **how: Any) -> torch.Tensor:
    images, labels = _batch(rank, step)
    return nn.functional.cross_entropy(model(images, **how), labels)


def _ended(run: _Run, model: nn.Module) -> _Run:
    run.parameters = [tensor.detach().clone() for tensor in model.parameters()]
    return run


def _ddp(
    group: Any,
    rank: int,
    *,
    hook: Callable[[Any], tuple[Any, Any]] | None = None,
    branches: bool = False,
    accumulate: bool = False,
    bucket_mb: float = _MANY,
    **how: Any,
) -> _Run:
    """Train by DDP. `hook`: of a group, the state and the hook. `branches`: another each step and rank."""
    model = DistributedDataParallel(
        _model(branches=branches), process_group=group, bucket_cap_mb=bucket_mb, **how
    )
    if hook is not None:
        model.register_comm_hook(*hook(group))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        if accumulate:
            with model.no_sync():
                _loss(model, rank, 100 + step).backward()
        loss = _loss(model, rank, step, **({"other": (rank + step) % 2 == 0} if branches else {}))
        loss.backward()
        optimiser.step()
        run.losses.append(loss.item())
    return _ended(run, model)


def _powersgd(group: Any, *, hook: Any = powerSGD_hook.powerSGD_hook) -> tuple[Any, Any]:
    state = powerSGD_hook.PowerSGDState(
        process_group=group, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=0.5
    )
    return state, hook


def _scaled(group: Any, rank: int, *, autocast: bool = False) -> _Run:
    """Train with an Inf in rank 1's third gradients: all ranks leave that step out, and lower the scale."""
    model = DistributedDataParallel(_model(), process_group=group)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = _loss(model, rank, step)
        loss = loss * float("inf") if (rank, step) == (1, 2) else loss
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        run.losses.append(0.0 if step == 2 else loss.item())
        run.scales.append(scaler.get_scale())
    assert run.scales[1] > run.scales[2], "the step with an Inf was not noticed on this rank"
    return _ended(run, model)


def _fsdp(group: Any, rank: int, *, reshard: bool) -> _Run:
    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 41), nn.ReLU(), nn.Linear(41, 10))
    for part in (model[1], model[3], model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        loss = _loss(model, rank, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        run.losses.append(loss.item())
    run.parameters = [parameter.full_tensor().detach().clone() for parameter in model.parameters()]
    return run


def _fsdp1(group: Any, rank: int) -> _Run:
    """Train by the older FSDP, which frees storages and makes them anew."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 41), nn.ReLU(), nn.Linear(41, 10))
    model = FullyShardedDataParallel(layers, process_group=group, device_id=torch.device("cpu"))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        loss = _loss(model, rank, step)
        loss.backward()
        optimiser.step()
        run.losses.append(loss.item())
    with FullyShardedDataParallel.summon_full_params(model):
        return _ended(run, model)


def _zero(group: Any, rank: int) -> _Run:
    model = DistributedDataParallel(_model(), process_group=group, gradient_as_bucket_view=True)
    optimiser = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9
    )
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        loss = _loss(model, rank, step)
        loss.backward()
        optimiser.step()
        run.losses.append(loss.item())
    optimiser.consolidate_state_dict(to=1)
    return _ended(run, model)


def _joined(group: Any, rank: int, **how: Any) -> _Run:
    """Train with r batches more on rank r than on rank 0: ranks that have none any more shadow the others."""
    model = DistributedDataParallel(_model(), process_group=group, bucket_cap_mb=0.01)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    run = _Run()
    with model.join(**how):
        for step in range(2 + rank):
            optimiser.zero_grad()
            loss = _loss(model, rank, step)
            loss.backward()
            optimiser.step()
            run.losses.append(loss.item())
    return _ended(run, model)


class _Talking(_Model):
    """A model whose forward pass has collectives of one number, so many that nobody keeps them."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, images: torch.Tensor, *, other: bool = False) -> torch.Tensor:
        for _ in range(80):
            dist.all_reduce(torch.ones(1), group=self.group)
        return super().forward(images, other=other)


def _joined_talking(group: Any, rank: int) -> _Run:
    """Train with as many batches on all ranks, as nobody shadows what a forward pass calls."""
    torch.manual_seed(1)
    model = DistributedDataParallel(_Talking(group), process_group=group)
    run = _Run()
    with model.join(divide_by_initial_world_size=False):
        for step in range(2):
            loss = _loss(model, rank, step)
            loss.backward()
            run.losses.append(loss.item())
    return _ended(run, model)


def _bfloat16(group: Any, rank: int) -> _Run:
    """Train parameters of 16 bits: their gradients are summed as such."""
    torch.manual_seed(1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)).bfloat16(),
        process_group=group,
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    run = _Run()
    for step in range(_STEPS):
        optimiser.zero_grad()
        images, labels = _batch(rank, step)
        loss = nn.functional.cross_entropy(model(images.bfloat16()).float(), labels)
        loss.backward()
        optimiser.step()
        run.losses.append(loss.item())
    return _ended(run, model)


def _check(pair: Pair, *, train: Train, tolerance: float = _FLOAT32) -> None:
    ours, gloos = train(dist.group.WORLD, pair.rank), train(pair.gloo, pair.rank)
    assert ours.scales == gloos.scales, f"scales {ours.scales}, with Gloo {gloos.scales}"
    torch.testing.assert_close(
        torch.tensor(ours.losses), torch.tensor(gloos.losses), rtol=tolerance, atol=tolerance
    )
    flat = torch.cat([one.reshape(-1).float() for one in ours.parameters])
    assert flat.isfinite().all()
    every = [torch.empty_like(flat) for _ in range(pair.size)]
    dist.all_gather(every, flat, pair.gloo)
    for rank, one in enumerate(every):
        assert torch.equal(one, flat), f"rank {rank} has other parameters"


def _check_hook(pair: Pair, *, hook: Any, tolerance: float) -> None:
    """Check a hook on Gloo's process group: gradients alone go through the network."""

    def train(group: Any, rank: int) -> _Run:
        if group is pair.gloo:
            return _ddp(group, rank)
        state = InNetwork(pair.gloo)
        run = _ddp(pair.gloo, rank, hook=lambda _: (state, hook))
        communicator = state.group.communicator
        assert communicator is not None
        assert communicator.statistics().in_network >= _STEPS
        state.close()
        return run

    _check(pair, train=train, tolerance=tolerance)


def _hook(hook: Any) -> Callable[[Any], tuple[Any, Any]]:
    return lambda group: (group, hook)


def _error_reaches_backward(pair: Pair) -> None:
    """End the job on one rank in the middle of a step: the others' backward() says so, and does not hang."""
    pair.spoilt = True
    model = DistributedDataParallel(_model())
    _loss(model, pair.rank, 0).backward()
    pair.gloo.barrier().wait()
    if pair.rank == 3:
        dist.group.WORLD.abort()
        return
    said = "backward() went on without rank 3's abort"
    try:
        for step in range(3):
            _loss(model, pair.rank, step).backward()
    except (CommunicatorError, RuntimeError) as error:  # what C++ passes on is one of the second kind
        said = str(error)
    assert said.startswith("rank 3") or "WorkerLostError: rank 3" in said, said


_TRAININGS: Final[dict[str, tuple[Train, float]]] = {
    "DDP": (_ddp, _FLOAT32),
    "DDP, static graph": (partial(_ddp, static_graph=True), _FLOAT32),
    "DDP, unused parameters": (partial(_ddp, branches=True, find_unused_parameters=True), _FLOAT32),
    "DDP, no_sync": (partial(_ddp, accumulate=True), _FLOAT32),
    "DDP, gradients as views of buckets": (partial(_ddp, gradient_as_bucket_view=True), _FLOAT32),
    "DDP, all_reduce hook": (partial(_ddp, hook=_hook(default_hooks.allreduce_hook)), _FLOAT32),
    "DDP, float16 hook": (partial(_ddp, hook=_hook(default_hooks.fp16_compress_hook)), _HALF),
    "DDP, PowerSGD": (partial(_ddp, hook=_powersgd, bucket_mb=_ONE), _HALF),
    "DDP, bfloat16": (_bfloat16, 5 * _HALF),
    "DDP, join": (_joined, _FLOAT32),
    "DDP, join, divided by those that are left": (
        partial(_joined, divide_by_initial_world_size=False),
        _FLOAT32,
    ),
    "DDP, join, a forward pass with collectives": (_joined_talking, _FLOAT32),
    "GradScaler, an Inf on one rank": (_scaled, _FLOAT32),
    "GradScaler and autocast, an Inf on one rank": (partial(_scaled, autocast=True), _HALF),
    "FSDP2": (partial(_fsdp, reshard=True), _FLOAT32),
    "FSDP2, parameters kept": (partial(_fsdp, reshard=False), _FLOAT32),
    "FSDP1": (_fsdp1, _FLOAT32),
    "ZeroRedundancyOptimizer": (_zero, _FLOAT32),
}
CHECKS: Final[dict[str, Check]] = {
    **{
        f"training: {name}": partial(_check, train=train, tolerance=tolerance)
        for name, (train, tolerance) in _TRAININGS.items()
    },
    "training: DDP over Gloo, in_network_hook": partial(
        _check_hook, hook=in_network_hook, tolerance=_FLOAT32
    ),
    "training: DDP over Gloo, in_network_16bit_hook": partial(
        _check_hook, hook=in_network_16bit_hook, tolerance=_HALF
    ),
    "training: the job ends during backward()": _error_reaches_backward,
}
