"""Gradients of three PyTorch models that learn handwritten digits, in buckets as DDP makes them.

A perceptron and a convolutional network name the digit; a transformer predicts the next pixel of 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from bench.accuracy_tensors import LATE_STEPS, SEED, WORKERS, Rows
from p4reduce.workloads.digits import CLASSES, PIXELS, Samples, load
from p4reduce.workloads.traffic.buckets import buckets
from p4reduce.workloads.traffic.model import Layer, Workload

_SIDE: Final = 8
_SHADES: Final = 17  # of a pixel
_BATCH: Final = 32
_RATE: Final = 1e-3
_WIDTH: Final = 64


def models() -> Iterator[tuple[str, list[Rows]]]:
    """Yield each model's gradients by bucket, of its first step and after `LATE_STEPS` of Adam."""
    import torch

    torch.set_num_threads(1)  # the models are small, and threads that wait for each other are slow
    training, _ = load(seed=SEED)
    shards = [training.shard(rank, WORKERS) for rank in range(WORKERS)]
    for name, build, loss in _MODELS:
        torch.manual_seed(SEED)
        model = build()
        optimiser = torch.optim.Adam(model.parameters(), lr=_RATE)
        random = np.random.default_rng(SEED)
        for when, steps in (("first", 0), ("late", LATE_STEPS)):
            for _ in range(steps):
                chosen = random.choice(len(training), _BATCH, replace=False)
                batch = Samples(training.images[chosen], training.labels[chosen])
                optimiser.zero_grad()
                loss(model, batch).backward()
                optimiser.step()
            yield f"{name}, {when}", _gradients(model, loss, shards)


def _gradients(model: Any, loss: Callable[[Any, Samples], Any], shards: Sequence[Samples]) -> list[Rows]:
    parameters = list(model.parameters())
    layers = tuple(Layer(str(number), one.numel(), 0, 0) for number, one in enumerate(parameters))
    together = [bucket.layers for bucket in buckets(Workload("a model", "digits", layers))]
    rows: list[list[Any]] = [[] for _ in together]
    for shard in shards:
        model.zero_grad()
        loss(model, shard).backward()
        for bucket, numbers in zip(rows, together, strict=True):
            flat = [parameters[number].grad.numpy().ravel() for number in numbers]
            bucket.append(np.concatenate(flat))
    return [np.stack(bucket).astype(np.float64) for bucket in rows]


def _perceptron() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(PIXELS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )


def _convolutional() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, _SIDE, _SIDE)),
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


def _transformer() -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True)
    return nn.ModuleDict(
        {
            "shades": nn.Embedding(_SHADES, _WIDTH),
            "places": nn.Embedding(PIXELS, _WIDTH),
            "layers": nn.TransformerEncoder(layer, 2),
            "head": nn.Linear(_WIDTH, _SHADES),
        }
    )


def _loss_of_names(model: Any, samples: Samples) -> Any:
    import torch

    scores = model(torch.from_numpy(samples.images.astype(np.float32)))
    return torch.nn.functional.cross_entropy(scores, torch.from_numpy(samples.labels))


def _loss_of_pixels(model: Any, samples: Samples) -> Any:
    import torch

    pixels = torch.from_numpy(np.rint(samples.images * (_SHADES - 1)).astype(np.int64))
    seen, wanted = pixels[:, :-1], pixels[:, 1:]
    places = torch.arange(PIXELS - 1)
    future = torch.triu(torch.full((PIXELS - 1, PIXELS - 1), -torch.inf), diagonal=1)
    hidden = model["layers"](model["shades"](seen) + model["places"](places), mask=future, is_causal=True)
    scores = model["head"](hidden)
    return torch.nn.functional.cross_entropy(scores.reshape(-1, _SHADES), wanted.reshape(-1))


_MODELS: Final = (
    ("MLP", _perceptron, _loss_of_names),
    ("CNN", _convolutional, _loss_of_names),
    ("transformer", _transformer, _loss_of_pixels),
)
