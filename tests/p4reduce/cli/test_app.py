"""The command line, with a controller that is only pretended."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pytest
import typer

from controller.api import controller_pb2 as pb
from controller.api.errors import NotFoundError, UnreachableError
from controller.switches.pipeline import shipped_program
from p4reduce.cli import app as cli
from p4reduce.cli.commands import job as job_commands
from tests.topologies.states import GONE, cluster_state, fabric_state
from topologies import processes, wires
from topologies.errors import TopologyError


def _plane(plane: int) -> pb.JobInfo:
    """Make a plane of gang t, which has two machines with two GPUs each."""
    return pb.JobInfo(
        spec=pb.JobSpec(name=f"t/{plane}", world_size=2, gang=pb.Gang(name="t", plane=plane, planes=2)),
        phase=pb.RUNNING if plane == 0 else pb.READY,
        mode=pb.IN_NETWORK,
        generation=7 + plane,
        places=[pb.JobAllocation(switch="s1", role="leaf", slots=64, ranks=[0, 1])],
        workers=[pb.WorkerInfo(worker=pb.Worker(rank=rank), host=f"h{rank + 1}") for rank in range(2)],
    )


class FakeAdmin:
    """Answers as a controller with one running job, "digits", does."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, target: str) -> None:
        self.asked.append(("connect", target))

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def create_job(self, name: str, world_size: int, **settings: Any) -> pb.JobInfo:
        self.asked.append(("create", name, world_size, settings))
        return pb.JobInfo(spec=pb.JobSpec(name=name, world_size=world_size), phase=pb.CREATED, explicit=True)

    def list_jobs(self) -> list[pb.JobInfo]:
        return [self.show_job("digits")]

    def show_job(self, name: str) -> pb.JobInfo:
        if name != "digits":
            raise NotFoundError(f"there is no job {name!r}")
        worker = pb.Worker(rank=0, ip="10.0.0.1", mac="02:00:00:00:00:01", qpn_out=16, qpn_in=17)
        return pb.JobInfo(
            spec=pb.JobSpec(name="digits", world_size=2),
            phase=pb.RUNNING,
            mode=pb.IN_NETWORK,
            generation=7,
            selective=True,
            path_mtu=1024,
            window=8,
            places=[
                pb.JobAllocation(switch="s1", role="leaf", first_slot=0, slots=256, ranks=[0, 1]),
                pb.JobAllocation(switch="s9", role="spine", first_slot=512, slots=256, ranks=[0, 1]),
            ],
            ring=[0, 1],
            waitlisted=pb.Waitlisted(position=2, reason="tenant red has its 512 slots", waiting_s=3.4),
            workers=[pb.WorkerInfo(worker=worker, host="h1", port=1, connected=True, heard_s_ago=0.25)],
        )

    def delete_job(self, name: str) -> pb.JobInfo:
        self.asked.append(("delete", name))
        return self.show_job(name)

    def flows(self, job: str) -> list[pb.Flow]:
        return [pb.Flow(job="digits", rank=1, switch="s1", src_ip="10.0.0.1", dst_ip="10.0.0.2", dest_qp=255)]

    def slots(self, job: str, *, all: bool) -> list[pb.Slot]:
        self.asked.append(("slots", job, all))
        return [
            pb.Slot(
                job="digits",
                switch="s1",
                index=3,
                message=19,
                ranks=[0, 2],
                missing=[1, 3],
                age_s=0.25,
                bytes=1024,
                state="adding",
                tenant="red",
                role="leaf",
            )
        ]

    def counters(self, job: str) -> list[pb.FlowCounters]:
        counted = {"aggregated": pb.CounterValue(packets=12, bytes=999), "stale": pb.CounterValue()}
        return [pb.FlowCounters(job="digits", rank=1, switch="s1", counters=counted)]

    def ports(self) -> list[pb.Port]:
        received = pb.CounterValue(packets=5, bytes=500)
        port = pb.Port(switch="s1", port=1, host="h1", ip="10.0.0.1", received=received, peer="s2 port 1")
        for reason, packets in (("spoofed", 3), ("unnamed", 4), ("no_job", 0)):
            port.drops[reason].packets = packets
        return [port]

    def links(self) -> list[pb.Link]:
        return [pb.Link(a="l1", a_port=101, b="s1", b_port=1, up=False, state="drained")]

    def push(self, *, force: bool) -> list[pb.SwitchInfo]:
        self.asked.append(("push", force))
        if not force:
            raise UnreachableError("switch s1 is not there")
        return [
            pb.SwitchInfo(name="s1", address="127.0.0.1:9559", state="connected", program_sha256="ab" * 32)
        ]


