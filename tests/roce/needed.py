"""Needs of tests on RoCE hosts, and the reason for which they are skipped without them."""

from __future__ import annotations

import pytest

from topologies.errors import TopologyError
from topologies.machines import image, machine


def why_not() -> str:
    """Return why machines cannot be booted here; empty if they can."""
    try:
        machine.require_programs()
        image.require()
    except TopologyError as error:
        return str(error)
    return ""


machines = pytest.mark.skipif(why_not() != "", reason=why_not() or "machines can be booted")
