"""Join tokens, and what happens to those who ask too much, too often, or for what is not theirs."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import ConflictError, InvalidRequestError
from controller.api.rpc import ControllerStub
from controller.config import ConfigError, parse_config
from controller.security import tokens
from controller.security.limits import Bucket, Limits, Peers, TooMuchError, host_of
from host_agent.controller_session import ControllerSession
from host_agent.errors import JobRefusedError
from tests.controller.service.served import CONFIG, request_of
from tests.security.service import Service

TOKEN = "correct horse battery staple"
# 5 at once of each, 500 messages, and then hardly any more: however slow this machine is, a peer is too fast.
TIGHT = Limits(sessions=4, sessions_per_s=0.05, requests_per_s=0.05, messages_per_s=5, burst_s=100)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, None) as running:
        yield running


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, None, replace(CONFIG, limits=TIGHT)) as running:
        yield running


def refused(service: Service, place: int, token: str) -> str:
    session = ControllerSession(service.address)
    with pytest.raises(JobRefusedError) as error:
        session.join(request_of(place, size=2, join_token=token), timeout_s=60)
    session.close()
    return str(error.value)


def joined(service: Service, token: str, *, places: int = 2) -> list[ControllerSession]:
    """Bring up all workers of a job, and return their sessions."""
    from concurrent.futures import ThreadPoolExecutor

    sessions = [ControllerSession(service.address) for _ in range(places)]
    with ThreadPoolExecutor(places) as pool:
        list(
            pool.map(
                lambda at: sessions[at].join(request_of(at, size=places, join_token=token), timeout_s=60),
                range(places),
            )
        )
        list(pool.map(lambda session: session.up(timeout_s=60), sessions))
    return sessions


class TestTokens:
    """A job's join token."""

    def test_who_does_not_bring_it_is_not_let_in(self, service: Service) -> None:
        with AdminClient(service.unix) as admin:
            admin.create_job("train", 2, join_token=TOKEN)
        assert "takes only workers that bring its join token: set P4REDUCE_JOIN_TOKEN" in refused(
            service, 0, ""
        )
        assert "this is not its join token" in refused(service, 0, TOKEN + "r")
        for session in joined(service, TOKEN):
            session.close()

    def test_the_first_worker_may_bring_it(self, service: Service) -> None:
        first = ControllerSession(service.address)
        from threading import Thread

        thread = Thread(target=lambda: first.join(request_of(0, size=2, join_token=TOKEN), timeout_s=60))
        thread.start()
        deadline = time.monotonic() + 60
        with AdminClient(service.unix) as admin:
            while not admin.list_jobs() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "takes only workers that bring" in refused(service, 1, "")
            second = ControllerSession(service.address)
            second.join(request_of(1, size=2, join_token=TOKEN), timeout_s=60)
            thread.join(60)
            told = str(admin.list_jobs())
        assert TOKEN not in told
        assert not admin_sees_a_token(told)
        first.close()
        second.close()

    def test_who_brings_one_is_not_taken_into_a_job_of_somebody_else(self, service: Service) -> None:
        with AdminClient(service.unix) as admin:
            admin.create_job("train", 2)
        assert "was made without a join token, but this worker brings one" in refused(service, 0, TOKEN)

    def test_it_is_kept_as_a_hash_and_told_to_nobody(
        self, service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        with AdminClient(service.unix) as admin:
            info = admin.create_job("train", 2, join_token=TOKEN)
            assert info.spec.join_token == ""
            assert admin.show_job("train").spec.join_token == ""
        refused(service, 0, "another token that is wrong")
        for session in joined(service, TOKEN):
            session.close()
        assert service.registry is not None
        spec = service.registry.job("train").job.spec
        assert tokens.matches(TOKEN, spec.token_hash)
        assert spec.token_hash not in repr(spec)
        for path in tmp_path.glob("c.db*"):
            assert TOKEN.encode() not in path.read_bytes()
        assert TOKEN not in caplog.text
        assert "another token" not in caplog.text
        assert "join_token" not in repr(request_of(0, join_token=TOKEN))

    def test_a_short_one_is_none(self, service: Service) -> None:
        with (
            AdminClient(service.unix) as admin,
            pytest.raises(InvalidRequestError, match="16 to 256 characters"),
        ):
            admin.create_job("train", 2, join_token="secret")
        assert "has 6" in refused(service, 0, "secret")

    def test_hashes_differ_and_match(self) -> None:
        one, other = tokens.hashed(TOKEN), tokens.hashed(TOKEN)
        assert one != other
        assert tokens.matches(TOKEN, one)
        assert tokens.matches(TOKEN, other)
        assert not tokens.matches("", one)
        assert tokens.wrong_with(TOKEN) is None
        assert tokens.wrong_with("with a\nnew line in it") is not None


def admin_sees_a_token(told: str) -> bool:
    return "token" in told


class TestOthers:
    """Attacks on a job that runs, by who has no part in it."""

    def test_a_rank_that_is_taken_is_not_given_again(self, service: Service) -> None:
        sessions = joined(service, "", places=3)
        assert service.registry is not None
        running = service.registry.job("train")
        generation = running.generation
        assert generation is not None
        with grpc.insecure_channel(service.address) as channel:
            stub = ControllerStub(channel)
            member = request_of(0).worker
            attacks = [
                pb.WorkerMessage(
                    join=pb.Join(
                        job="train",
                        world_size=3,
                        path_mtu_max=1024,
                        worker=pb.Worker(
                            rank=0, ip=str(member.ip), mac=member.mac, qpn_out=7, qpn_in=8, psn_out=0
                        ),
                    )
                ),
                *(
                    pb.WorkerMessage(resume=pb.Resume(job="train", generation=g, rank=r, token=t))
                    for g in (generation, generation + 1, 0, 2**32 - 1)
                    for r in (0, 2, 7, 2**32 - 1)
                    for t in (b"", bytes(16), b"x" * 4000)
                ),
                pb.WorkerMessage(heartbeat=pb.Heartbeat()),
                pb.WorkerMessage(abort=pb.Abort(reason="stop")),
                pb.WorkerMessage(),
            ]
            for attack in attacks:
                with pytest.raises(grpc.RpcError):
                    list(stub.Session(iter([attack]), timeout=60))
        for session in sessions:
            assert session._joined.ended is None
        with AdminClient(service.unix) as admin:
            assert admin.show_job("train").phase == pb.RUNNING
        for session in sessions:
            session.close()

    @pytest.mark.parametrize(
        "change",
        [
            {"world_size": 0},
            {"world_size": 257},
            {"world_size": 2**32 - 1},
            {"job": ""},
            {"job": "x" * 129},
            {"job": "a\nb"},
            {"tenant": "x" * 1000},
            {"hostname": "x" * 300},
            {"hostname": "\x1b[2J"},
            {"mac": "x" * 1000},
            {"qpn_in": 1},
            {"qpn_out": 2**24},
            {"psn_out": 2**32 - 1},
            {"path_mtu_max": 2**31},
        ],
        ids=lambda change: "-".join(change),
    )
    def test_what_makes_no_sense_is_refused_and_leaves_nothing(
        self, service: Service, change: dict[str, Any]
    ) -> None:
        session = ControllerSession(service.address)
        with pytest.raises(JobRefusedError) as error:
            session.join(request_of(0, size=2, **change), timeout_s=60)
        session.close()
        assert len(str(error.value)) < 2000
        with AdminClient(service.unix) as admin:
            assert admin.list_jobs() == []

    def test_unknown_fields_are_nothing(self, service: Service) -> None:
        """Send a join as ever with a string in field 99."""
        member = request_of(0, size=1).worker
        join = pb.Join(job="alone", world_size=1, path_mtu_max=1024)
        join.worker.CopyFrom(
            pb.Worker(rank=0, ip=str(member.ip), mac=member.mac, qpn_out=7, qpn_in=8, psn_out=0)
        )
        raw = pb.WorkerMessage(join=join).SerializeToString() + b"\x9a\x06\x05hello"
        with grpc.insecure_channel(service.address) as channel:
            call = channel.stream_stream(
                "/p4reduce.v1.Controller/Session",
                request_serializer=bytes,
                response_deserializer=pb.ControllerMessage.FromString,
            )(iter([raw]), timeout=60)
            assert next(iter(call)).WhichOneof("message") in ("waiting", "ready")
            call.cancel()  # type: ignore[no-untyped-call]

    def test_bytes_that_are_no_message_end_that_call_alone(self, service: Service) -> None:
        sessions = joined(service, "")
        with grpc.insecure_channel(service.address) as channel:
            for garbage in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", bytes(5000)):
                call = channel.stream_stream(
                    "/p4reduce.v1.Controller/Session", request_serializer=bytes, response_deserializer=bytes
                )
                with pytest.raises(grpc.RpcError):
                    list(call(iter([garbage]), timeout=60))
        with AdminClient(service.unix) as admin:
            assert admin.show_job("train").phase == pb.RUNNING
        for session in sessions:
            session.close()


class TestLimits:
    """Limits of what one peer may ask."""

    def test_a_flood_of_messages_ends_that_session_and_no_other(self, tight: Service) -> None:
        sessions = joined(tight, "")
        flooding = pb.WorkerMessage(heartbeat=pb.Heartbeat())
        member = request_of(2, size=1).worker
        first = pb.WorkerMessage(
            join=pb.Join(
                job="flood",
                world_size=1,
                path_mtu_max=1024,
                worker=pb.Worker(rank=0, ip=str(member.ip), mac=member.mac, qpn_out=7, qpn_in=8),
            )
        )
        with grpc.insecure_channel(tight.address) as channel:
            stub = ControllerStub(channel)
            with pytest.raises(grpc.RpcError) as error:
                list(stub.Session(iter([first, *[flooding] * 5000]), timeout=120))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more messages than a worker has to say" in (error.value.details() or "")
        with AdminClient(tight.unix) as admin:
            assert admin.show_job("train").phase == pb.RUNNING
        for session in sessions:
            session.close()

    def test_sessions_that_say_nothing_do_not_take_all_places(self, tight: Service) -> None:
        """Fill all places; gRPC does not hand sessions over in order, so it decides which of them get one."""
        refused = queue.Queue[grpc.StatusCode]()
        done = threading.Event()

        def silent() -> Iterator[pb.WorkerMessage]:
            done.wait(120)
            yield from ()

        with AdminClient(tight.unix) as admin, grpc.insecure_channel(tight.address) as channel:
            stub = ControllerStub(channel)
            held = [stub.Session(silent(), timeout=120) for _ in range(40)]
            try:
                for call in held:
                    call.add_done_callback(lambda call: refused.put(call.code()))
                codes = [refused.get(timeout=120) for _ in held[TIGHT.sessions :]]
                assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) >= len(held) - 2 * TIGHT.sessions
                assert admin.list_jobs() == [], "by its Unix socket it is there"
                for call in held:
                    call.cancel()
            finally:
                done.set()

    def test_requests_that_come_too_fast_are_refused(self, tight: Service) -> None:
        with AdminClient(tight.address) as admin:
            said = set()
            for _ in range(30):
                try:
                    admin.list_jobs()
                except Exception as error:  # noqa: BLE001 (it is looked at)
                    said.add(str(error))
        assert said == {"127.0.0.1 has more than 0.05 requests a second: come again in a moment"}
        with AdminClient(tight.unix) as admin:
            for _ in range(30):
                admin.list_jobs()

    def test_messages_that_are_too_large_are_refused(self, service: Service) -> None:
        with grpc.insecure_channel(service.address) as channel:
            stub = ControllerStub(channel)
            for size in (20_000, 8 << 20):
                with pytest.raises(grpc.RpcError) as error:
                    list(
                        stub.Session(iter([pb.WorkerMessage(abort=pb.Abort(reason="x" * size))]), timeout=60)
                    )
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_who_connects_and_says_nothing_harms_nobody(self, service: Service) -> None:
        """Send half a greeting on many connections, as slowloris does."""
        host, port = service.address.split(":")
        connections = [socket.create_connection((host, int(port))) for _ in range(100)]
        for connection in connections:
            connection.sendall(b"PRI * HTTP/2.0\r\n")
        for session in joined(service, ""):
            session.close()
        for connection in connections:
            connection.close()

    def test_buckets_fill_up_again(self) -> None:
        now = [0.0]
        bucket = Bucket(10, 2, lambda: now[0])
        assert [bucket.take() for _ in range(3)] == [True, True, False]
        now[0] = 0.1
        assert [bucket.take() for _ in range(2)] == [True, False]
        now[0] = 100.0
        assert [bucket.take() for _ in range(3)] == [True, True, False]

    def test_what_is_closed_makes_room(self) -> None:
        peers = Peers(Limits(sessions=1))
        with peers.session("ipv4:10.0.0.1:5"):
            with (
                pytest.raises(TooMuchError, match=r"10\.0\.0\.1 has 1 sessions open"),
                peers.session("ipv4:10.0.0.1:6"),
            ):
                pass
            with peers.session("ipv4:10.0.0.2:5"), peers.session("unix:"), peers.session("unix:"):
                pass
        with peers.session("ipv4:10.0.0.1:7"):
            pass

    def test_who_a_peer_is(self) -> None:
        assert host_of("ipv4:10.0.0.1:80") == "10.0.0.1"
        assert host_of("ipv6:%5B::1%5D:80") == "%5B::1%5D"
        assert host_of("unix:") is None
        assert host_of("unix:/run/x") is None

    def test_the_configuration_has_them(self) -> None:
        document = {
            "switches": [{"name": "s1", "device_id": 1, "address": "127.0.0.1:1"}],
            "hosts": [{"name": "h1", "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "port": 1}],
        }
        assert parse_config({**document, "limits": {"sessions": 3}}).limits == Limits(sessions=3)
        assert json.loads(json.dumps(asdict(Limits())))["message_bytes"] == 4 << 20
        for wrong, said in (
            ({"sessions": 0}, "limits.sessions is 0"),
            ({"messages_per_s": -1}, "limits.messages_per_s is -1"),
            ({"sesions": 1}, "has a field 'sesions'"),
            ({"sessions": "many"}, "not of type int"),
        ):
            with pytest.raises(ConfigError, match=said):
                parse_config({**document, "limits": wrong})


def test_conflicts_stay_conflicts(service: Service) -> None:
    """Create a job twice under one name, with its join token."""
    with AdminClient(service.unix) as admin:
        admin.create_job("train", 2, join_token=TOKEN)
        with pytest.raises(ConflictError):
            admin.create_job("train", 2, join_token=TOKEN)
