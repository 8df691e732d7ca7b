"""A second opinion: SimGrid's flows on the same links, where Debian's python3-simgrid is installed.

It lives in the system's Python, so each case is a process of that. Its cross-traffic is off: acknowledgements
are not modelled here either.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from p4reduce.scale.flows import Flow, Link, Network
from p4reduce.scale.ring import ring_s
from p4reduce.workloads.hierarchy import Shape, tensors_of_time
from p4reduce.workloads.strategies.names import FLAT_RING

PYTHON = "/usr/bin/python3"  # of Debian's packages
SCRIPT = Path(__file__).with_name("simgrid_flows.py")


def simgrid(*words: object) -> list[float]:
    """Run the script, and return the seconds that it prints."""
    done = subprocess.run(
        [PYTHON, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def _is_there() -> bool:
    try:
        return (
            subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


pytestmark = pytest.mark.skipif(
    not _is_there(), reason=f"no SimGrid in {PYTHON}: apt-get install python3-simgrid"
)


@pytest.mark.parametrize(("ranks", "latency_s"), [(4, 0.0), (8, 0.0), (8, 1e-3)])
def test_rings(ranks: int, latency_s: float) -> None:
    """A ring of hosts on links of 1e8 bytes a second, with parts of 1e7 bytes."""
    rate, part = 1e8, 1e7
    (found,) = simgrid("ring", ranks, rate, part, latency_s)
    ours = ring_s(np.full(ranks, part / rate), np.full(ranks, latency_s), steps=2 * (ranks - 1))
    assert found == pytest.approx(ours, rel=0.02)
    if latency_s == 0:
        formula = tensors_of_time(FLAT_RING, Shape(hosts=ranks, gpus_per_host=1, k=1.0)) * ranks * part / rate
        assert found == pytest.approx(formula, rel=0.02)


def test_flows_that_come_and_go_on_shared_links() -> None:
    """Three links, five flows of several lengths: each ends when SimGrid says so."""
    capacities: dict[Link, float] = {"a": 1e8, "b": 0.6e8, "c": 1.5e8}
    flows = [("a", 4e7, 0.0), ("ab", 2e7, 0.1), ("b", 3e7, 0.2), ("bc", 1e7, 0.0), ("c", 9e7, 0.3)]
    network, ends = Network(capacities), [0.0] * len(flows)

    def begin(number: int) -> None:
        links, size, _ = flows[number]

        def end() -> None:
            ends[number] = network.now

        network.start(Flow(size=size, loads=dict.fromkeys(links, 1.0)), end)

    for number, (_, _, at) in enumerate(flows):
        network.after(at, lambda number=number: begin(number))  # type: ignore[misc]
    network.run()
    given = [f"{link}={rate}" for link, rate in capacities.items()]
    found = simgrid("flows", *given, *(f"{links}:{size}:{at}" for links, size, at in flows))
    assert found == pytest.approx(ends, rel=0.02)
