"""The service over loopback, with the agents' and the command line's own clients."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    NotPossibleError,
    UnreachableError,
)
from controller.api.messages import Called, Compare, EndCause, Ended, Mode, RcParameters
from controller.api.rpc import ControllerStub
from controller.entries import Entry, TableEntry
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.jobs.job import Job
from controller.service.service import AddressError, ControllerService, make_server
from controller.switches.queries import SlotContent
from host_agent.controller_session import ControllerSession
from host_agent.errors import JobEndedError, JobRefusedError, MismatchError, WorkerLostError
from host_agent.membership import Request
from host_agent.session import State
from tests.controller.service.served import (
    CONFIG,
    Served,
    Workers,
    request_of,
)
from tests.controller.service.served import (
    served as served,
)
from tests.controller.service.served import (
    workers as workers,
)


@pytest.fixture
def admin(served: Served) -> Iterator[AdminClient]:
    with AdminClient(served.unix, timeout_s=10) as client:
        yield client


def test_a_job_over_the_wire(workers: Workers, served: Served, admin: AdminClient) -> None:
    sessions, readies = workers.run(3)
    first = readies[0]
    assert {(r.job_id, r.generation, r.window, r.path_mtu, r.mode) for r in readies} == {
        (first.job_id, first.generation, 8, 1024, Mode.IN_NETWORK)
    }
    assert [r.rc for r in readies] == 3 * [
        RcParameters(timeout=17, retry_count=7, rnr_retry=7, min_rnr_timer=14)
    ]
    assert [(r.successor.qpn_in, r.predecessor.psn_out) for r in readies] == [
        (0x201, 0xFFFFFD),
        (0x202, 0xFFFFFF),
        (0x200, 0xFFFFFE),
    ]
    (job,) = admin.list_jobs()
    assert (job.spec.name, job.phase, job.mode) == ("train", pb.RUNNING, pb.IN_NETWORK)
    (place,) = job.places
    assert (place.switch, place.role, place.slots, list(place.ranks)) == ("s1", "leaf", 256, [0, 1, 2])
    assert list(job.ring) == [0, 1, 2]
    assert [(w.host, w.port, w.connected) for w in job.workers] == [
        ("h1", 1, True),
        ("h2", 2, True),
        ("h3", 3, True),
    ]
    workers.leave(sessions)
    info = admin.show_job("train")
    assert (info.phase, info.ended.cause, info.ended.reason) == (
        pb.ENDED,
        pb.ALL_LEFT,
        "all workers have left",
    )
    assert admin.status().workers == 0


@pytest.mark.parametrize(("asks", "on"), [((None, None), True), ((True, None), True), ((None, False), False)])
def test_a_job_shows_how_it_repeats(
    workers: Workers, admin: AdminClient, asks: tuple[bool | None, ...], on: bool
) -> None:
    """Check that it shows what its workers have agreed on, which is not what each asked for."""
    requests = [
        request_of(place, rank=rank, size=2, selective=asked)
        for rank, (place, asked) in enumerate(zip((0, 2), asks, strict=True))
    ]
    sessions = [workers.session() for _ in requests]
    readies = workers.each(lambda s: s.join(requests[sessions.index(s)], timeout_s=10), sessions)
    assert {ready.selective for ready in readies} == {on}
    assert admin.show_job("train").selective is on


def test_the_switch_seen_through_the_service(workers: Workers, served: Served, admin: AdminClient) -> None:
    _, (ready, *_) = workers.run(2)
    served.switch.slot_content[5] = SlotContent(5, ready.generation, 9, 0b10, 4, 0)
    served.switch.slot_content[6] = SlotContent(6, ready.generation - 1, 9, 0b11, 4, 0)
    flows = admin.flows("train")
    assert [(f.rank, f.ingress_port, f.egress_port, f.dest_qp, f.on_switch) for f in flows] == [
        (0, 1, 2, 0x201, True),
        (1, 2, 1, 0x200, True),
    ]
    (slot,) = admin.slots("train")
    assert (slot.index, slot.message, list(slot.ranks), slot.chunks) == (5, 9, [1], 4)
    assert len(admin.slots(all=True)) == 256
    assert [(f.job, f.rank, f.counters["aggregated"].packets) for f in admin.counters()] == [
        ("train", 0, 0),
        ("train", 1, 1),
    ]
    ports = admin.ports()
    assert (ports[0].host, ports[0].received.packets, ports[0].sent.bytes) == ("h1", 3, 300)
    (switch,) = admin.status().switches
    assert (switch.name, switch.connected, switch.slots_used, switch.jobs) == ("s1", True, 256, 1)
    served.switch.restart()
    assert [flow.on_switch for flow in admin.flows()] == [False, False]


def test_what_the_command_line_is_refused(workers: Workers, admin: AdminClient) -> None:
    admin.create_job("mine", 2, mode="ring", window=2)
    with pytest.raises(ConflictError, match="there is a job mine already"):
        admin.create_job("mine", 2)
    with pytest.raises(InvalidRequestError, match="neither 'in-network' nor 'ring'"):
        admin.create_job("other", 2, mode="magic")
    with pytest.raises(InvalidRequestError, match=r"16384 slots .* a switch has 8192"):
        admin.create_job("other", 2, window=128, message_packets=64)
    with pytest.raises(InvalidRequestError, match="world size -1"):
        admin.create_job("other", -1)
    with pytest.raises(NotFoundError, match="there is no job 'other'"):
        admin.show_job("other")
    with pytest.raises(NotFoundError, match="there is no job 'other'"):
        admin.counters("other")
    workers.run(2)
    with pytest.raises(NotPossibleError, match="switch s1 serves train"):
        admin.push()


def test_an_explicit_job_runs_as_it_was_created(workers: Workers, admin: AdminClient) -> None:
    admin.create_job("train", 2, mode="ring", path_mtu=512, window=2, message_packets=4)
    _, readies = workers.run(2)
    assert {(r.mode, r.mode_reason, r.path_mtu, r.window, r.message_packets) for r in readies} == {
        (Mode.RING, "the job was created with ring mode", 512, 2, 4)
    }
    assert admin.counters("train") == []
    ended = admin.delete_job("train").ended
    assert (ended.reason, ended.cause) == ("job train was deleted", pb.DELETED)
    assert admin.list_jobs() == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rank": 0, "qpn_out": 0x900}, r"rank 0 is taken by h1 \(10.0.0.1\), and h2"),
        ({"world_size": 4}, "world size of 3, but .* says 4"),
        ({"rank": 3}, r"rank 3 is no rank of job train with 3 workers \(0..2\)"),
        ({"ip": "10.9.9.9"}, "10.9.9.9 is no host of this network, known are h1 10.0.0.1"),
        ({"mac": "02:00:00:00:00:99"}, "host h2 has the MAC 02:00:00:00:00:02"),
        ({"qpn_in": 0x101}, "both QPs have the number 257"),
        ({"qpn_in": 1 << 24}, "qpn_in 16777216 is not within"),
        ({"path_mtu_max": 1500}, "path MTU 1500 is none of"),
        ({"job": "two words"}, "is no job name"),
        ({"ip": CONFIG.hosts[0].ip, "mac": CONFIG.hosts[0].mac, "qpn_in": 0x200}, "QP 0x200 of host h1"),
    ],
)
def test_a_worker_that_does_not_fit_is_told_why_and_the_job_goes_on(
    workers: Workers, fields: dict[str, Any], text: str
) -> None:
    first = workers.session()
    joined = workers.pool.submit(first.join, request_of(0), timeout_s=20)
    while first._session is None or not first._session.missing_ranks:  # it has taken its place
        threading.Event().wait(0.01)
    with pytest.raises(JobRefusedError, match=text):
        workers.session().join(request_of(1, **fields), timeout_s=10)
    others = [workers.session() for _ in range(2)]
    workers.each(lambda s: s.join(request_of(1 + others.index(s)), timeout_s=10), others)
    assert joined.result(timeout=10).mode is Mode.IN_NETWORK


def test_a_worker_that_gives_up_waiting_frees_its_rank(workers: Workers, admin: AdminClient) -> None:
    session = workers.session()
    with pytest.raises(JobRefusedError, match="ranks 1, 2 have not joined"):
        session.join(request_of(0), timeout_s=0.5)
    session.close()
    sessions, _ = workers.run(3)
    workers.leave(sessions)


def test_everybody_hears_why_the_job_ended(workers: Workers) -> None:
    sessions, _ = workers.run(3)
    told: queue.Queue[Ended] = queue.Queue()
    for session in sessions:
        session.on_ended(told.put)
    sessions[2].abort("the workers disagree: rank 2 called barrier")
    ends = [told.get(timeout=10) for _ in sessions]
    why = "the workers disagree: rank 2 called barrier"
    end = Ended(reason=why, cause=EndCause.WORKER_ABORTED, rank=2, host="h3")
    assert ends == [end] * 3
    with pytest.raises(WorkerLostError, match="called barrier"):
        sessions[0].leave(timeout_s=10)
    assert told.empty()


def test_where_calls_differ_everybody_is_asked_and_hears_of_all(workers: Workers) -> None:
    def answer(session: ControllerSession, what: str, asked: Request) -> None:
        if isinstance(asked, Compare):
            session.say(Called(asked.collective, what))

    sessions, _ = workers.run(3)
    told: queue.Queue[Ended] = queue.Queue()
    for rank, session in enumerate(sessions):
        session.on_ended(told.put)
        what = "barrier by ring" if rank == 2 else "all_reduce(SUM) of 9 int32 in-network"
        session.listen(partial(answer, session, what))
    sessions[2].abort("its first message differs", Called(7, "barrier by ring"))
    ends = [told.get(timeout=10) for _ in sessions]
    assert ends == [ends[0]] * 3
    assert ends[0].cause is EndCause.MISMATCH
    assert ends[0].reason.startswith(
        "the workers disagree about collective 7: rank 0-1: all_reduce(SUM) of 9 int32 in-network; rank 2: "
        "barrier by ring. All workers have to call the same"
    )
    assert ends[0].reason.endswith("(its first message differs)")
    with pytest.raises(MismatchError, match="rank 2: barrier by ring"):
        sessions[0].leave(timeout_s=10)


def test_who_has_left_before_a_collective_that_another_waits_in_is_named(workers: Workers) -> None:
    sessions, readies = workers.run(2)

    def answer(asked: Request) -> None:
        if isinstance(asked, Compare):
            sessions[0].say(Called(asked.collective, "barrier by ring"))

    sessions[0].listen(answer)
    sessions[0].counted(readies[0].generation, 0)
    sessions[0].runs(4)
    with pytest.raises(MismatchError, match="rank 0: barrier by ring; rank 1 has left after 4 collectives"):
        sessions[1].leave(timeout_s=10, collectives=4)


def test_a_worker_that_closes_without_leaving_ends_the_job(workers: Workers) -> None:
    sessions, _ = workers.run(2)
    sessions[1].close()
    with pytest.raises(WorkerLostError, match=r"rank 1 \(h2, 10.0.0.2\) closed its session before everybody"):
        sessions[0].leave(timeout_s=10)


def test_a_worker_that_dies_is_missed(workers: Workers) -> None:
    sessions, _ = workers.run(2)
    sessions[1]._joined.state = State.CLOSED  # no heartbeats, no second call: as if the process was killed
    sessions[1]._call.cancel()
    with pytest.raises(
        WorkerLostError, match=r"rank 1 \(h2, 10.0.0.2\) has been without a connection .* 1 s"
    ):
        sessions[0].leave(timeout_s=10)


def test_a_deleted_job_is_no_workers_doing(workers: Workers, admin: AdminClient) -> None:
    sessions, _ = workers.run(2)
    admin.delete_job("train")
    for session in sessions:
        with pytest.raises(JobEndedError, match="job train was deleted") as caught:
            session.leave(timeout_s=10)
        assert caught.value.rank is None


def test_a_broken_connection_and_a_restarted_controller_do_not_matter(
    workers: Workers, served: Served
) -> None:
    sessions, readies = workers.run(3)
    sessions[0]._call.cancel()
    entries = dict(served.switch.of_jobs)
    assert rnr_syndromes(entries.values()) == {0: 0, 1: 0x20 | 23, 2: 0}
    served.stop()
    served.start()
    assert served.switch.of_jobs == entries
    assert served.registry is not None
    place = served.registry.job("train").allocations.get("s1")
    assert place is not None
    assert set(place.entries) == set(entries.values())
    assert [m.rnr_nak for m in served.registry.job("train").job.members] == [False, True, False]
    workers.leave(sessions)
    assert served.registry.job("train").generation == readies[0].generation


def rnr_syndromes(entries: Iterable[Entry]) -> dict[int, int]:
    """Return by rank the syndrome with which the switch answers what comes too early."""
    flows = [dict(e.params) for e in entries if isinstance(e, TableEntry) and e.table == FLOW]
    return {params["rank"]: params["rnr_syndrome"] for params in flows if "rank" in params}


def test_leaving_workers_of_two_jobs_do_not_wait_for_each_other(workers: Workers) -> None:
    one, _ = workers.run(2)
    sessions = [workers.session(), workers.session()]
    more = [
        request_of(rank, job="two", size=2, qpn_in=0x400 + rank, qpn_out=0x500 + rank) for rank in range(2)
    ]
    workers.each(lambda s: s.join(more[sessions.index(s)], timeout_s=10), sessions)
    workers.leave(one)


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        (
            [pb.WorkerMessage(up=pb.Up())],
            grpc.StatusCode.INVALID_ARGUMENT,
            "begins with join or resume, not with up",
        ),
        ([pb.WorkerMessage()], grpc.StatusCode.INVALID_ARGUMENT, "not with nothing"),
        (
            [pb.WorkerMessage(resume=pb.Resume(job="train", generation=9))],
            grpc.StatusCode.NOT_FOUND,
            "no job 'train' with generation 9",
        ),
    ],
)
def test_sessions_that_begin_wrong_are_refused(
    served: Served, messages: list[pb.WorkerMessage], code: grpc.StatusCode, text: str
) -> None:
    with grpc.insecure_channel(served.address) as channel:
        stub = ControllerStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Session(iter(messages), timeout=10))
    assert caught.value.code() is code
    assert text in str(caught.value.details())


def test_no_controller_is_said_in_a_sentence(tmp_path: Path) -> None:
    with (
        AdminClient(f"unix:{tmp_path}/nobody.sock") as client,
        pytest.raises(UnreachableError, match="take the cluster down and up again"),
    ):
        client.status()


def test_an_address_in_use_is_said_in_a_sentence(served: Served) -> None:
    assert served.registry is not None
    service = ControllerService(served.registry)

    async def second() -> None:
        make_server(service, [served.address])

    with pytest.raises(AddressError, match=r"cannot listen on 127\.0\.0\.1"):
        asyncio.run(second())


# Who has said nothing, or has not said that it heard


def guards_of(served: Served) -> set[str]:
    return {getattr(entry, "table", "group") for entry in served.switch.of_jobs.values()}


def test_a_job_is_off_the_switch_soon_when_all_workers_have_heard_that_it_ended(
    workers: Workers, served: Served
) -> None:
    sessions, _ = workers.run(3)
    sessions[1].abort("no more")
    for session in sessions:
        with pytest.raises(JobEndedError):
            session.leave(timeout_s=10)
    assert served.registry is not None
    states = served.registry.job("train").job.workers.values()
    for _ in range(500):
        if all(state.knows_end for state in states):
            break
        threading.Event().wait(0.01)
    assert all(state.knows_end for state in states)


def test_a_worker_that_is_out_of_reach_has_not_heard_that_its_job_ended(
    workers: Workers, served: Served
) -> None:
    def messages() -> Iterator[pb.WorkerMessage]:
        host = CONFIG.hosts[1]
        worker = pb.Worker(rank=1, mac=host.mac, ip=str(host.ip), qpn_out=0x101, psn_out=1, qpn_in=0x201)
        yield pb.WorkerMessage(join=pb.Join(job="train", world_size=2, worker=worker, path_mtu_max=1024))
        ended.wait(20)  # it keeps its side open, as if nothing reached it
        while not stop.wait(0.05):
            pass

    ended, stop = threading.Event(), threading.Event()
    one = workers.session()
    joined = workers.pool.submit(one.join, request_of(0, size=2), timeout_s=10)
    with grpc.insecure_channel(served.address) as channel:
        call = ControllerStub(channel).Session(messages(), timeout=20)
        joined.result(timeout=10)
        one.abort("no more")
        kinds = [message.WhichOneof("message") for message in call]
        assert kinds[-1] == "ended"
        stop.set()
        ended.set()
    assert served.registry is not None
    states = served.registry.job("train").job.workers
    assert (states[0].knows_end, states[1].knows_end) == (True, False)
    assert guards_of(served) == {MEMBER_QP}


def test_a_session_in_which_nothing_is_said_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.service.FIRST_MESSAGE_S", 0.2)
    silent = threading.Event()

    def nothing() -> Iterator[pb.WorkerMessage]:
        silent.wait(20)
        yield from ()

    with grpc.insecure_channel(served.address) as channel:
        call = ControllerStub(channel).Session(nothing(), timeout=10)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        silent.set()
    assert "nothing came within 0.2 s" in str(caught.value.details())


def test_a_database_that_fails_is_said_to_who_joins(
    workers: Workers, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    assert served.registry is not None
    monkeypatch.setattr(served.registry.sessions, "join", fail)
    with pytest.raises(JobRefusedError, match=r"database .* cannot be written: disk I/O error"):
        workers.session().join(request_of(0), timeout_s=10)


def test_a_database_that_fails_in_the_middle_ends_no_job(
    workers: Workers, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, _ = workers.run(2)

    def fail(job: object, *_: object) -> None:
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Job, "_leave", fail)
    workers.leave(sessions)
