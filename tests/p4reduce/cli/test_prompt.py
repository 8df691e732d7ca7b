"""The prompt's own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from p4reduce.cli.prompt import Prompt
from tests.topologies.states import cluster_state
from topologies.errors import TopologyError
from topologies.fabric import Fabric


class FakeRack:
    """A rack whose switch may be dead."""

    def __init__(self) -> None:
        self.state = cluster_state("c1")
        self.is_outside = False
        self.dead = False

    @contextmanager
    def outside(self) -> Iterator[None]:
        self.is_outside = True
        yield
        self.is_outside = False

    def check(self) -> None:
        if self.dead:
            raise TopologyError("switch s1 has ended: it said nothing")


class FakeCommands:
    """Remembers what was run, and where."""

    def __init__(self, rack: FakeRack) -> None:
        self.rack = rack
        self.ran: list[list[str]] = []
        self.raises: BaseException = SystemExit(0)

    def main(self, *, args: list[str], prog_name: str) -> Any:
        assert self.rack.is_outside
        self.ran.append(args)
        raise self.raises


@pytest.fixture
def rack() -> FakeRack:
    return FakeRack()


@pytest.fixture
def commands(rack: FakeRack) -> FakeCommands:
    return FakeCommands(rack)


@pytest.fixture
def prompt(rack: FakeRack, commands: FakeCommands) -> Prompt:
    return Prompt(cast("Fabric", rack), commands)


def test_commands_of_p4reduce(prompt: Prompt, commands: FakeCommands) -> None:
    assert prompt.carry_out("allreduce --bytes 1M --debug")
    assert prompt.carry_out("job show 'my job'")
    assert prompt.carry_out("")
    assert commands.ran == [["allreduce", "--bytes", "1M"], ["job", "show", "my job"]]


@pytest.mark.parametrize("word", ["exit", "quit", "down", "down c1"])
def test_leaving(prompt: Prompt, commands: FakeCommands, word: str) -> None:
    assert not prompt.carry_out(word)
    assert commands.ran == []


def test_taking_another_cluster_down(prompt: Prompt, commands: FakeCommands) -> None:
    assert prompt.carry_out("down c2")
    assert commands.ran == [["down", "c2"]]


@pytest.mark.parametrize("word", ["up", "demo"])
def test_what_needs_another_terminal(
    prompt: Prompt, commands: FakeCommands, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prompt.carry_out(f"{word} rack")
    assert f"'{word}' needs a terminal of its own" in capsys.readouterr().err
    assert commands.ran == []


def test_a_command_in_a_host_as_in_mininet(prompt: Prompt, commands: FakeCommands) -> None:
    assert prompt.carry_out("h1 ping -c 3 h2")
    assert commands.ran == [["exec", "h1", "--", "ping", "-c", "3", "10.0.0.2"]]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("h1", "'h1 COMMAND...' runs a command there"),
        ("s1 ip link", "'shell s1' opens p4runtime-shell"),
        ("pingall", "'pingall' is Mininet's: say 'mininet'"),
        ("iperf h1 h2", "'iperf' is Mininet's"),
        ("h9 ls", "'h9' is no command, and no host here (h1, h2)"),
    ],
)
def test_words_of_mininet(
    prompt: Prompt, commands: FakeCommands, line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prompt.carry_out(line)
    assert hint in capsys.readouterr().err
    assert commands.ran == []


@pytest.mark.parametrize("line", ["link down h1", "show ports"])
def test_what_mininet_has_too_is_ours(prompt: Prompt, commands: FakeCommands, line: str) -> None:
    assert prompt.carry_out(line)
    assert commands.ran == [line.split()]


def test_an_open_quote(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    assert prompt.carry_out("job show 'x")
    assert "No closing quotation" in capsys.readouterr().err


def test_errors_do_not_end_it(
    prompt: Prompt, commands: FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.raises = TopologyError("no such thing")
    assert prompt.carry_out("show slots")
    assert capsys.readouterr().err == "p4reduce: no such thing\n"
    commands.raises = KeyboardInterrupt()
    assert prompt.carry_out("show slots")


def test_it_reads_until_the_end_and_says_what_has_died(
    prompt: Prompt, rack: FakeRack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["help"])

    def read(text: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.delenv("P4REDUCE_CLUSTER", raising=False)
    rack.dead = True
    prompt.run()
    printed, complaint = capsys.readouterr()
    assert "cluster c1 is up: 2 hosts, embedded switch, 100 Mbit/s links, path MTU 1024" in printed
    assert "mininet" in printed
    assert complaint == "p4reduce: switch s1 has ended: it said nothing\n"
