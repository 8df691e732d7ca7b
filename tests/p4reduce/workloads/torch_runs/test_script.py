"""Scripts that can be run, and the variables that each of their processes is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from p4reduce import torch_environment as backend
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.torch_runs import script
from p4reduce.workloads.torch_runs.script import Meeting, Script, environment, require_torch
from tests.topologies.states import cluster_state


def test_a_script_and_a_module_are_pythons_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("package").mkdir()
    Path("package/__main__.py").touch()
    assert Script.of(["train.py", "--lr", "1"]).command == [sys.executable, "-u", "train.py", "--lr", "1"]
    assert Script.of(["-m", "package.train", "-x"]).command[2:] == ["-m", "package.train", "-x"]
    assert Script.of(["package"]).words == ("package",)
    assert Script.of([str(tmp_path / "train.py")]).directory == tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no script to run: say '-- train.py ARGS'"),
        (["-m"], "-m needs the name of a module"),
        (["-c", "1"], "'-c' is no script"),
        (["train.py"], "there is no script train.py in "),
        (["."], ". is a directory without __main__.py"),
    ],
)
def test_what_cannot_run(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        Script.of(words)
    assert message in str(caught.value)


def test_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(WorkloadError, match="the directory that you are in is gone"):
        Script.of(["train.py"])


def test_each_process_is_told_what_torchrun_would(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    cluster = cluster_state("c1")
    told = [
        environment(cluster, cluster.hosts, rank, Meeting("torch-1", "172.31.0.1", 999)) for rank in (0, 1)
    ]
    assert [one.pop("RANK") for one in told] == [one.pop("GROUP_RANK") for one in told] == ["0", "1"]
    assert [one.pop("ROLE_RANK") for one in told] == ["0", "1"]
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert [one.pop(name) for one in told] == ["h1-eth0", "h2-eth0"]
    assert {one.pop("PATH").split(os.pathsep)[0] for one in told} == {str(Path(sys.executable).parent)}
    assert told[0] == told[1]
    expected = {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "172.31.0.1",
        "MASTER_PORT": "999",
        "TORCHELASTIC_RUN_ID": "torch-1",
        "P4REDUCE_CONTROLLER": "172.31.255.254:50051",
        "P4REDUCE_JOB": "torch-1",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: told[0][name] for name in expected} == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    own = environment(cluster, cluster.hosts, 0, Meeting("torch-1", "172.31.0.1", 999))
    assert own["OMP_NUM_THREADS"] == "3"  # a user's stays


def test_the_backend_asks_for_the_same_names() -> None:
    assert (script.CONTROLLER, script.JOB) == (backend.CONTROLLER, backend.JOB)
    cluster = cluster_state("c1")
    told = environment(cluster, cluster.hosts, 1, Meeting("torch-1", "172.31.0.1", 999))
    assert backend.job_of(told) == "torch-1"
    launcher = backend.launcher_of(told)
    assert launcher is not None
    assert launcher.name == "torchrun"


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "gloo_missing", lambda: "it is not there")
    with pytest.raises(WorkloadError, match=r"PyTorch is not installed for .*: 'make gloo' installs it"):
        require_torch()


def test_machines_have_no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "gloo_missing", lambda: "")
    require_torch()
    with pytest.raises(WorkloadError, match=r"no PyTorch in the machines of RoCE hosts \(h2, h3\)"):
        require_torch(["h2", "h3"])
