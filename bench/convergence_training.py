"""Data-parallel training in one process, its gradients summed as a job's switch sums them.

Every step each of 8 workers takes the gradient of its own samples as float32. Their sum is what
`quantisation.block_sum` gives, and what the workers owe is computed here: tests hold both to the native code
and to communicators, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.accuracy import blocks_of
from host_agent.quantisation import (
    BFLOAT16,
    SPECIAL,
    Blocks,
    block_exponent,
    block_sum,
    from_half,
    scale_of,
    to_half,
)
from p4reduce.workloads.digits import CLASSES, Descent, Floats, Network, Samples, load

WORKERS: Final = 8
BATCH: Final = 16  # samples of a worker in a step
_SPLIT: Final = 0  # seed of what is held out: the same for all trainings
_SIDE: Final = 8  # of an image
_HUGE_EVERY: Final = 64  # elements: each block has some

Rows = NDArray[np.float32]  # a worker each
Way = Callable[[Rows], Floats]  # of summing one tensor, step after step


def in_network(dtype: Any, *, half: bool) -> Way:
    """Return a way that sums gradients of that type as a switch does."""
    blocks = blocks_of(half=half)
    return lambda gradients: _finite(*block_sum(list(gradients.astype(dtype)), blocks, half=half))


class WithFeedback:
    """float32 over a wire of 16 bits, with an ErrorFeedback for each worker."""

    def __init__(self, blocks: Blocks | None = None) -> None:
        self.owed: Rows | None = None
        self._blocks = blocks or blocks_of(half=True)

    def __call__(self, gradients: Rows) -> Floats:
        given = gradients if self.owed is None else gradients + self.owed
        self.owed = residual(given, self._blocks)
        return _finite(*block_sum(list(given), self._blocks, half=True))


def in_float64(gradients: Rows) -> Floats:
    """Sum in float64, which loses nothing."""
    total: Floats = gradients.sum(axis=0, dtype=np.float64)
    return total


def residual(given: Rows, blocks: Blocks) -> Rows:
    """Return the difference between each worker's elements and their values over 16 bits."""
    owed = np.zeros_like(given)
    for block in blocks.slices(given.shape[1]):
        exponent = block_exponent(given[:, block])
        if exponent not in (0, SPECIAL):
            scale = scale_of(exponent, len(given), half=True)
            owed[:, block] = given[:, block] - from_half(to_half(given[:, block], scale), scale, np.float32)
    return owed


def _finite(total: NDArray[Any], special: NDArray[np.bool_]) -> Floats:
    if special.any():
        raise FloatingPointError("a gradient is not finite: this training diverges, give it a smaller rate")
    return total.astype(np.float64)


FLOAT32: Final = "float32"
WIRE: Final = "float32, 16-bit wire"
FEEDBACK: Final = "16-bit wire, feedback"
FLOAT16: Final = "float16"
BFLOAT: Final = "bfloat16"
EXACT: Final = "sum in float64"
WAYS: Final[dict[str, Callable[[], Way]]] = {
    EXACT: lambda: in_float64,
    FLOAT32: lambda: in_network(np.float32, half=False),
    WIRE: lambda: in_network(np.float32, half=True),
    FEEDBACK: WithFeedback,
    FLOAT16: lambda: in_network(np.float16, half=True),
    BFLOAT: lambda: in_network(BFLOAT16, half=True),
}


class Model(Protocol):
    """A network that learns; its parameters are one flat vector."""

    def initial(self, *, seed: int) -> Floats: ...
    def gradient(self, parameters: Floats, samples: Samples) -> Floats: ...
    def accuracy(self, parameters: Floats, samples: Samples) -> float: ...