@pytest.fixture
def _running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a cluster c1 be running, as far as anybody can tell."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    cluster = cluster_state("c1")
    cluster.directory.mkdir()
    cluster.save()
    monkeypatch.setattr(job_commands, "ClusterAdmin", lambda known: FakeAdmin(f"unix:{known.control_socket}"))
    FakeAdmin.asked.clear()
    yield
    FakeAdmin.asked.clear()


Said = Callable[[], tuple[str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Return a function that returns what was printed since its last call: stdout and stderr."""

    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def test_help_names_every_command(said: Said) -> None:
    assert cli.run(["--help"]) == 0
    printed, _ = said()
    for command in ("demo", "up", "down", "run", "link", "push", "shell", "job", "show", "allreduce"):
        assert command in printed


def _commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield `command` and all commands and groups below it, each with the words that lead there."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _commands(inner, *words, name)


COMMANDS = dict(_commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_eighty_columns_and_describes_everything(
    words: tuple[str, ...], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*words, "--help"]) == 0
    page = said()[0]
    assert page.startswith(f"Usage: {' '.join(('p4reduce', *words))}")
    assert max(map(len, page.splitlines())) <= 80
    assert "…" not in page
    assert not re.search(r"\w\.\.\.$", page, re.MULTILINE), "something was cut"
    assert COMMANDS[words].help
    for parameter in COMMANDS[words].params:
        assert parameter.param_type_name == "argument" or parameter.help, parameter.name


@pytest.mark.parametrize("words", [words for words in COMMANDS if COMMANDS[words].epilog], ids=" ".join)
def test_examples_are_command_lines(words: tuple[str, ...]) -> None:
    """Check that each example can be parsed, without running it."""
    lines = COMMANDS[words].epilog.removeprefix("\b\nExamples:\n").replace("\\\n", " ").splitlines()
    assert lines
    for line in lines:
        program, *rest = shlex.split(line)
        assert program == "p4reduce"
        found: tuple[str, ...] = ()
        while rest and (*found, rest[0]) in COMMANDS:
            found = (*found, rest.pop(0))
        assert found[: len(words)] == words
        COMMANDS[found].make_context(" ".join(found), rest)


def test_version(said: Said) -> None:
    """Check that it comes with the hash by which `p4reduce plan` names the program that a switch runs."""
    assert cli.run(["--version"]) == 0
    number = importlib.metadata.version("p4reduce")
    assert said()[0] == f"p4reduce {number} (P4 program {shipped_program().sha256[:12]})\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dance"], "No such command"),
        (["up", "rack", "--hosts", "33"], "'--hosts'"),
        (["up", "rack", "--hosts", "2", "--switch", "tofino"], "tofino"),
        (["up", "rack", "--hosts", "2", "--rate", "fast"], "'fast' is no rate"),
        (["up", "rack", "--hosts", "2", "--host-kind", "tofu"], "'tofu' is no kind of host"),
        (["up", "spine-leaf", "--spines", "5"], "'--spines'"),
        (["up", "spine-leaf", "--leaves", "9"], "'--leaves'"),
        (["up", "spine-leaf", "--hosts", "many"], "'many' is no number of hosts: say 8, or"),
        (["up", "spine-leaf", "--hosts", "3,2,1"], "3 numbers of hosts for 2 leaves"),
        (["up", "spine-leaf", "--uplink-rate", "fast"], "'fast' is no rate"),
        (["up", "spine-leaf", "--spread", "widely"], "'--spread'"),
        (["allreduce", "--bytes", "many"], "'many' is no size"),
        (["allreduce", "--strategy", "none"], "'--strategy'"),
        (["demo", "--workers", "1"], "'--workers'"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str, said: Said) -> None:
    assert cli.run(words) == 2
    complaint = " ".join(said()[1].replace("│", " ").split())
    assert message in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job", "list"], "there is no running cluster: start one with 'p4reduce up rack"),
        (["show", "ports", "--cluster", "c9"], "there is no running cluster 'c9'"),
        (["allreduce"], "there is no running cluster"),
        (["shell", "s1"], "there is no running cluster"),
        (["allreduce", "--json", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
        (["up", "rack", "--mtu", "1500", "--detach"], "path MTU 1500 is none of RoCE's"),
        (["up", "rack", "--host-kind", "roce", "--detach"], "run 'make roce-image'"),
        (["up", "spine-leaf", "--hosts", "65", "--detach"], "2 to 64 hosts, not 65"),
        (["up", "spine-leaf", "--hosts", "33,2", "--detach"], "leaf l1 has 1 to 32 hosts, not 33"),
        (["up", "spine-leaf", "--leaves", "4", "--hosts", "3"], "leaf l4 has 1 to 32 hosts, not 0"),
        (["up", "/nowhere/c.yaml"], "cannot read /nowhere/c.yaml"),
        (["run", "/nowhere/c.yaml"], "cannot read /nowhere/c.yaml"),
        (["link", "down", "l1:s1"], "there is no running cluster"),
        (["up", "rack", "--cluster", "../x"], "'../x' is no cluster name"),
        (["down", "--cluster", "c9"], "there is no cluster 'c9'"),
        (["exec", "h1", "--", "true"], "there is no running cluster"),
        (["push", "127.0.0.1:1", "--config", "/nowhere/c.json"], "cannot read /nowhere/c.json"),
    ],
)
def test_errors_are_one_sentence(
    words: list[str], message: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.run(words) == 1
    complaint = said()[1].strip()
    assert complaint.startswith("p4reduce: ")
    assert message in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["push", "127.0.0.1:85313"], "is no HOST:PORT with a port from 1 to 65535"),
        (["push", "127.0.0.1:"], "is no HOST:PORT with a port from 1 to 65535"),
        (["push", "127.0.0.1:9559", "--device-id", "-1"], "Invalid value for '--device-id'"),
        (["shell", "s1", "--election-id", str(2**64)], "Invalid value for '--election-id'"),
        (["allreduce", "--dtype", "float8"], "'float8' is no element type; there are int32"),
        (["allreduce", "--op", "mul"], "'mul' is no operation; there are sum"),
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], message: str, said: Said) -> None:
    assert cli.run(words) == 2
    assert message in " ".join(said()[1].replace("│", " ").split())


def test_a_cluster_is_roots(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    (tmp_path / "c1").mkdir()
    cluster_state("c1").save()
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    for words in (["down"], ["show", "ports"], ["allreduce"], ["exec", "h1", "true"]):
        assert cli.run(words) == 1
        assert said()[1] == "p4reduce: clusters belong to root: run it again with sudo\n"


def _broken() -> None:
    raise ZeroDivisionError("division by zero")


def test_a_bug_has_no_traceback_unless_asked_for(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topologies.cleanup.remove_dead", _broken)
    assert cli.run(["down"]) == 70
    complaint = said()[1]
    assert complaint == "p4reduce: this is a bug: ZeroDivisionError: division by zero (--debug shows where)\n"
    assert cli.run(["down", "--debug"]) == 70
    assert "Traceback" in said()[1]


def test_debug_shows_where_an_error_comes_from(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise TopologyError("no")

    monkeypatch.setattr("topologies.cleanup.remove_dead", refuse)
    assert cli.run(["--debug", "down"]) == 1
    complaint = said()[1]
    assert "Traceback" in complaint
    assert complaint.endswith("p4reduce: no\n")


def test_ctrl_c(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("topologies.cleanup.remove_dead", interrupted)
    assert cli.run(["down"]) == 130
    assert "Traceback" not in said()[1]


def test_down_with_nothing_to_do(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    assert cli.run(["down"]) == 0
    assert said()[0] == "no cluster is running\n"


class TestDown:
    """Clusters that `down` takes down: those it is told, or the one brought up in this terminal."""

    @pytest.fixture(autouse=True)
    def taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
        monkeypatch.delenv("P4REDUCE_CLUSTER", raising=False)
        monkeypatch.setattr("os.geteuid", lambda: 0)
        taken: list[str] = []
        monkeypatch.setattr("topologies.cleanup.take_down", lambda cluster: taken.append(cluster.name))
        return taken

    def running(self, name: str, **changes: object) -> None:
        cluster = cluster_state(name, **changes)
        cluster.directory.mkdir()
        cluster.save()

    def test_the_one_of_this_terminal(self, taken: list[str]) -> None:
        self.running("soak", session=GONE)
        self.running("mine", session=processes.session())
        assert cli.run(["down"]) == 0
        assert taken == ["mine"]

    def test_two_of_this_terminal(self, taken: list[str], said: Said) -> None:
        for name in ("mine", "too"):
            self.running(name, session=processes.session())
        assert cli.run(["down"]) == 1
        assert "more than one cluster is running (mine, too): say 'p4reduce down NAME'" in said()[1]
        assert taken == []

    def test_one_of_another_terminal_where_nobody_can_be_asked(self, taken: list[str], said: Said) -> None:
        self.running("soak", session=GONE, started_by="ada")
        assert cli.run(["down"]) == 1
        expected = (
            "cluster soak was brought up in another terminal, by ada: 'p4reduce down soak' takes it down"
        )
        assert expected in said()[1]
        assert taken == []

    @pytest.mark.parametrize(("answer", "expected"), [("y\n", ["soak"]), ("\n", [])])
    def test_one_of_another_terminal(
        self, answer: str, expected: list[str], taken: list[str], said: Said, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.running("soak", session=GONE, started_by="ada")
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", terminal)
        assert cli.run(["down"]) == 0
        assert "by ada. Take it down? [y/N]" in said()[1]
        assert taken == expected

    @pytest.mark.parametrize("words", [["down", "soak"], ["down", "--cluster", "soak"], ["down", "--all"]])
    def test_as_told(self, words: list[str], taken: list[str]) -> None:
        self.running("soak", session=GONE)
        assert cli.run(words) == 0
        assert taken == ["soak"]

    def test_no_such_one(self, taken: list[str], said: Said) -> None:
        self.running("soak")
        assert cli.run(["down", "sok"]) == 1
        assert "there is no cluster 'sok' to take down: there is soak" in said()[1]
        assert taken == []


@pytest.mark.usefixtures("_running")
class TestOnACluster:
    """Commands that ask the controller."""

    def json(self, said: Said, *words: str) -> Any:
        assert cli.run([*words, "--json"]) == 0
        return json.loads(said()[0])

    def test_job_list(self, said: Said) -> None:
        (job,) = self.json(said, "job", "list")
        assert (job["name"], job["phase"], job["mode"], job["generation"]) == (
            "digits",
            "running",
            "in-network",
            7,
        )
        assert job["workers"][0]["host"] == "h1"
        assert FakeAdmin.asked == [("connect", "unix:/nowhere/c1.sock")]
        assert cli.run(["job", "list"]) == 0
        assert "digits" in said()[0]

    def test_job_create(self, said: Said) -> None:
        assert cli.run(["job", "create", "j", "-n", "4", "--mode", "ring", "--window", "2"]) == 0
        _, (what, name, world_size, settings) = FakeAdmin.asked
        assert (what, name, world_size) == ("create", "j", 4)
        assert settings == {
            "mode": "ring",
            "window": 2,
            "path_mtu": None,
            "message_packets": None,
            "tenant": "",
            "elastic": False,
            "min_workers": 0,
            "selective": None,
            "join_token": "",
            "gpus_per_host": 1,
        }

    def test_job_create_for_a_tenant(self, said: Said) -> None:
        assert cli.run(["job", "create", "j", "-n", "4", "--tenant", "red"]) == 0
        assert FakeAdmin.asked[1][3]["tenant"] == "red"

    @pytest.mark.parametrize(("given", "asked"), [("--selective", True), ("--no-selective", False)])
    def test_job_create_says_how_to_send_again(self, said: Said, given: str, asked: bool) -> None:
        assert cli.run(["job", "create", "j", "-n", "4", given]) == 0
        assert FakeAdmin.asked[1][3]["selective"] is asked

    def test_job_create_leaves_the_mode_open(self, said: Said) -> None:
        job = self.json(said, "job", "create", "j", "-n", "4")
        assert FakeAdmin.asked[1][3]["mode"] == ""
        assert (job["mode"], job["phase"], job["places"]) == ("auto", "created", [])
        assert (job["tenant"], job["waitlisted"]) == ("default", None)

    def test_job_show(self, said: Said) -> None:
        assert cli.run(["job", "show", "digits"]) == 0
        printed = said()[0]
        assert "10.0.0.1" in printed
        assert "number 2 in the queue for 3 s: tenant red has its 512 slots" in printed
        job = self.json(said, "job", "show", "digits")
        assert [(place["switch"], place["role"], place["slots"]) for place in job["places"]] == [
            ("s1", "leaf", 256),
            ("s9", "spine", 256),
        ]
        assert (job["slots"], job["ring"], job["waitlisted"]["position"]) == (512, [0, 1], 2)
        assert job["workers"][0]["switch"] == "s1"
        assert job["selective"]
        assert "selective retransmission" in printed

    def test_the_planes_of_a_gang_are_one_line_and_their_workers_have_ranks_of_all(
        self, said: Said, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        planes = [_plane(plane) for plane in range(2)]
        plain = FakeAdmin.show_job
        monkeypatch.setattr(FakeAdmin, "list_jobs", lambda admin: [plain(admin, "digits"), *planes])
        monkeypatch.setattr(
            FakeAdmin, "show_job", lambda admin, name: pb.JobInfo(planes=planes) if name == "t" else planes[1]
        )
        jobs = self.json(said, "job", "list")
        assert [(job["name"], job["phase"], job["world_size"], job["slots"]) for job in jobs] == [
            ("digits", "running", 2, 512),
            ("t", "ready", 4, 128),  # as its plane that is furthest behind
        ]
        assert jobs[0]["planes"] == []
        assert jobs[1] == self.json(said, "job", "show", "t")
        workers = [(one["rank"], one["machine"], one["local_rank"]) for one in jobs[1]["workers"]]
        assert workers == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
        plane = self.json(said, "job", "show", "t/1")
        assert (plane["name"], plane["world_size"], plane["gang"]["plane"]) == ("t/1", 2, 1)
        assert [one["rank"] for one in plane["workers"]] == [0, 1]
        assert cli.run(["job", "list"]) == 0
        assert "t/1" not in said()[0]
        assert cli.run(["job", "show", "t"]) == 0
        assert "t/1" in said()[0]

    def test_a_gang_whose_planes_have_not_all_begun_is_joining(
        self, said: Said, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeAdmin, "list_jobs", lambda admin: [_plane(1)])
        (job,) = self.json(said, "job", "list")
        assert (job["name"], job["phase"], len(job["planes"])) == ("t", "joining", 1)

    def test_job_create_of_several_gpus_a_machine(self, said: Said) -> None:
        assert cli.run(["job", "create", "t", "-n", "8", "--gpus-per-host", "4"]) == 0
        assert FakeAdmin.asked[1][3]["gpus_per_host"] == 4

    def test_job_delete(self, said: Said) -> None:
        assert cli.run(["job", "delete", "digits"]) == 0
        assert FakeAdmin.asked[1] == ("delete", "digits")

    def test_job_clear(self, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check that it forgets jobs that have ended, but none that has begun anew since it was listed."""
        phases = {"old": [pb.ENDED] * 3, "again": [pb.ENDED, pb.RUNNING], "digits": [pb.RUNNING] * 3}

        def info(admin: FakeAdmin, name: str) -> pb.JobInfo:
            return pb.JobInfo(spec=pb.JobSpec(name=name), phase=phases[name].pop(0))

        monkeypatch.setattr(FakeAdmin, "show_job", info)
        monkeypatch.setattr(FakeAdmin, "list_jobs", lambda admin: [info(admin, name) for name in phases])
        assert cli.run(["job", "clear"]) == 0
        assert said()[0] == "1 job forgotten: old\n"
        assert [what for what in FakeAdmin.asked if what[0] == "delete"] == [("delete", "old")]

    def test_a_job_that_is_not_there(self, said: Said) -> None:
        assert cli.run(["job", "show", "nix"]) == 1
        assert said()[1] == "p4reduce: there is no job 'nix'\n"

    def test_flows(self, said: Said) -> None:
        (flow,) = self.json(said, "show", "flows")
        assert (flow["job"], flow["rank"], flow["dest_qp"], flow["on_switch"]) == ("digits", 1, 255, False)
        assert cli.run(["show", "flows"]) == 0
        assert "0xff" in said()[0]

    def test_slots(self, said: Said) -> None:
        (slot,) = self.json(said, "show", "slots", "--job", "digits", "--all")
        assert FakeAdmin.asked[1] == ("slots", "digits", True)
        assert (slot["ranks"], slot["missing"], slot["bitmap"]) == ([0, 2], [1, 3], "0x5")
        assert (slot["tenant"], slot["state"], slot["age_s"], slot["bytes"]) == ("red", "adding", 0.25, 1024)
        assert cli.run(["show", "slots"]) == 0
        assert "0.250 s" in said()[0]

    def test_counters(self, said: Said) -> None:
        (flow,) = self.json(said, "show", "counters")
        assert flow["counters"]["aggregated"] == {"packets": 12, "bytes": 999}
        assert cli.run(["show", "counters"]) == 0
        printed = said()[0]
        assert "aggregated" in printed
        assert "stale" not in printed  # it counted nothing
        assert "aggregated: added to a sum" in printed

    def test_ports(self, said: Said) -> None:
        (port,) = self.json(said, "show", "ports")
        assert (port["host"], port["received_packets"], port["no_route_packets"]) == ("h1", 5, 0)
        assert port["peer"] == "s2 port 1"
        assert port["drops"] == {"no_job": 0, "spoofed": 3, "unnamed": 4}
        assert cli.run(["show", "ports"]) == 0
        assert "spoofed 3, unnamed 4" in said()[0]

    def test_a_rack_has_no_links(self, said: Said) -> None:
        assert self.json(said, "show", "links") == []
        assert cli.run(["link", "down", "l1:s1"]) == 1
        assert "cluster c1 has no links between switches: it is a rack" in said()[1]
        assert cli.run(["link", "down", "h1"]) == 1
        assert said()[1] == "p4reduce: h1 is a host's link: 'p4reduce fault link down h1' takes it down\n"

    def test_links(self, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
        fabric = fabric_state("c1", spines=1)
        fabric.save()
        counted = wires.Traffic(packets=3, bytes=300)
        found = [
            wires.Wire(link=link, is_up=link.a == "l2", upward=counted, downward=wires.Traffic())
            for link in fabric.links
        ]
        monkeypatch.setattr(wires, "wires", lambda cluster: found)
        first, second = self.json(said, "show", "links")
        assert (first["link"], first["is_up"], first["usable"], first["state"]) == (
            "l1:s1",
            False,
            False,
            "drained",
        )
        assert (first["a_to_b_packets"], first["a_to_b_bytes"], first["b_to_a_bytes"]) == (3, 300, 0)
        assert (second["is_up"], second["usable"]) == (True, None)  # the controller said nothing of it
        assert cli.run(["show", "links"]) == 0
        assert "DOWN" in said()[0]
        done: list[tuple[str, bool]] = []
        monkeypatch.setattr(wires, "set_link", lambda cluster, link, *, up: done.append((link.name, up)))
        assert cli.run(["link", "down", "s1:l2"]) == 0
        assert cli.run(["link", "up", "l2:s1"]) == 0
        assert done == [("l2:s1", False), ("l2:s1", True)]
        assert said()[0] == "link l2:s1: down\nlink l2:s1: up\n"

    def test_push(self, said: Said) -> None:
        assert cli.run(["push"]) == 1
        assert said()[1] == "p4reduce: switch s1 is not there\n"
        (switch,) = self.json(said, "push", "c1", "--force")
        assert switch["state"] == "connected"
        assert FakeAdmin.asked[-1] == ("push", True)

    def test_a_switch_that_is_not_there(self, said: Said) -> None:
        assert cli.run(["shell", "s9"]) == 1
        assert said()[1] == "p4reduce: cluster c1 has no switch 's9', it has s1\n"

    def test_the_environment_names_the_cluster(self, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("P4REDUCE_CLUSTER", "c2")
        assert cli.run(["job", "list"]) == 1
        assert "no running cluster 'c2'" in said()[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("p4reduce do", ["down", "doctor"]),
        ("p4reduce job list --cluster ", ["c1", "c2"]),
        ("p4reduce down ", ["c1", "c2"]),
        ("p4reduce exec --cluster c1 ", ["h1", "h2"]),
        ("p4reduce shell --cluster c1 ", ["s1"]),
        ("p4reduce fault switch restart --cluster nowhere ", []),
    ],
)
def test_a_shell_completes_names(
    line: str, words: list[str], said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    for name in ("c1", "c2"):
        cluster = cluster_state(name)
        cluster.directory.mkdir(parents=True)
        cluster.save()
    monkeypatch.setenv("_P4REDUCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert cli.run([]) == 0
    assert said()[0].split() == words


@pytest.mark.usefixtures("_running")
@pytest.mark.parametrize(
    "words",
    [
        ["--cluster", "c1", "h1", "--", "ls", "--all"],
        ["h1", "--cluster", "c1", "--", "ls", "--all"],
        ["h1", "--cluster=c1", "ls", "--all"],
        ["h1", "--", "ls", "--all"],
    ],
)
def test_execs_cluster_may_stand_behind_the_host(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(
        "topologies.launch.call", lambda cluster, host, command: ran.append((host.name, command))
    )
    assert cli.run(["exec", *words]) == 0
    assert ran == [("h1", ["ls", "--all"])]


@pytest.mark.usefixtures("_running")
def test_exec_takes_a_command(said: Said) -> None:
    assert cli.run(["exec", "h1", "--cluster", "c1"]) == 2
    assert "there is no command" in said()[1]
