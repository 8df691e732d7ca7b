"""Training loops, recorded by the PyTorch that is installed, and held to what its hooks saw meanwhile.

A hook of each parameter labels the moment at which a gradient is handed over ("truth: 3"), so that the trace
itself says whose it was; a label around each iteration ("truth: iteration") says where one ends. The product
reads neither: its labels are PyTorch's.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import Workload
from p4reduce.workloads.traffic.torch_profiler import from_document

COMPILER = shutil.which(os.environ.get("CXX") or "g++")
pytestmark = pytest.mark.slow  # importing torch takes seconds
torch: Any = pytest.importorskip("torch", reason="records traces with the PyTorch that is installed")


@dataclass
class Loop:
    """Parameters, and one iteration. `steps`: the profiler is told of each iteration."""

    parameters: list[Any]
    iterate: Callable[[], None]
    steps: bool = False


@dataclass
class Truth:
    """The last iteration: by parameter the labels' times (us), from the first operator on."""

    handed_over: dict[int, list[float]] = field(default_factory=dict)
    begin: float = 0.0
    optimizer: list[tuple[float, float]] = field(default_factory=list)

    def computed_us(self, moment: float) -> float:
        """Return the time until a moment, without the optimizer's."""
        spent = sum(max(0.0, min(end, moment) - max(start, self.begin)) for start, end in self.optimizer)
        return moment - self.begin - spent


def _net(*sizes: int) -> Any:
    layers: list[Any] = []
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


def _plain(optimizer: str = "SGD", *, steps: bool = False, **options: Any) -> Loop:
    net = _net(6, 5, 4)
    chosen = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01, **options)

    def iterate() -> None:
        chosen.zero_grad()
        net(torch.ones(3, 6)).square().mean().backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate, steps)


def _accumulation(count: int, *, to_none: bool = True, steps: bool = False) -> Loop:
    net = _net(6, 5, 5, 5)
    chosen = torch.optim.SGD(net.parameters(), lr=0.01)

    def iterate() -> None:
        chosen.zero_grad(set_to_none=to_none)
        for _ in range(count):
            (net(torch.ones(3, 6)).square().mean() / count).backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate, steps)


