"""What runs a sweep's cells: processes, or the workers of a Dask scheduler."""

from __future__ import annotations

import importlib.util
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from p4reduce.scale.executors import executor_of, require_workers
from p4reduce.scale.fabric import Fabric
from p4reduce.scale.sweep import Cell, run_all
from p4reduce.workloads import hierarchy
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.strategies import names
from p4reduce.workloads.traffic.tables import bundled
from tests.p4reduce.scale.fabrics import fabric

HAS_DASK = importlib.util.find_spec("distributed") is not None


def test_numbers_are_processes() -> None:
    with executor_of("1") as executor:
        assert executor is None
    with executor_of("2") as executor:
        assert isinstance(executor, ProcessPoolExecutor)
        assert executor.submit(os.getpid).result() != os.getpid()


@pytest.mark.parametrize(
    "text", ["0", "-1", "two", "", "257", "1.5", "²", "dask://", "dask://here", "dask://h:x"]
)
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"say how many processes \(2\), or where a Dask scheduler is"):
        require_workers(text)


@pytest.mark.skipif(HAS_DASK, reason="Dask is installed")
def test_without_dask_it_says_what_to_install() -> None:
    with pytest.raises(WorkloadError, match=r"pip install 'p4reduce\[dask\]', or take processes"):
        require_workers("dask://127.0.0.1:8786")


def test_a_cell_that_fails_ends_the_sweep() -> None:
    class Broken(Fabric):
        def capacities(self) -> dict[object, float]:
            raise ArithmeticError("no links")

    good = fabric(hosts=4, gpus_per_host=2)
    broken = Broken(**{name: getattr(good, name) for name in good.__dataclass_fields__})
    cells = [Cell(what=1 << 20, strategy=names.FLAT_RING, fabric=each) for each in (good, broken)]
    with pytest.raises(ArithmeticError, match="no links"):
        run_all(cells)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DASK, reason="Dask is not installed: pip install 'p4reduce[dask]'")
class TestDask:
    def test_a_small_cluster_gives_the_same(self, tmp_path: Path) -> None:
        from distributed import LocalCluster

        on = fabric(hosts=16, gpus_per_host=8)
        cells = [
            Cell(what=what, strategy=strategy, fabric=on)
            for what in (bundled("resnet-50"), 1 << 20)
            for strategy in hierarchy.ALL
        ]
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
            ) as cluster,
            executor_of(cluster.scheduler_address.replace("tcp://", "dask://")) as executor,
        ):
            found = run_all(cells, executor)
        assert found == run_all(cells)

    def test_where_no_scheduler_is_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("p4reduce.scale.executors._CONNECT_S", 1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (
            pytest.raises(
                WorkloadError, match=r"no Dask scheduler answers at .*: start one with 'dask scheduler'"
            ),
            executor_of(f"dask://127.0.0.1:{port}"),
        ):
            pass
