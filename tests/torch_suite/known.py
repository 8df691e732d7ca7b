"""Tests that Gloo passes and p4reduce does not, each with its reason. One that passes fails the suite."""

from __future__ import annotations

from typing import Final

_BY_NAME: Final = "PyTorch 2.13 refuses monitored_barrier of any backend that is not called gloo"

KNOWN: Final[dict[str, str]] = {
    "test_get_backend": "the test wants the name it was started with, gloo; p4reduce says p4reduce",
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_sparse_all_reduce_sum": "p4reduce refuses sparse tensors with a sentence",
}