def _checkpointed(*, reentrant: bool, count: int = 1) -> Loop:
    first, blocks, last = _net(6, 5), [_net(5, 7, 5) for _ in range(3)], _net(5, 2)
    parameters = [p for net in (first, *blocks, last) for p in net.parameters()]
    chosen = torch.optim.SGD(parameters, lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        for _ in range(count):
            x = first(torch.ones(3, 6))
            for block in blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            last(x).square().mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _gan(*, steps: bool, generator_first: bool = False) -> Loop:
    """Return three backward passes; the generator's leaves gradients of the discriminator, too."""
    discriminator, generator = _net(9, 4, 1), _net(5, 4, 9)
    real = torch.ones(3, 9)
    d, g = (torch.optim.Adam(net.parameters()) for net in (discriminator, generator))

    def judge() -> None:
        d.zero_grad()
        discriminator(real).mean().backward()
        discriminator(generator(torch.ones(3, 5)).detach()).mean().backward()
        d.step()

    def imitate() -> None:
        g.zero_grad()
        discriminator(generator(torch.ones(3, 5))).mean().backward()
        g.step()

    def iterate() -> None:
        for half in (imitate, judge) if generator_first else (judge, imitate):
            half()

    return Loop([*discriminator.parameters(), *generator.parameters()], iterate, steps)


def _penalty() -> Loop:
    net = _net(6, 5, 1)
    chosen = torch.optim.SGD(net.parameters(), lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        x = torch.ones(3, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (net(x).mean() + (slope.norm() - 1).square()).backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate)


def _two_optimizers() -> Loop:
    one, two = _net(6, 5), _net(5, 4)
    chosen = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (one, two)]

    def iterate() -> None:
        two(one(torch.ones(3, 6))).square().mean().backward()
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad()

    return Loop([*one.parameters(), *two.parameters()], iterate)


def _two_losses() -> Loop:
    """Return two backward passes one after the other, through one trunk."""
    trunk, heads = _net(6, 5), [_net(5, 3), _net(5, 2)]
    parameters = [p for net in (trunk, *heads) for p in net.parameters()]
    chosen = torch.optim.SGD(parameters, lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        x = trunk(torch.ones(3, 6))
        losses = [head(x).mean() for head in heads]
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        chosen.step()

    return Loop(parameters, iterate)


def _twins() -> Loop:
    """Return two networks of the same shapes, each with a backward pass, and one optimizer."""
    nets = [_net(6, 5), _net(6, 5)]
    parameters = [p for net in nets for p in net.parameters()]
    chosen = torch.optim.SGD(parameters, lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        for net in nets:
            net(torch.ones(3, 6)).mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _closure(optimizer: str) -> Loop:
    """Return a loop with both passes inside the optimizer's step, as Lightning has it."""
    net = _net(6, 5, 4)
    options = {"max_iter": 2} if optimizer == "LBFGS" else {}
    chosen = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01, **options)

    def closure() -> Any:
        chosen.zero_grad()
        loss = net(torch.ones(3, 6)).square().mean()
        loss.backward()
        return loss

    def iterate() -> None:
        chosen.step(closure).item()  # behind the step

    return Loop(list(net.parameters()), iterate)


def _partly(*, frozen: bool) -> Loop:
    """Return a loop in which some layers are frozen, or not used."""
    net, aside = _net(6, 5, 5, 4), _net(5, 5)
    if frozen:
        net[2].requires_grad_(False)
    parameters = [p for p in (*net.parameters(), *aside.parameters()) if p.requires_grad]
    chosen = torch.optim.AdamW(parameters)

    def iterate() -> None:
        chosen.zero_grad()
        net(torch.ones(3, 6)).mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _scalars() -> Loop:
    net, scale, shift = _net(6, 5), *(torch.nn.Parameter(torch.ones(())) for _ in range(2))
    parameters = [*net.parameters(), scale, shift]
    chosen = torch.optim.Adam(parameters)

    def iterate() -> None:
        chosen.zero_grad()
        for _ in range(2):
            (net(torch.ones(3, 6)) * scale + shift).mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _sparse() -> Loop:
    table, net, words = torch.nn.Embedding(11, 6, sparse=True), _net(6, 5), torch.tensor([1, 2])
    parameters = [*table.parameters(), *net.parameters()]
    chosen = torch.optim.SGD(parameters, lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        net(table(words)).mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _critics(count: int) -> Loop:
    """Return a loop that updates a critic several times an iteration, its gradients cleared by hand."""
    critic, generator = _net(9, 4, 1), _net(5, 9)
    c, g = (torch.optim.RMSprop(net.parameters()) for net in (critic, generator))

    def iterate() -> None:
        for _ in range(count):
            critic.zero_grad()
            critic(generator(torch.ones(3, 5)).detach()).mean().backward()
            c.step()
        generator.zero_grad()
        critic(generator(torch.ones(3, 5))).mean().backward()
        g.step()

    return Loop([*critic.parameters(), *generator.parameters()], iterate, steps=True)


def _shared_checkpoint() -> Loop:
    """Return a loop with one block, three times, re-entrant: one backward pass adds up its gradients."""
    first, block, last = _net(6, 5), _net(5, 5), _net(5, 2)
    parameters = [p for net in (first, block, last) for p in net.parameters()]
    chosen = torch.optim.SGD(parameters, lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        x = first(torch.ones(3, 6))
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        last(x).square().mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _adversarial() -> Loop:
    """Return a loop whose input has a gradient of its own, by which a second pass changes it."""
    net = _net(6, 5, 4)
    chosen = torch.optim.Adam(net.parameters())

    def iterate() -> None:
        x = torch.ones(3, 6, requires_grad=True)
        chosen.zero_grad()
        net(x).square().mean().backward()
        chosen.zero_grad()
        net(x.detach() + x.grad.sign()).square().mean().backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate)


def _piecewise_penalty() -> Loop:
    """Return a loop with constant slopes: the penalty's gradient by its input is undefined."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    chosen = torch.optim.SGD(net.parameters(), lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        net(torch.ones(3, 6)).mean().backward()
        x = torch.ones(3, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (slope.norm() - 1).square().backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate)


def _in_backward() -> Loop:
    """Return a loop in which a hook updates each parameter as soon as its gradient is there."""
    net = _net(6, 5, 4)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in net.parameters()}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return Loop(list(net.parameters()), lambda: net(torch.ones(3, 6)).square().mean().backward())


def _compiled(backend: str, *, count: int) -> Loop:
    torch.compiler.reset()  # nothing that another loop has compiled counts here
    net = _net(6, 5, 4)
    compiled, chosen = torch.compile(net, backend=backend), torch.optim.SGD(net.parameters(), lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        for _ in range(count):
            compiled(torch.ones(3, 6)).square().mean().backward()
        chosen.step()

    iterate()
    return Loop(list(net.parameters()), iterate)


def _moe() -> Loop:
    """Return experts of one shape, of which each micro-batch uses another."""
    experts, gate = [_net(5, 5) for _ in range(3)], _net(6, 5)
    parameters = [p for net in (*experts, gate) for p in net.parameters()]
    chosen = torch.optim.AdamW(parameters)

    def iterate() -> None:
        chosen.zero_grad()
        for expert in experts:
            expert(gate(torch.ones(3, 6))).mean().backward()
        chosen.step()

    return Loop(parameters, iterate)


def _distributed(*, count: int) -> Loop:
    """Return DistributedDataParallel of one process, which sums in the last of some micro-batches alone."""
    net = _net(6, 5, 4)
    model = torch.nn.parallel.DistributedDataParallel(net)
    chosen = torch.optim.SGD(net.parameters(), lr=0.01)

    def iterate() -> None:
        chosen.zero_grad()
        for turn in range(count):
            with nullcontext() if turn == count - 1 else model.no_sync():
                model(torch.ones(3, 6)).square().mean().backward()
        chosen.step()

    return Loop(list(net.parameters()), iterate)


def _sharded(*, count: int) -> Loop:
    """Return a loop by FSDP2: parameters are DTensors, but autograd has whole ones in both passes."""
    net = _net(6, 5, 4)
    for layer in (net[0], net[2], net):
        torch.distributed.fsdp.fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    chosen = torch.optim.Adam(net.parameters())
    whole: list[Any] = []

    def iterate() -> None:
        for _ in range(count):
            net(torch.ones(3, 6)).square().mean().backward()
        chosen.step()
        chosen.zero_grad()

    # These hooks come after FSDP's own, which have put the whole parameters in place.
    hooks = [
        layer.register_forward_pre_hook(lambda layer, _: whole.extend(layer.parameters()))
        for layer in (net[0], net[2])
    ]
    net(torch.ones(3, 6)).square().mean().backward()
    chosen.zero_grad()
    for hook in hooks:
        hook.remove()
    return Loop(whole, iterate)


# It compiles C++, for half a minute and more.
INDUCTOR = "compiled by inductor, 4 a step"
LOOPS: dict[str, Callable[[], Loop]] = {
    "plain": _plain,
    "plain, the profiler told of steps": lambda: _plain(steps=True),
    "momentum": lambda: _plain("SGD", momentum=0.9, weight_decay=0.1),
    "foreach": lambda: _plain("Adam", foreach=True),
    "fused": lambda: _plain("AdamW", fused=True),
    **{f"accumulation of {count}": partial(_accumulation, count) for count in range(1, 9)},
    "accumulation to zeros": lambda: _accumulation(4, to_none=False),
    "accumulation, the profiler told of steps": lambda: _accumulation(4, steps=True),
    "checkpoints": lambda: _checkpointed(reentrant=False),
    "re-entrant checkpoints": lambda: _checkpointed(reentrant=True),
    "re-entrant checkpoints, accumulated": lambda: _checkpointed(reentrant=True, count=2),
    "GAN": lambda: _gan(steps=True),
    "GAN, the profiler not told of steps": lambda: _gan(steps=False),
    "GAN, its generator first": lambda: _gan(steps=True, generator_first=True),
    "gradient penalty": _penalty,
    "two optimizers": _two_optimizers,
    "two losses": _two_losses,
    "twins": _twins,
    "closure": lambda: _closure("SGD"),
    "LBFGS": lambda: _closure("LBFGS"),
    "frozen": lambda: _partly(frozen=True),
    "unused": lambda: _partly(frozen=False),
    "scalars": _scalars,
    "sparse": _sparse,
    "critics": partial(_critics, 3),
    "one block checkpointed three times": _shared_checkpoint,
    "adversarial": _adversarial,
    "piecewise linear penalty": _piecewise_penalty,
    "updated in the backward pass": _in_backward,
    **{
        f"compiled by {backend}, {count} a step": partial(_compiled, backend, count=count)
        for backend in ("eager", "aot_eager")
        for count in (1, 4)
    },
    INDUCTOR: partial(_compiled, "inductor", count=4),
    "experts": _moe,
    "DDP": partial(_distributed, count=1),
    "DDP, accumulated": partial(_distributed, count=3),
    "FSDP2": partial(_sharded, count=1),
    "FSDP2, accumulated": partial(_sharded, count=4),
}


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep a group of this process alone meanwhile."""
    distributed = torch.distributed
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GLOO_SOCKET_IFNAME", "lo")
        environment.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        store = distributed.FileStore(str(tmp_path_factory.mktemp("store") / "file"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == INDUCTOR else name for name in LOOPS]
)
def test_a_loop_is_read_as_its_hooks_saw_it(name: str, tmp_path: Path) -> None:
    if name == INDUCTOR and COMPILER is None:
        pytest.skip("inductor needs a C++ compiler: neither CXX nor g++ is there")
    torch.manual_seed(1)
    loop = LOOPS[name]()
    document = _record(loop, tmp_path / "trace.json")
    workload = from_document(document, name="trace", where="trace.json")
    truth = _truth(document)
    by_readiness = sorted(truth.handed_over, key=lambda it: truth.handed_over[it][-1])
    numels = [loop.parameters[index].numel() for index in by_readiness]
    assert [layer.numel for layer in reversed(workload.layers)] == numels
    _times_are_the_hooks(workload, truth)


def _times_are_the_hooks(workload: Workload, truth: Truth) -> None:
    """Check that each gradient is ready after its hook was called, and before the next one's."""
    labels = sorted(time for times in truth.handed_over.values() for time in times)
    computed_us = workload.forward_ns / 1000
    for layer, times in zip(
        reversed(workload.layers), sorted(truth.handed_over.values(), key=lambda it: it[-1]), strict=True
    ):
        computed_us += layer.backward_ns / 1000
        assert computed_us >= truth.computed_us(times[-1]) - 1, layer
        following = [truth.computed_us(label) for label in labels if label > times[-1]]
        assert computed_us <= min(following, default=computed_us) + 1, layer


def _record(loop: Loop, path: Path) -> dict[str, Any]:
    for index, parameter in enumerate(loop.parameters):

        def label(_: Any, index: int = index) -> None:
            with torch.profiler.record_function(f"truth: {index}"):
                pass

        parameter.register_post_accumulate_grad_hook(label)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of LBFGS, and of checkpoints without a gradient
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1) if loop.steps else None
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, schedule=schedule
        ) as profile:
            for _ in range(5 if loop.steps else 3):
                with torch.profiler.record_function("truth: iteration"):
                    loop.iterate()
                if loop.steps:
                    profile.step()
    profile.export_chrome_trace(str(path))
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def _truth(document: dict[str, Any]) -> Truth:
    """Return the labels of the last iteration."""
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    start, end = max(
        (event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "truth: iteration"
    )
    truth = Truth()
    inside = sorted((event for event in events if start <= event["ts"] < end), key=lambda event: event["ts"])
    for event in inside:
        if event["name"].startswith("truth: ") and event["name"] != "truth: iteration":
            truth.handed_over.setdefault(int(event["name"][7:]), []).append(event["ts"])
        if event["name"].startswith("Optimizer."):
            truth.optimizer.append((event["ts"], event["ts"] + event["dur"]))
    labels = [time for times in truth.handed_over.values() for time in times]
    # A step with a closure computes after the last gradient.
    truth.optimizer = [
        span for span in truth.optimizer if not any(span[0] < label < span[1] for label in labels)
    ]
    truth.begin = next(
        event["ts"]
        for event in inside
        if event["cat"] == "cpu_op"
        and "Sequence number" in event.get("args", {})
        and not any(start <= event["ts"] < end for start, end in truth.optimizer)
    )
    return truth


@pytest.mark.parametrize("kept", [False, True])
def test_a_function_that_gives_no_gradient(tmp_path: Path, *, kept: bool) -> None:
    """Check that it has a size where the optimizer tells that of zeros that were kept, and no size else."""

    class Half(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, used: Any, _: Any) -> Any:
            ctx.save_for_backward(x)
            return x * used

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, Any]:
            return None, gradient * ctx.saved_tensors[0], None

    used, unused, scale = (torch.nn.Parameter(torch.ones(shape)) for shape in ((7,), (40,), ()))
    unused.grad = torch.zeros(40) if kept else None
    chosen = torch.optim.SGD([used, unused, scale], lr=0.1)

    def iterate() -> None:
        (Half.apply(torch.ones(7), used, unused).sum() * scale).backward()
        chosen.step()
        chosen.zero_grad(set_to_none=not kept)

    document = _record(Loop([used, unused, scale], iterate), tmp_path / "trace.json")
    if kept:
        workload = from_document(document, name="trace", where="trace.json")
        assert sorted(layer.numel for layer in workload.layers) == [1, 7, 40]
    else:
        with pytest.raises(WorkloadError, match=r"the gradient that 'Half' hands over at .* is undefined"):
            from_document(document, name="trace", where="trace.json")


def test_networks_of_one_shape_with_an_optimizer_each_are_told(tmp_path: Path) -> None:
    nets = [_net(6, 5), _net(6, 5)]
    chosen = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]

    def iterate() -> None:
        for net, optimizer in zip(nets, chosen, strict=True):
            optimizer.zero_grad()
            net(torch.ones(3, 6)).mean().backward()
            optimizer.step()

    document = _record(Loop([], iterate, steps=True), tmp_path / "trace.json")
    workload = from_document(document, name="trace", where="trace.json")
    assert len(workload.layers) == 2
    assert "2 gradients of later passes are taken as those of earlier parameters" in workload.source
