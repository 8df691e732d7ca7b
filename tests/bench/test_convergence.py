"""bench.convergence: sums and what workers owe are the native code's and the communicators'; verdicts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.convergence import Row, possible, verdict
from bench.convergence_training import (
    CONSTRUCTED,
    EXACT,
    FEEDBACK,
    FLOAT32,
    SETTINGS,
    WAYS,
    WIRE,
    Rows,
    Setting,
    WithFeedback,
    residual,
    train,
)
from host_agent.communicator import Communicator
from host_agent.error_feedback import ErrorFeedback
from host_agent.quantisation import SPECIAL, Blocks, block_exponent, scale_of
from host_agent.transport.native import library
from p4reduce.workloads.digits import Network, load
from tests.host_agent.fakes import FakeRack

pytestmark = pytest.mark.slow

BLOCKS = Blocks.of(path_mtu=1024, message_packets=4, half=True)  # of FakeRack


def layers(random: np.random.Generator, shape: tuple[int, int]) -> Rows:
    return (random.standard_normal(shape) * np.exp2(-(np.arange(shape[1]) // 300))).astype(np.float32)


def wide(random: np.random.Generator, shape: tuple[int, int]) -> Rows:
    return (random.standard_normal(shape) * np.exp2(random.integers(-60, 60, shape))).astype(np.float32)


def subnormal(random: np.random.Generator, shape: tuple[int, int]) -> Rows:
    return np.ldexp(random.standard_normal(shape), random.integers(-148, -120, shape)).astype(np.float32)


def special(random: np.random.Generator, shape: tuple[int, int]) -> Rows:
    rows = layers(random, shape)
    rows[0, 1000], rows[1, 2000] = np.inf, np.nan
    rows[:, : shape[1] // 8] = 0
    return rows


@pytest.mark.parametrize("ranks", [2, 8, 100])
@pytest.mark.parametrize("make", [layers, wide, subnormal, special])
def test_what_is_owed_is_what_native_code_leaves(make: Callable[..., Rows], ranks: int) -> None:
    rows = make(np.random.default_rng(7), (ranks, 5003))
    owed, left = residual(rows, BLOCKS), np.zeros_like(rows)
    for block in BLOCKS.slices(rows.shape[1]):
        exponent = block_exponent(rows[:, block])
        for rank in range(ranks):
            if exponent not in (0, SPECIAL):
                own = rows[rank, block].copy()
                scale = scale_of(exponent, ranks, half=True)
                library().p4r_leave_residual(own.ctypes.data, own.size, scale)
                left[rank, block] = own
    assert owed.tobytes() == left.tobytes()
    assert owed.any(axis=1).all()
    assert np.isfinite(owed).all()


def test_rounds_with_feedback_are_those_of_communicators() -> None:
    """Send gradients of the network, with a huge element in each 64: sums and what is owed, bit for bit."""
    ranks, rounds = 4, 3
    training, _ = load(seed=1)
    network = Network()
    units = np.ones(network.size)
    units[::64] = 2.0**28
    rows = [
        np.stack(
            [
                network.gradient(network.initial(seed=number), training.shard(rank, ranks)) * units
                for rank in range(ranks)
            ]
        ).astype(np.float32)
        for number in range(rounds)
    ]

    def work(c: Communicator) -> list[tuple[Any, Any]]:
        feedback = ErrorFeedback()
        return [
            (c.all_reduce(rows[number][c.rank], wire="16bit", feedback=feedback), feedback.owed)
            for number in range(rounds)
        ]

    answers = FakeRack(ranks).run(work)
    total = WithFeedback(BLOCKS)
    for number in range(rounds):
        summed = total(rows[number]).astype(np.float32)
        assert total.owed is not None
        assert total.owed.any()
        for rank, answer in enumerate(answers):
            assert answer[number][0].tobytes() == summed.tobytes()
            assert answer[number][1].tobytes() == total.owed[rank].tobytes()


def test_feedback_makes_up_for_what_the_wire_takes() -> None:
    """Check it after two epochs beside huge elements: parameters are several times nearer to exact sums'."""
    setting = next(one for one in SETTINGS if one.name == "huge elements")
    last = {way: train(setting, way, seed=3, epochs=2).parameters for way in CONSTRUCTED}
    away = {way: float(np.linalg.norm(last[way] - last[EXACT])) for way in CONSTRUCTED}
    assert 0 < away[FEEDBACK] < away[WIRE] / 3
    assert 0 < away[FLOAT32] < away[WIRE]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_training(way: str) -> None:
    setting = Setting(name="short", ways=(way,), epochs=1)
    one, again = (train(setting, way, seed=5) for _ in range(2))
    assert one.parameters.tobytes() == again.parameters.tobytes()
    assert one.accuracy == again.accuracy
    assert 0.5 < one.accuracy[-1] < 1
    assert train(setting, way, seed=6).parameters.tobytes() != one.parameters.tobytes()


