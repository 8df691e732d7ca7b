"""State that the hooks keep between steps. Their sums are held to Gloo's on a rack (tests/torch_suite)."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

from p4reduce.torch.hooks import InNetwork, in_network_hook


def bucket(*parameters: Any) -> Any:
    return SimpleNamespace(parameters=lambda: list(parameters), buffer=lambda: torch.zeros(1))


def test_a_bucket_keeps_its_remainder_for_as_long_as_it_is_the_same() -> None:
    state = InNetwork()
    one, two, three = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    first, last = state.feedback(bucket(one, two)), state.feedback(bucket(three))
    assert first is not last
    assert state.feedback(bucket(one, two)) is first
    assert state.feedback(bucket(three)) is last
    rebuilt = state.feedback(bucket(two, three))
    assert rebuilt not in (first, last)
    assert state.feedback(bucket(one)) is not first
    assert len(state._feedback) == 2  # nothing is kept of the buckets before


def test_another_models_parameters_do_not_inherit() -> None:
    state = InNetwork()
    gone = torch.nn.Parameter(torch.ones(2))
    feedback = state.feedback(bucket(gone))
    key = id(gone)
    del gone
    gc.collect()
    new = torch.nn.Parameter(torch.ones(3))
    state._feedback[id(new)] = state._feedback.pop(key)  # as if it had come to the same address
    assert state.feedback(bucket(new)) is not feedback


def test_the_state_has_to_be_ours() -> None:
    with pytest.raises(TypeError, match=r"has to be p4reduce.torch.InNetwork\(\), not None"):
        in_network_hook(None, bucket(torch.ones(1)))  # type: ignore[arg-type]