class Convolutional:
    """Two convolutions and a linear layer, in PyTorch."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)  # the network is small, and threads that wait for each other are slow
        self._torch = torch
        self._network = nn.Sequential(
            nn.Unflatten(1, (1, _SIDE, _SIDE)),
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        )
        self._parameters = list(self._network.parameters())

    def initial(self, *, seed: int) -> Floats:
        """Return parameters as PyTorch initialises layers; the same for the same seed."""
        self._torch.manual_seed(seed)
        for layer in self._network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        return self._flat(self._parameters)

    def gradient(self, parameters: Floats, samples: Samples) -> Floats:
        """Return the gradient of the cross entropy, summed over the samples."""
        scores = self._scores(parameters, samples)
        labels = self._torch.from_numpy(samples.labels)
        loss = self._torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        return self._flat(self._torch.autograd.grad(loss, self._parameters))

    def accuracy(self, parameters: Floats, samples: Samples) -> float:
        """Return the share of the samples that the network names right."""
        with self._torch.no_grad():
            named = self._scores(parameters, samples).argmax(dim=1).numpy()
        return float(np.mean(named == samples.labels))

    def _scores(self, parameters: Floats, samples: Samples) -> Any:
        vector = self._torch.from_numpy(parameters.astype(np.float32))
        self._torch.nn.utils.vector_to_parameters(vector, self._parameters)
        return self._network(self._torch.from_numpy(samples.images.astype(np.float32)))

    def _flat(self, tensors: Sequence[Any]) -> Floats:
        return np.concatenate([one.detach().numpy().ravel() for one in tensors]).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training, and the ways to sum its gradients; all are held to the first.

    `huge`: every 64th parameter is counted in a unit that makes its gradient so many times as large, and what
    comes back is divided by it. `pull`: to each worker's gradient a constant vector is added, normally
    distributed, that many times as large as the first gradients (RMS); two workers' cancel each other.
    """

    name: str
    model: Callable[[], Model] = Network
    ways: tuple[str, ...]
    epochs: int
    rate: float = 0.1
    huge: float = 1.0
    pull: float = 0.0
    torch: bool = False


PLAIN: Final = (FLOAT32, WIRE, FEEDBACK, FLOAT16, BFLOAT)
CONSTRUCTED: Final = (EXACT, FLOAT32, WIRE, FEEDBACK)
SETTINGS: Final = (
    Setting(name="digits network", ways=PLAIN, epochs=15),
    Setting(name="CNN", model=Convolutional, ways=PLAIN, epochs=15, torch=True),
    Setting(name="huge elements", ways=CONSTRUCTED, epochs=20, rate=0.03, huge=2.0**28),
    Setting(name="opposite pulls", ways=CONSTRUCTED, epochs=15, pull=2.0**17),
)


@dataclass(frozen=True)
class Trained:
    """Accuracy on the samples that are held out, after each epoch, and the last parameters."""

    accuracy: list[float]
    parameters: Floats


def train(setting: Setting, way: str, *, seed: int, epochs: int | None = None) -> Trained:
    """Train from the first parameters, and with the order of samples, that the seed draws."""
    training, test = load(seed=_SPLIT)
    shards = [training.shard(rank, WORKERS) for rank in range(WORKERS)]
    model, total = setting.model(), WAYS[way]()
    descent = Descent(model.initial(seed=seed), rate=setting.rate)
    units = np.ones_like(descent.parameters)
    units[::_HUGE_EVERY] = setting.huge
    random = np.random.default_rng(seed)
    pulls: Floats | None = None
    accuracy = []
    for _ in range(epochs or setting.epochs):
        for batches in _steps(shards, random):
            gradients = np.stack([model.gradient(descent.parameters, batch) for batch in batches])
            if pulls is None:
                pulls = _pulls(gradients, setting.pull, seed=seed)
            summed = total(((gradients + pulls) * units).astype(np.float32)) / units
            descent.step(summed / (WORKERS * BATCH))
        accuracy.append(model.accuracy(descent.parameters, test))
    return Trained(accuracy, descent.parameters)


def _steps(shards: Sequence[Samples], random: np.random.Generator) -> Iterator[list[Samples]]:
    """Yield the batches of an epoch: each worker's, in random order, as many as the smallest shard fills."""
    orders = [random.permutation(len(shard)) for shard in shards]
    for start in range(0, min(map(len, shards)) - BATCH + 1, BATCH):
        chosen = [order[start : start + BATCH] for order in orders]
        yield [
            Samples(shard.images[own], shard.labels[own]) for shard, own in zip(shards, chosen, strict=True)
        ]


def _pulls(gradients: Floats, times: float, *, seed: int) -> Floats:
    """Return the workers' pulls: the second half is pulled the other way than the first."""
    half = np.random.default_rng(seed).standard_normal((WORKERS // 2, gradients.shape[1]))
    half *= times * np.sqrt(np.mean(gradients**2))
    return np.concatenate([half, -half])
