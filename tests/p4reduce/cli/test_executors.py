"""`--workers`: processes that end when they have to, or the workers of a Dask scheduler."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from p4reduce.cli.app import run
from p4reduce.cli.executors import executor_of, require_workers
from p4reduce.scale.sweep import Cell, run_all
from p4reduce.workloads import hierarchy
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.tables import bundled
from tests.p4reduce.scale.fabrics import fabric

HAS_DASK = importlib.util.find_spec("distributed") is not None


def test_numbers_are_processes() -> None:
    with executor_of("1") as executor:
        assert executor is None
    with executor_of("2") as executor:
        assert isinstance(executor, ProcessPoolExecutor)
        assert executor.submit(os.getpid).result() != os.getpid()


def test_who_leaves_waits_for_nobody() -> None:
    with executor_of("2") as executor:
        assert executor is not None
        for _ in range(8):
            executor.submit(time.sleep, 3600)


def test_a_process_that_is_killed_is_said_so() -> None:
    def killed() -> None:
        with executor_of("2") as executor:
            assert executor is not None
            executor.submit(os._exit, 9).result()

    with pytest.raises(WorkloadError, match=r"a process that simulated was killed.*take fewer --workers"):
        killed()


def test_processes_end_with_whoever_made_them() -> None:
    """Check that they do however that ends: here by SIGKILL."""
    code = """if True:
        import os, time
        from p4reduce.cli.executors import executor_of

        with executor_of("2") as executor:
            print(executor.submit(os.getpid).result(), flush=True)
            executor.submit(time.sleep, 3600)
            executor.submit(time.sleep, 3600).result()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        process = int(maker.stdout.readline())
        os.kill(process, 0)
        maker.send_signal(signal.SIGKILL)
        # Its end of the pipe that we read is held by the others, too.
        assert maker.stdout.read() == ""
    assert maker.returncode == -signal.SIGKILL


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

    def test_simulated_faults_are_the_same(self, tmp_path: Path) -> None:
        from distributed import LocalCluster

        def summary(*words: str) -> dict[str, object]:
            path = tmp_path / "found.json"
            assert run(["simulate-faults", "--seeds", "1..30", *words, "--json", str(path)]) == 0
            found: dict[str, object] = json.loads(path.read_text())
            return {name: found[name] for name in found.keys() - {"seconds", "seeds_per_s"}}

        with LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster:
            there = summary("--workers", cluster.scheduler_address.replace("tcp://", "dask://"))
        assert there == summary()

    def test_what_goes_wrong_there_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import dask
        from distributed import LocalCluster

        def ask(address: str) -> None:
            with executor_of(address) as executor:
                assert executor is not None
                executor.submit(os._exit, 1).result()

        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),
            LocalCluster(
                n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
            ) as cluster,
        ):
            address = cluster.scheduler_address.replace("tcp://", "dask://")
            with pytest.raises(WorkloadError, match="were killed, maybe for want of memory"):
                ask(address)
            monkeypatch.setattr("p4reduce.cli.executors._OURS", "of-no-distribution")
            with pytest.raises(WorkloadError, match="has no p4reduce: install it there, too"):
                ask(address)

    def test_where_no_scheduler_is_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("p4reduce.cli.executors._CONNECT_S", 1)
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
