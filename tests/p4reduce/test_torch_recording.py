"""Steps and losses of scripts that know nothing of being looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p4reduce.workloads.torch_runs.record import RECORD, Record, read

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed ('make gloo' installs it)")

from p4reduce import torch_recording as recording  # noqa: E402 (where there is PyTorch)

pytestmark = pytest.mark.slow


class Noted:
    """A recorder, and what it writes down of what a test does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backward = torch.autograd.backward
        self.recorder = recording.Recorder(path)
        self.recorder.listen()

    @property
    def losses(self) -> list[float | None]:
        return read(self.path).losses


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[Noted]:
    """Yield a recorder that hears everything until the end of the test."""
    found = Noted(tmp_path / "steps.json")
    yield found
    found.recorder.close()


def parts() -> tuple[Any, Any, Any]:
    """Return a model, its optimizer, and something to learn."""
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 3)


def test_a_step_is_noted_with_its_time_and_its_loss(noted: Noted) -> None:
    model, optimizer, examples = parts()
    criterion = torch.nn.MSELoss()
    began, expected = time.monotonic(), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = criterion(model(examples), torch.zeros(4, 1))
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    found = read(noted.path)
    assert found.losses == expected
    assert began < found.ended[0] < found.ended[1] < found.ended[2] < time.monotonic()
    assert len(found.seconds) == 2


@pytest.mark.parametrize("kind", ["function", "tuple", "dict"])
def test_a_loss_that_no_module_returned_is_what_the_backward_pass_began_at(noted: Noted, kind: str) -> None:
    model, optimizer, examples = parts()

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def forward(self, given: Any) -> Any:
            out = model(given)
            loss = out.pow(2).mean()
            return {"tuple": (loss, out), "dict": {"loss": loss, "logits": out}}.get(kind, out)

    wrapped, expected = Wrapped(), []
    for _ in range(2):
        optimizer.zero_grad()
        out = wrapped(examples)
        loss = out.pow(2).mean() if kind == "function" else out[0 if kind == "tuple" else "loss"]
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert noted.losses == expected
    noted.recorder.close()
    assert torch.autograd.backward is noted.backward


def test_a_backward_pass_may_begin_elsewhere_than_at_a_tensor(noted: Noted) -> None:
    model, optimizer, examples = parts()
    out = model(examples)
    edge = torch.autograd.graph.get_gradient_edge(out)
    torch.autograd.backward(edge, torch.ones(4, 1))
    torch.autograd.backward([model(examples).sum(), model(examples).sum()])
    optimizer.step()
    assert noted.losses == [None]
    assert model.weight.grad is not None


def test_a_step_that_raises_is_none_and_the_next_one_is(noted: Noted) -> None:
    model, optimizer, _ = parts()

    class Broken(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            super().step()
            raise ValueError("out of range")

    broken = Broken(model.parameters(), lr=0.1)
    for _ in range(2):
        with pytest.raises(ValueError, match="out of range"):
            broken.step()
    before = len(noted.losses)
    optimizer.step()
    assert len(noted.losses) == before + 1


def test_of_several_losses_the_last_counts_and_each_once(noted: Noted) -> None:
    model, optimizer, examples = parts()
    criterion = torch.nn.MSELoss()
    for target in (0.0, 1.0):
        last = criterion(model(examples), torch.full((4, 1), target))
        last.backward()
    optimizer.step()
    optimizer.step()
    assert noted.losses == [last.item(), None]


def test_a_model_that_returns_its_loss(noted: Noted) -> None:
    model, optimizer, examples = parts()

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def forward(self, given: Any) -> Any:
            return SimpleNamespace(loss=model(given).square().mean(), logits=given)

    loss = Whole()(examples).loss
    loss.backward()
    optimizer.step()
    assert noted.losses == [loss.item()]


def test_what_is_no_loss(noted: Noted) -> None:
    """Numbers without a gradient (as while evaluating), and whatever is not a single number."""
    model, optimizer, examples = parts()
    with torch.no_grad():
        torch.nn.MSELoss()(model(examples), torch.zeros(4, 1))
    model(examples).backward(torch.ones(4, 1))
    optimizer.step()
    assert noted.losses == [None]


def test_a_step_inside_another_is_one(noted: Noted) -> None:
    _, inner, _ = parts()

    class Outer(torch.optim.Optimizer):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            inner.step()

    Outer([torch.nn.Parameter(torch.ones(1))], {}).step()
    assert noted.losses == [None]


def test_a_forked_process_writes_nothing(noted: Noted) -> None:
    _, optimizer, _ = parts()
    child = os.fork()
    if child == 0:
        optimizer.step()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert noted.losses == []
    optimizer.step()
    assert noted.losses == [None]


def test_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_recorder", None)
    recording.begin({})
    recording.note(backend="gloo")
    assert recording._recorder is None


def test_asked_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_recorder", None)
    path = tmp_path / "steps.json"
    recording.begin({RECORD: str(path)})
    recording.begin({RECORD: str(path)})  # once is enough
    try:
        recording.note(backend="gloo")
        parts()[1].step()
    finally:
        assert recording._recorder is not None
        recording._recorder.close()
    found = read(path)
    assert found == Record([found.ended[0]], [None], "gloo")
