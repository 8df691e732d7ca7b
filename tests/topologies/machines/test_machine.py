"""A machine's command line, what it is told, and what is said where it does not boot; nothing boots here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.topologies.states import cluster_state, host_state, myself
from topologies import launch
from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import access, fleet, machine
from topologies.machines.image import Image
from topologies.machines.machine import Machine, MachineSettings
from topologies.machines.network import Port
from topologies.processes import ProcessId, wait_until
from topologies.state import ClusterState, HostKind, HostState

Saved = Callable[..., ClusterState]
_IMAGE = Image(Path("/images/1"))
_PORTS = (Port(tap="h1-tap0", mac="02:00:00:00:00:01"), Port(tap="h1-tap1", mac="02:03:00:00:00:01"))


def command_line() -> list[str]:
    return machine.command_line(_IMAGE, "h1", _PORTS, console=Path("/c,1/h1"), shared=Path("/c,1/m"))


def test_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_QEMU_ACCEL", raising=False)
    words = command_line()
    assert words[words.index("-accel") + 1] == "tcg"
    assert words[words.index("-kernel") + 1] == "/images/1/vmlinux"
    assert "file,id=console,path=/c,,1/h1" in words
    cards = [word for word in words if word.startswith("virtio-net-pci")]
    assert [card.count("=off") for card in cards] == [9, 9]
    assert [port.mac in card for port, card in zip(_PORTS, cards, strict=True)] == [True, True]
    shares = [word for word in words if word.startswith("local,")]
    assert ["readonly=on" in share for share in shares] == [True, True]


def test_the_accelerator_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_QEMU_ACCEL", "kvm")
    words = command_line()
    assert words[words.index("-accel") + 1] == "kvm"
    assert words[words.index("-cpu") + 1] == "host"


def with_keys(cluster: ClusterState) -> ClusterState:
    """Write files in the place of those that ssh-keygen makes."""
    for name in (f"{access.CLIENT_KEY}.pub", access.SERVER_KEY):
        (cluster.directory / name).write_text(name)
    return cluster


def test_what_a_machine_is_told(saved: Saved) -> None:
    cluster = with_keys(saved())
    settings = MachineSettings(
        host=cluster.hosts[0],
        prefix_length=24,
        management_prefix_length=16,
        mtu=4224,
        neighbours=[("10.0.0.2", "02:00:00:00:00:02")],
        hosts={"h1": "10.0.0.1", "h2": "10.0.0.2"},
    )
    directory = cluster.directory / "machines" / "h1"
    settings.write(directory, cluster.directory)
    told = {path.name: path.read_text() for path in directory.iterdir()}
    assert told["settings"].splitlines()[:3] == ["name=h1", "fabric=h1-eth0", "management=172.31.0.1"]
    for line in (
        "link set dev h1-eth0 mtu 4224 txqueuelen 4096 up",
        "address add 10.0.0.1/24 dev h1-eth0",
        "address add 172.31.0.1/16 dev h1-mgmt",
        "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev h1-eth0 nud permanent",
    ):
        assert line in told["network"].splitlines()
    packages = [Path(line) for line in told["packages"].splitlines()]
    assert {"host_agent", "p4reduce", "controller"} <= {path.name for path in packages}
    assert all((path / "__init__.py").exists() for path in packages)
    assert told["hosts"].splitlines()[1:] == ["10.0.0.1 h1", "10.0.0.2 h2"]


def test_booted_when_it_says_so(saved: Saved) -> None:
    one = Machine(saved(), host_state(1))
    one.console.write_bytes(b"Linux\xff\r\n")
    assert not one.booted()
    one.console.write_bytes(b"Linux\r\nP4REDUCE-READY\r\n")
    assert one.booted()


def test_a_machine_that_gives_up(saved: Saved) -> None:
    one = Machine(saved(), host_state(1))
    one.console.write_text("Linux\r\nP4REDUCE-FAILED there is no RoCE v2 device on h1-eth0\r\n")
    with pytest.raises(TopologyError, match=r"host h1 does not boot: there is no RoCE v2 device on h1-eth0$"):
        one.booted()


def settings_of(cluster: ClusterState) -> MachineSettings:
    """Return the settings of a cluster's first host."""
    return MachineSettings(
        host=cluster.hosts[0],
        prefix_length=24,
        management_prefix_length=16,
        mtu=1500,
        neighbours=[],
        hosts={},
    )


