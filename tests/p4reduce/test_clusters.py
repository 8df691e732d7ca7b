"""Clusters up and down: they come up, work side by side, and leave nothing, however they end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.p4reduce.clusters import P4REDUCE, UP_TIMEOUT_S, Traces, must, p4reduce, ready, started
from topologies import state
from topologies.processes import wait_until

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("own_state")]


def test_up_work_and_down(name: str, tmp_path: Path) -> None:
    must("up", "rack", "--hosts", "3", "--cluster", name, "--detach")
    traces = Traces.of(ready(name))
    result = tmp_path / "result.json"
    printed = must("allreduce", "--bytes", "100000", "--dtype", "int32", "--verify", "--json", str(result))
    assert "equal to NumPy's" in printed
    found = json.loads(result.read_text())
    assert found["integer_sum_exact"]
    assert found["ranks_bitwise_equal"]
    assert found["workers"] == 3
    assert found["counters"]["aggregated"] > 0
    assert found["in_network"]["bytes"] == 100000
    hosts = [port["host"] for port in json.loads(must("show", "ports", "--json"))]
    assert hosts == ["h1", "h2", "h3"]
    must("down")
    assert traces.left() == []


def test_two_at_once(name: str) -> None:
    first, second = f"{name}a", f"{name}b"
    must("up", "rack", "--hosts", "2", "--cluster", first, "--detach")
    must("up", "rack", "--hosts", "3", "--cluster", second, "--detach")
    one, two = Traces.of(ready(first)), Traces.of(ready(second))
    for cluster, workers in ((first, 2), (second, 3)):
        printed = must("allreduce", "--cluster", cluster, "--bytes", "64K", "--verify", "--json", "-")
        assert json.loads(printed)["workers"] == workers
    unclear = p4reduce("job", "list")
    assert unclear.returncode == 1
    assert f"({first}, {second}): say which with --cluster" in unclear.stderr
    must("down", "--cluster", first)
    assert one.left() == []
    assert all(process.alive() for process in two.processes)
    must("allreduce", "--bytes", "64K", "--verify")
    must("down")
    assert two.left() == []


def test_the_same_name_twice(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    again = p4reduce("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    assert again.returncode == 1
    assert f"cluster {name} is running already" in again.stderr
    assert "Traceback" not in again.stderr
    must("allreduce", "--bytes", "64K", "--verify")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_leaves_nothing(name: str, number: signal.Signals) -> None:
    with started("demo", "--cluster", name, "--workers", "2") as demo:
        cluster = ready(name)
        assert wait_until(lambda: cluster.workers.is_dir() and any(cluster.workers.iterdir()), timeout_s=60)
        traces = Traces.of(cluster)
        demo.send_signal(number)
        _, complaint = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert "Traceback" not in complaint
    assert traces.left() == []


def test_a_command_in_a_host(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    try:
        assert "10.0.0.2/24" in must("exec", "--cluster", name, "h2", "--", "ip", "-4", "addr", "show")
        assert p4reduce("exec", "--cluster", name, "h1", "--", "sh", "-c", "exit 7").returncode == 7
        unknown = p4reduce("exec", "--cluster", name, "h9", "true")
        assert (unknown.returncode, "has no host 'h9', it has h1, h2" in unknown.stderr) == (1, True)
    finally:
        must("down", "--cluster", name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_detached_cluster_that_comes_up(name: str, number: signal.Signals) -> None:
    with started("up", "rack", "--hosts", "2", "--cluster", name, "--detach") as command:
        assert wait_until(lambda: state.load(name) is not None, timeout_s=UP_TIMEOUT_S)
        found = state.load(name)
        assert found is not None
        command.send_signal(number)
        assert command.wait(UP_TIMEOUT_S) == 128 + number
    assert not found.alive()
    assert state.load(name) is None


def test_down_after_a_kill(name: str) -> None:
    with started("demo", "--cluster", name, "--workers", "2") as demo:
        cluster = ready(name)
        assert wait_until(lambda: cluster.workers.is_dir() and any(cluster.workers.iterdir()), timeout_s=60)
        traces = Traces.of(cluster)
        demo.kill()
        demo.wait()
    assert traces.left()  # else the test shows nothing
    assert f"cluster {name}: removed what was left" in must("down")
    assert traces.left() == []
    assert "no cluster is running" in must("down")


def test_the_next_run_cleans_up_too(name: str) -> None:
    with started("up", "rack", "--hosts", "2", "--cluster", name) as rack:
        traces = Traces.of(ready(name))
        rack.kill()
        rack.wait()
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    assert not any(process.alive() for process in traces.processes)
    must("allreduce", "--bytes", "64K", "--verify")


def test_a_rack_with_its_prompt(name: str) -> None:
    commands = (
        "allreduce --bytes 64K --dtype int32 --verify\n"
        "allreduce --bytes 7\n"
        "job create early -n 2\n"
        "job list --json\n"
        "exit\n"
    )
    with started("up", "rack", "--hosts", "2", "--cluster", name, "--rate", "100mbit") as rack:
        printed, complaint = rack.communicate(commands, timeout=120)
    assert rack.returncode == 0
    assert "2 hosts, embedded switch, 100 Mbit/s links, path MTU 1024" in printed
    assert "equal to NumPy's" in printed
    assert '"name": "early"' in printed
    assert "p4reduce: 7 bytes are not a whole number of float32 elements" in complaint


def test_a_switch_that_dies_is_named(name: str) -> None:
    with started("up", "rack", "--hosts", "2", "--cluster", name) as rack:
        switch = ready(name).switches[0].process
        switch.signal(signal.SIGKILL)
        assert wait_until(lambda: not switch.alive(), timeout_s=10)
        _, complaint = rack.communicate("help\n", timeout=60)
    assert "p4reduce: switch s1 has ended" in complaint


def test_captures(name: str, tmp_path: Path) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--pcap", str(tmp_path), "--detach")
    must("allreduce", "--bytes", "64K")
    must("down")
    captures = sorted(path for path in tmp_path.iterdir())
    assert len(captures) == 2  # a link each
    assert all(path.stat().st_size > 65536 for path in captures)


def test_losses_of_the_switch_are_made_good(name: str) -> None:
    must("up", "rack", "--hosts", "3", "--cluster", name, "--switch-loss", "0.01", "--detach")
    found = json.loads(must("allreduce", "--bytes", "1M", "--dtype", "int32", "--verify", "--json", "-"))
    assert found["integer_sum_exact"]
    assert found["ranks_bitwise_equal"]
    assert found["counters"]["retransmissions"] > 0


def test_a_delay_that_the_kernel_cannot_make(name: str) -> None:
    done = p4reduce("up", "rack", "--hosts", "2", "--cluster", name, "--delay-ms", "1", "--detach")
    if done.returncode == 0:
        pytest.skip("this kernel has netem")
    assert "this kernel has no netem" in done.stderr
    assert "--switch-loss" in done.stderr


def test_modules_in_the_working_directory_are_not_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for module in ("controller", "soft_switch", "topologies"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    code = "import sys; sys.path.pop(0); from p4reduce.cli.app import main; main()"
    for words in (
        ["up", "rack", "--hosts", "2", "--cluster", name, "--detach"],
        ["allreduce", "--bytes", "64K", "--verify"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def test_what_a_host_cannot_run(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    unknown = p4reduce("exec", "h1", "--", "nosuchcmd")
    assert unknown.returncode == 127
    assert unknown.stderr == (
        "p4reduce: h1: there is no command 'nosuchcmd': hosts have the programs of this machine\n"
    )
    assert p4reduce("exec", "h1", "--", "/etc/passwd").returncode == 126
    assert p4reduce("exec", "h1", "--", "/no/such").returncode == 127


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("iperf") is None, reason="there is no iperf")
def test_mininets_words_and_captures(name: str, tmp_path: Path) -> None:
    """Check a host's name and Mininet's own prompt with its iperf, and that --pcap makes its directory."""
    captures = tmp_path / "new" / "captures"
    done = subprocess.run(
        [*P4REDUCE, "up", "rack", "--hosts", "2", "--cluster", name, "--pcap", str(captures)],
        input="h1 ping -c 1 h2\nmininet\niperf h1 h2\niperfudp 1M h1 h2\nexit\nexit\n",
        capture_output=True,
        text=True,
        timeout=UP_TIMEOUT_S + 60,
        check=False,
    )
    assert "1 received" in done.stdout + done.stderr
    assert "*** Results: ['" in done.stdout + done.stderr
    assert "*** Results: ['1M', '" in done.stdout + done.stderr
    assert list(captures.glob("*.pcap"))


@pytest.mark.slow  # installs p4runtime-shell where that has not been done
def test_shell_reads_the_running_switch(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    count = "print(len(list(TableEntry('SwitchIngress.forward.route').read())))"
    assert must("shell", "s1", "--command", count).splitlines()[-1] == "2"  # a route a host
    wrong = p4reduce("shell", "s1", "--command", "TableEntry('nix')")
    assert wrong.returncode == 1
    assert "SwitchIngress.forward.route" in must("shell", "s1", "-c", "print(tables)").splitlines()
    left = "import sys; sys.exit(3)"
    assert p4reduce("shell", "s1", "-c", left).returncode == 3
    must("allreduce", "--bytes", "64K", "--verify")  # the controller is still primary


@pytest.mark.slow
def test_two_shells_on_a_switch(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    waits = "print('there', flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen(
        [*P4REDUCE, "shell", "s1", "-c", waits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "there\n"
        second = p4reduce("shell", "s1", "-c", "print(len(list(tables)) > 5)")
        assert second.stdout == "True\n"
        assert "election id 2" in second.stderr
        refused = p4reduce("shell", "s1", "--election-id", "1", "-c", "pass")
        assert refused.returncode == 1
        assert "election id 1 of s1 is another controller's: without --election-id" in refused.stderr
        assert "CRITICAL" not in refused.stderr
        first.communicate()
    assert must("shell", "s1", "-c", "print(tables)")


@pytest.mark.slow
def test_a_shell_ends_when_the_pipe_that_it_prints_into_closes(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--cluster", name, "--detach")
    endless = "while True: print('x' * 100, flush=True)"
    with subprocess.Popen(
        [*P4REDUCE, "shell", "s1", "-c", endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        shell.stdout.close()
        assert shell.wait(timeout=UP_TIMEOUT_S) == 128 + signal.SIGPIPE
    assert "election id" not in p4reduce("shell", "s1", "-c", "pass").stderr  # the first is free again