def test_a_gradient_that_is_not_finite_ends_the_training() -> None:
    rows = np.ones((2, 300), np.float32)
    rows[1, 7] = np.nan
    for way in (WIRE, FEEDBACK, FLOAT32):
        with pytest.raises(FloatingPointError, match="diverges, give it a smaller rate"):
            WAYS[way]()(rows)


def row(way: str, *accuracy: list[float]) -> Row:
    return Row(setting="a", way=way, accuracy=list(accuracy), apart=[0.0] * len(accuracy))


def test_a_verdict_is_by_the_spread_of_the_first() -> None:
    first = row("one", [0.5, 0.90], [0.7, 0.94])  # means 0.6, 0.92; standard deviations 0.141, 0.028
    near = verdict(row("two", [0.5, 0.91], [0.5, 0.98]), first)
    assert near.difference == pytest.approx(0.025)
    assert (near.within, near.epochs_within, near.epochs) == (True, 2, 2)
    far = verdict(row("two", [0.6, 0.88], [0.7, 0.89]), first)
    assert far.difference == pytest.approx(-0.035)
    assert (far.within, far.epochs_within) == (False, 1)


def test_without_pytorch_the_cnn_is_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    settings, skipped = possible(SETTINGS)
    assert [one.name for one in settings] == ["digits network", "huge elements", "opposite pulls"]
    assert skipped == ["CNN is left out: PyTorch is not installed here: 'make gloo' installs it"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.convergence", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_figures(tmp_path: Path) -> None:
    places = {kind: tmp_path / kind for kind in ("json", "table", "figure")}
    written = [word for kind, place in places.items() for word in (f"--{kind}", str(place))]
    done = run("--seeds", "2", "--epochs", "1", "--settings", "digits network,opposite pulls", *written)
    assert done.returncode == 0, done.stderr
    rows = json.loads(places["json"].read_text())["rows"]
    assert [(one["setting"], one["verdict"] is None) for one in rows] == [
        *(("digits network", number == 0) for number in range(5)),
        *(("opposite pulls", number == 0) for number in range(4)),
    ]
    assert all(len(one["accuracy"]) == 2 for one in rows)
    assert all(share > 0 for one in rows if one["verdict"] for share in one["apart"])
    assert len(places["table"].read_text().splitlines()) == 2 + len(rows)
    assert places["figure"].read_text().count('class="line"') == len(rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seeds", "1"), "--seeds: a spread takes two or more"),
        (("--settings", "RNN"), "--settings: RNN: there are digits network, CNN, huge elements"),
        (("--epochs", "0"), "--epochs: one or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: tuple[str, ...], said: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_cnn_learns_from_gradients_that_are_sums_over_samples() -> None:
    pytest.importorskip("torch")
    setting = next(one for one in SETTINGS if one.name == "CNN")
    model = setting.model()
    training, test = load(seed=0)
    parameters = model.initial(seed=2)
    parts = [model.gradient(parameters, training.shard(rank, 3)) for rank in range(3)]
    assert all(part.any() for part in parts)
    np.testing.assert_allclose(sum(parts), model.gradient(parameters, training), rtol=1e-3, atol=1e-3)
    assert model.initial(seed=2).tobytes() == parameters.tobytes()
    assert model.initial(seed=3).tobytes() != parameters.tobytes()
    assert train(setting, WIRE, seed=0, epochs=4).accuracy[-1] > model.accuracy(parameters, test) + 0.3
