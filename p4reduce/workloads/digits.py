"""The handwritten digits that scikit-learn brings along, and a small network that learns them, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.errors import WorkloadError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

PIXELS: Final = 64
CLASSES: Final = 10
_BRIGHTEST: Final = 16.0
_TEST_SHARE: Final = 5  # every fifth sample


@dataclass(frozen=True)
class Samples:
    """`images` (n, 64) within 0 and 1, `labels` (n,)."""

    images: Floats
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def shard(self, rank: int, world_size: int) -> Samples:
        """Return rank `rank`'s share: every `world_size`-th sample."""
        return Samples(self.images[rank::world_size], self.labels[rank::world_size])


def load(*, seed: int) -> tuple[Samples, Samples]:
    """Return shuffled training and test samples; the same seed gives the same samples."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise WorkloadError(
            "training needs scikit-learn: pip install 'p4reduce[reports]' (RoCE hosts do not have it)"
        ) from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images, labels = images[order] / _BRIGHTEST, labels[order].astype(np.int64)
    test = np.arange(len(labels)) % _TEST_SHARE == 0
    return Samples(images[~test], labels[~test]), Samples(images[test], labels[test])


@dataclass(frozen=True)
class Network:
    """64 pixels, a hidden layer of tanh, softmax over 10 digits. Parameters are one flat vector."""

    hidden: int = 128

    @property
    def size(self) -> int:
        """Number of parameters."""
        return (PIXELS + 1) * self.hidden + (self.hidden + 1) * CLASSES

    def initial(self, *, seed: int) -> Floats:
        """Return random parameters; the same seed gives the same parameters."""
        random = np.random.default_rng(seed)
        first = random.normal(0, PIXELS**-0.5, (PIXELS, self.hidden))
        second = random.normal(0, self.hidden**-0.5, (self.hidden, CLASSES))
        parts = (first, np.zeros(self.hidden), second, np.zeros(CLASSES))
        return np.concatenate([part.ravel() for part in parts])

    def gradient(self, parameters: Floats, samples: Samples) -> Floats:
        """Return the gradient of the cross entropy, summed (not averaged) over the samples."""
        hidden, probabilities = self._forward(parameters, samples.images)
        wrong = probabilities
        wrong[np.arange(len(samples)), samples.labels] -= 1.0
        _, _, second, _ = self._split(parameters)
        back = (wrong @ second.T) * (1.0 - hidden**2)
        parts = (samples.images.T @ back, back.sum(axis=0), hidden.T @ wrong, wrong.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts])

    def accuracy(self, parameters: Floats, samples: Samples) -> float:
        """Return the share of the samples that the network names right."""
        _, probabilities = self._forward(parameters, samples.images)
        return float(np.mean(probabilities.argmax(axis=1) == samples.labels))

    def _forward(self, parameters: Floats, images: Floats) -> tuple[Floats, Floats]:
        first, first_bias, second, second_bias = self._split(parameters)
        hidden: Floats = np.tanh(images @ first + first_bias)
        scores = hidden @ second + second_bias
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        probabilities: Floats = exponentials / exponentials.sum(axis=1, keepdims=True)
        return hidden, probabilities

    def _split(self, parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        shapes = ((PIXELS, self.hidden), (self.hidden,), (self.hidden, CLASSES), (CLASSES,))
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        first, first_bias, second, second_bias = (
            part.reshape(shape) for part, shape in zip(np.split(parameters, ends), shapes, strict=True)
        )
        return first, first_bias, second, second_bias


@dataclass
class Descent:
    """Gradient descent with momentum, in 64-bit floats: the same gradients give the same bits."""

    parameters: Floats
    rate: float = 0.4
    momentum: float = 0.9

    def __post_init__(self) -> None:
        self._velocity = np.zeros_like(self.parameters)

    def step(self, gradient: Floats) -> None:
        """Take a step against `gradient`, the mean over all samples."""
        self._velocity = self.momentum * self._velocity - self.rate * gradient
        self.parameters = self.parameters + self._velocity
