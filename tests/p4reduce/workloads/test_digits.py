"""The network: its gradient is the derivative of its loss, and shards add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.workloads.digits import CLASSES, PIXELS, Descent, Floats, Network, Samples, load

pytestmark = pytest.mark.slow


def _loss(network: Network, parameters: Floats, samples: Samples) -> float:
    """Compute cross entropy, summed, straight from the definition."""
    size = network.hidden
    first = parameters[: PIXELS * size].reshape(PIXELS, size)
    first_bias = parameters[PIXELS * size : (PIXELS + 1) * size]
    second = parameters[(PIXELS + 1) * size : -CLASSES].reshape(size, CLASSES)
    scores = np.tanh(samples.images @ first + first_bias) @ second + parameters[-CLASSES:]
    chosen = scores[np.arange(len(samples)), samples.labels]
    return float(np.sum(np.log(np.exp(scores).sum(axis=1)) - chosen))


def test_gradient_is_the_derivative() -> None:
    network = Network(hidden=5)
    training, _ = load(seed=3)
    samples = Samples(training.images[:20], training.labels[:20])
    parameters = network.initial(seed=3)
    gradient = network.gradient(parameters, samples)
    random = np.random.default_rng(3)
    for index in random.choice(network.size, 40, replace=False):
        step = np.zeros(network.size)
        step[index] = 1e-6
        ahead = _loss(network, parameters + step, samples)
        behind = _loss(network, parameters - step, samples)
        assert gradient[index] == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_shards_add_up_to_the_whole(world_size: int) -> None:
    network = Network(hidden=8)
    training, _ = load(seed=1)
    shards = [training.shard(rank, world_size) for rank in range(world_size)]
    assert sum(len(shard) for shard in shards) == len(training)
    parameters = network.initial(seed=1)
    together = np.sum([network.gradient(parameters, shard) for shard in shards], axis=0)
    np.testing.assert_allclose(together, network.gradient(parameters, training), atol=1e-9)


def test_training_and_test_samples_share_nothing() -> None:
    training, test = load(seed=1)
    assert len(training) + len(test) == 1797
    assert len(test) == 360
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_the_same_seed_gives_the_same_bits() -> None:
    assert load(seed=5)[0].images.tobytes() == load(seed=5)[0].images.tobytes()
    assert load(seed=5)[0].images.tobytes() != load(seed=6)[0].images.tobytes()
    assert Network().initial(seed=5).tobytes() == Network().initial(seed=5).tobytes()


def test_it_learns() -> None:
    training, test = load(seed=1)
    network = Network(hidden=32)
    descent = Descent(network.initial(seed=1))
    before = network.accuracy(descent.parameters, test)
    for _ in range(60):
        descent.step(network.gradient(descent.parameters, training) / len(training))
    assert before < 0.3
    assert network.accuracy(descent.parameters, test) > 0.9
