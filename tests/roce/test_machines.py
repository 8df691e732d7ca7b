"""RoCE hosts as a user meets them: booting, commands, workers that die, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.team import Team
from tests.p4reduce.clusters import Traces, clusters_interfaces, must, p4reduce, ready, started
from tests.roce.needed import machines
from topologies import launch, state
from topologies.machines import access
from topologies.processes import wait_until
from topologies.state import ClusterState

pytestmark = [pytest.mark.emulation, pytest.mark.roce, machines, pytest.mark.timeout(600)]

_UP = ("up", "rack", "--hosts", "2", "--host-kind", "roce,emulated")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """The state of these tests' clusters, which is gone in the end, as are their interfaces."""
    made = Path(tempfile.mkdtemp(prefix="p4r-"))  # not tmp_path: a socket's path is short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P4REDUCE_STATE_DIR", str(made))
        yield made
        p4reduce("down", "--all")
    assert os.listdir(made) == []
    assert clusters_interfaces() == set()
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[ClusterState]:
    """A machine beside an emulated host."""
    name = f"m{os.getpid()}"
    must(*_UP, "--cluster", name, "--detach")
    cluster = ready(name)
    traces = Traces.of(cluster)
    yield cluster
    must("down", "--cluster", name)
    assert traces.left() == []


def in_machine(cluster: ClusterState, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in the machine by `p4reduce exec h1`."""
    return subprocess.run(
        [*(sys.executable, "-m", "p4reduce", "exec", "--cluster", cluster.name, "h1", "--"), *command],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/etc",
        check=False,
    )


def running(cluster: ClusterState, what: str) -> int:
    """Return the number of the machine's processes that have `what` in their command line."""
    return int(in_machine(cluster, "pgrep", "-c", "-f", what).stdout)


def test_a_machine_is_its_host(cluster: ClusterState) -> None:
    host = cluster.host("h1")
    addresses = in_machine(cluster, "ip", "-br", "address").stdout
    assert f"{host.ip}/24" in addresses
    assert f"{host.management_ip}/16" in addresses
    assert host.mac in in_machine(cluster, "ip", "-br", "link", "show", host.interface).stdout
    rdma = in_machine(cluster, "rdma", "link").stdout
    assert f"link rxe0/1 state ACTIVE physical_state LINK_UP netdev {host.interface}" in rdma
    neighbours = in_machine(cluster, "ip", "neigh", "show", "dev", host.interface).stdout
    assert f"{cluster.host('h2').mac} PERMANENT" in neighbours
    assert in_machine(cluster, "ping", "-c", "1", cluster.controller.partition(":")[0]).returncode == 0
    modules = "import pyverbs.device, numpy, grpc, ml_dtypes, p4reduce, p4reduce.workloads.worker"
    assert in_machine(cluster, launch.python(host), "-c", modules).stderr == ""
    protobuf = "from google.protobuf.internal import api_implementation; print(api_implementation.Type())"
    assert in_machine(cluster, "python3", "-c", protobuf).stdout == "upb\n"


def test_exec(cluster: ClusterState) -> None:
    assert in_machine(cluster, "sh", "-c", "exit 7").returncode == 7
    assert in_machine(cluster, "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    assert in_machine(cluster, "pwd").stdout == "/host/etc\n"
    assert in_machine(cluster, "cat", text="1\n2\n").stdout == "1\n2\n"
    assert in_machine(cluster, "printf", "%s|", "a b", "$HOME", "'").stdout == "a b|$HOME|'|"
    missing = in_machine(cluster, "no-such-command")
    assert (missing.returncode, missing.stderr) == (127, "no-such-command: command not found\n")


def test_this_hosts_files_are_read_only(cluster: ClusterState, directory: Path) -> None:
    """Check it whatever the machine's root does: QEMU exports them read-only."""
    target = directory / "from-the-machine"
    assert in_machine(cluster, "mount", "-o", "remount,rw", "/host").returncode == 0
    try:
        written = in_machine(cluster, "sh", "-c", f"echo x >/host{target}")
        assert written.returncode != 0
        assert "Read-only file system" in written.stderr
        assert not target.exists()
    finally:
        assert in_machine(cluster, "mount", "-o", "remount,ro", "/host").returncode == 0


def test_sshd_is_on_the_management_network_only(cluster: ClusterState) -> None:
    """Check that it also carries no connections to elsewhere."""
    address = f"{cluster.host('h1').management_ip}:22"
    listening = in_machine(cluster, "ss", "-Hltn").stdout.split()
    assert [word for word in listening if word.endswith(":22")] == [address]
    settings = in_machine(cluster, "/usr/sbin/sshd", "-T").stdout
    assert "allowtcpforwarding no" in settings
    forwarded = subprocess.run(
        [*access.client(cluster), "-o", "ControlPath=none", "-W", address, "h1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cluster.directory,
        check=False,
    )
    assert (forwarded.returncode, forwarded.stdout) == (255, "")  # what listens there says "SSH-2.0-..."
    assert "forwarding failed" in forwarded.stderr


def test_a_command_dies_with_whoever_started_it(cluster: ClusterState) -> None:
    # The child has nothing to do with its parent's ssh session but its process group.
    process = launch.start(cluster, cluster.host("h1"), ["sh", "-c", "sleep 98765 & sleep 98765; true"])
    assert wait_until(lambda: running(cluster, "^sleep 98765") == 2, timeout_s=30)
    process.kill()
    assert wait_until(lambda: running(cluster, "^sleep 98765") == 0, timeout_s=30)
    launch.stop(cluster, [process])


def test_workers(cluster: ClusterState) -> None:
    with Team(cluster, 2) as team:
        assert team.do("leave") == [{}, {}]
        assert running(cluster, "workloads[.]worker") > 0
        team.kill(0)
        assert wait_until(lambda: running(cluster, "workloads[.]worker") == 0, timeout_s=30)
        with pytest.raises(WorkloadError, match="worker 0 has ended"):
            team.do("leave")
    assert running(cluster, "workloads[.]worker") == 0


def test_killed_beside_another(cluster: ClusterState) -> None:
    """Kill the owner of a cluster, which another cluster does not notice."""
    name = f"{cluster.name}-b"
    must(*_UP, "--cluster", name, "--detach")
    other = ready(name)
    traces = Traces.of(other)
    machine = other.host("h1").machine
    assert machine is not None
    machine.signal(signal.SIGKILL)
    assert wait_until(lambda: not machine.alive(), timeout_s=10)
    gone = p4reduce("exec", "--cluster", name, "h1", "true")
    assert (gone.returncode, "the machine of host h1 is gone" in gone.stderr) == (1, True)
    other.owner.signal(signal.SIGKILL)
    assert wait_until(lambda: not other.owner.alive(), timeout_s=10)
    left = p4reduce("down", "--cluster", name)
    assert f"cluster {name}: removed what was left" in left.stdout
    assert traces.left() == []
    assert in_machine(cluster, "true").returncode == 0


def test_interrupted_while_machines_boot(directory: Path) -> None:
    name = f"i{os.getpid()}"
    with started(*_UP, "--cluster", name) as process:

        def boots() -> bool:
            found = state.load(name)
            return found is not None and found.controller_process is not None

        assert wait_until(boots, timeout_s=60)
        found = state.load(name)
        assert found is not None
        assert not found.ready
        traces = Traces.of(found)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert traces.left() == []
