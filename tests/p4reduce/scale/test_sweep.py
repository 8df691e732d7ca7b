"""Sweeps: the largest that is promised, and the same by whatever executor."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from p4reduce.scale import findings
from p4reduce.scale.fabric import Fabric
from p4reduce.scale.sweep import Cell, Outcome, run, run_all
from p4reduce.workloads import hierarchy
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import IN_NETWORK
from p4reduce.workloads.traffic.tables import MODELS, bundled
from tests.p4reduce.scale.fabrics import fabric

pytestmark = pytest.mark.slow


def sweep(
    *what: str | int, hosts: tuple[int, ...], strategies: tuple[str, ...] = hierarchy.ALL
) -> list[Cell]:
    return [
        Cell(
            what=bundled(one) if isinstance(one, str) else one,
            strategy=strategy,
            fabric=fabric(hosts=number, gpus_per_host=8, alpha_s=3e-6),
        )
        for one in what
        for number in hosts
        for strategy in strategies
    ]


def test_five_models_by_four_strategies_on_1024_gpus() -> None:
    four = tuple(one for one in hierarchy.ALL if one not in (names.HIERARCHICAL_PHASES, IN_NETWORK))
    found = run_all(sweep(*MODELS, hosts=(4, 8, 16, 32, 64, 128), strategies=four))
    assert len(found) == 5 * 6 * 4
    assert {one.cell.fabric.gpus for one in found} == {32, 64, 128, 256, 512, 1024}
    for one in found:
        assert one.waiting_s is not None
        assert one.summing_s is not None
        assert one.seconds >= one.formula_s * 0.98  # headers are paid for, latencies come on top
        assert one.waiting_s <= one.summing_s <= one.seconds * 1.000001
    # With k = 12 each model is fastest in the network.
    assert {
        best.cell.strategy
        for group in findings.by_subject(found)
        for best in map(findings.fastest, findings.by_gpus(group))
    } == {names.HIERARCHICAL}


def numbers(found: list[Outcome]) -> list[tuple[float, ...]]:
    return [(one.seconds, one.formula_s, one.nic_bytes, one.waiting_s or 0.0) for one in found]


def test_any_executor_gives_the_same_in_the_same_order() -> None:
    cells = sweep("resnet-50", 1 << 20, hosts=(2, 5))
    here = run_all(cells)
    assert [one.cell for one in here] == cells
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        for executor in (threads, processes):
            assert numbers(run_all(cells, executor)) == numbers(here)


def test_a_cell_that_fails_ends_the_sweep() -> None:
    class Broken(Fabric):
        def capacities(self) -> dict[object, float]:
            raise ArithmeticError("no links")

    good = fabric(hosts=4, gpus_per_host=2)
    broken = Broken(**{name: getattr(good, name) for name in good.__dataclass_fields__})
    cells = [Cell(what=1 << 20, strategy=names.FLAT_RING, fabric=each) for each in (good, broken)]
    with pytest.raises(ArithmeticError, match="no links"):
        run_all(cells)


def test_bus_bandwidth_is_what_a_ring_would_have_to_carry() -> None:
    (one,) = run_all([Cell(what=1 << 30, strategy=names.FLAT_RING, fabric=fabric(hosts=16, gpus_per_host=8))])
    assert one.bus_gbit_s == pytest.approx(100, rel=0.01)
    assert one.waiting_s is None


@pytest.mark.parametrize(("piece", "slower"), [(None, 1.0), (1 << 20, 1.0), (1 << 25, 1.75)])
def test_a_pipeline_is_as_asked_for(piece: int | None, slower: float) -> None:
    """Check that with one piece it is no better than phases are."""
    on = fabric(hosts=4, gpus_per_host=8, k=2.0)
    found = run(Cell(what=1 << 28, strategy=names.HIERARCHICAL, fabric=on, piece=piece))
    phases = run(Cell(what=1 << 28, strategy=names.HIERARCHICAL_PHASES, fabric=on, piece=piece))
    assert found.seconds == pytest.approx(slower * found.formula_s, rel=0.1)
    assert phases.seconds == pytest.approx(phases.formula_s, rel=0.03)
    assert (found.seconds < 0.9 * phases.seconds) == (slower == 1)


def test_cells_that_cannot_be() -> None:
    on = fabric(hosts=4, gpus_per_host=8)
    with pytest.raises(
        WorkloadError, match="a piece of 100 bytes is less than a message: take 65536 or more"
    ):
        Cell(what=1 << 20, strategy=names.HIERARCHICAL, fabric=on, piece=100)
    for size in (0, 2**40 + 1):
        with pytest.raises(WorkloadError, match=f"{size} bytes to sum: take 1 to"):
            Cell(what=size, strategy=names.HIERARCHICAL, fabric=on)


@pytest.mark.parametrize("strategy", hierarchy.ALL)
def test_the_largest_sums_are_simulated_too(strategy: str) -> None:
    """Check that they are simulated by pieces that are longer than usual."""
    on = fabric(hosts=4, gpus_per_host=8)
    found = run(Cell(what=2**40, strategy=strategy, fabric=on))
    assert found.seconds == pytest.approx(found.formula_s, rel=0.03)
