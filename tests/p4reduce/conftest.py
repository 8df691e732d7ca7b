"""What the terminal of whoever runs the tests must not change."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "P4REDUCE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