@pytest.fixture
def waiting(saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """A machine that has been started and not told to go; its QEMU writes a file "runs" when it does."""
    qemu = tmp_path / "qemu"
    qemu.write_text("#!/bin/sh\necho $$ >runs.new; mv runs.new runs; exec sleep 1000\n")
    qemu.chmod(0o755)
    cluster = with_keys(saved())
    popen = subprocess.Popen

    def in_no_namespace(words: list[str], **options: object) -> subprocess.Popen[bytes]:
        return popen(words[words.index("--") + 1 :], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(machine, "QEMU", str(qemu))
    monkeypatch.setattr(subprocess, "Popen", in_no_namespace)
    one = Machine(cluster, cluster.hosts[0])
    one.start(_IMAGE, settings_of(cluster), _PORTS)
    yield one
    for process in one.processes():
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def test_a_machine_runs_once_it_is_recorded(waiting: Machine) -> None:
    recorded = ProcessId.of(waiting.processes()[0].pid)
    runs = waiting.cluster.directory / "runs"
    assert not runs.exists()
    waiting.go()
    assert wait_until(runs.exists, timeout_s=30)
    assert runs.read_text().strip() == str(recorded.pid)  # what was recorded is QEMU itself
    assert recorded.alive()


def test_a_machine_that_nobody_recorded_never_runs(waiting: Machine) -> None:
    """Close the pipe, as the kernel does if the starter was killed in between."""
    process = waiting.processes()[0]
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) != 0
    assert not (waiting.cluster.directory / "runs").exists()


def test_connections_are_tried_again(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that they are until the boot timeout, whose complaint is then ssh's."""
    cluster = saved()
    attempts: list[str] = []

    def connect(cluster: ClusterState, host: HostState) -> subprocess.Popen[bytes]:
        attempts.append(host.name)
        script = "echo Connection reset >&2; exit 255" if len(attempts) < 3 else "sleep 1000"
        return subprocess.Popen(["sh", "-c", script], stderr=subprocess.PIPE, start_new_session=True)

    monkeypatch.setattr(access, "connect", connect)
    monkeypatch.setattr(machine, "_BETWEEN_TRIES_S", 0.0)
    one = Machine(cluster, cluster.hosts[0])
    one.console.write_text("P4REDUCE-READY\r\n")
    machines = fleet.Fleet(_IMAGE, progress=lambda text: None)
    machines._machines.append(one)
    assert wait_until(lambda: one.reachable() or len(attempts) == 3, timeout_s=30)
    assert attempts == ["h1"] * 3
    complaint = "no connection of machines h1 within 0 s; h1: it cannot be reached: Connection reset"
    with pytest.raises(TopologyError, match=complaint):
        machines.wait(timeout_s=0.0)
    access.connection(cluster, cluster.hosts[0]).write_text("")
    machines.wait(timeout_s=0.0)
    machines.stop()


def test_a_qemu_that_does_not_start(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_keys(saved())
    popen = subprocess.Popen

    def qemu(words: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert words[0] == "nsenter"
        return popen(["sh", "-c", "echo qemu: no tap h1-tap0 >&2; exit 1"], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "Popen", qemu)
    one = Machine(cluster, cluster.hosts[0])
    one.start(_IMAGE, settings_of(cluster), _PORTS)
    one.processes()[0].wait()
    one.go()
    with pytest.raises(TopologyError, match="machine of host h1 has ended: qemu: no tap h1-tap0"):
        one.booted()


def test_a_boot_that_takes_too_long(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = saved()
    machines = fleet.Fleet(_IMAGE, progress=lambda text: None)
    one = Machine(cluster, replace(cluster.hosts[0], kind=HostKind.ROCE))
    one.console.write_text("".join(f"line {number}\r\n" for number in range(20)))
    machines._machines.append(one)
    complaint = r"no boot of machines h1 within 0 s; h1: line 15 / .* / line 19"
    monkeypatch.delenv("P4REDUCE_QEMU_ACCEL", raising=False)
    damaged = r" \(if the image is damaged: remove /images/1, then run 'make roce-image' .*\)$"
    with pytest.raises(TopologyError, match=complaint + damaged):
        machines.wait(timeout_s=0.0)
    monkeypatch.setenv("P4REDUCE_QEMU_ACCEL", "kvm")
    with pytest.raises(TopologyError, match=complaint + r" \(unset P4REDUCE_QEMU_ACCEL, which is kvm"):
        machines.wait(timeout_s=0.0)


def test_what_machines_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UnsupportedError,
        match=r"need qemu-system-x86_64, ssh, ssh-keygen: run 'make roce-image' .*apt-get install",
    ):
        machine.require_programs()


def test_a_command_for_a_machine() -> None:
    cluster = cluster_state("c1")
    host = replace(cluster.hosts[0], kind=HostKind.ROCE, machine=myself())
    words = access.command(cluster, host, ["ls", "a b"], env={"X": "1"}, directory=Path("/etc"))
    assert words[:3] == ["nsenter", f"--net=/run/netns/{cluster.namespace}", "--"]
    assert words[3:8] == ["ssh", "-F", "ssh_config", "-T", "h1"]
    assert words[8].startswith("exec /usr/local/lib/p4reduce-session /host/etc PATH=")
    assert words[8].endswith(" X=1 -- ls 'a b'")
    assert launch.python(host) == "/usr/bin/python3"
    assert launch.python(cluster.hosts[1]) == sys.executable


def test_commands_of_a_machine_that_is_gone() -> None:
    cluster = cluster_state("c1")
    with pytest.raises(TopologyError, match="the machine of host h1 is gone"):
        access.command(cluster, replace(cluster.hosts[0], kind=HostKind.ROCE), ["true"])
