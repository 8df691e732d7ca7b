"""A worker's status: in a collective, between two, and without a link."""

from __future__ import annotations

import json
import threading
from typing import Any

from controller.api.messages import Mode
from host_agent.collectives.plan import Steps, Wait
from host_agent.member import Member
from host_agent.membership import View
from host_agent.runner import Alone, Runner
from host_agent.status import status, threads
from host_agent.transport.errors import TransportClosedError
from host_agent.transport.events import EventType, Progress
from p4reduce.doctor.facts import WorkerStatus
from p4reduce.simulation.rack import configs
from tests.host_agent.fakes import ready_of


class Held(Alone):
    """A link on which a wait lasts until it is let go."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.go = threading.Event()
        self.is_closed = False

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        self.waits.set()
        assert self.go.wait(10)

    def progress(self) -> Progress:
        if self.is_closed:
            raise TransportClosedError("closed")
        return super().progress()


def said(runner: Runner, member: Member, **changes: Any) -> dict[str, Any]:
    """Return the status as it comes over the socket."""
    fields: dict[str, Any] = {
        "job": "train",
        "rank": 2,
        "world_size": 4,
        "generation": 7,
        "failure": "",
        "is_leaving": False,
    }
    told: dict[str, Any] = json.loads(
        json.dumps(status(runner=runner, member=member, **{**fields, **changes}))
    )
    return told


def in_mode(mode: Mode) -> Member:
    return Member(ready_of(configs(2)[0], mode=mode), View.first(2, 4))


def steps() -> Steps[None]:
    yield Wait(1, EventType.RECEIVED)


def test_in_a_collective_and_between_two() -> None:
    link, member = Held(), in_mode(Mode.IN_NETWORK)
    runner = Runner(link, rank=2)
    worker = threading.Thread(target=runner.run, args=(steps(), "barrier (collective 0)"))
    worker.start()
    assert link.waits.wait(10)
    within = WorkerStatus.of(said(runner, member))
    assert (within.job, within.rank, within.generation) == ("train", 2, 7)
    assert within.collective == "barrier (collective 0)"
    assert within.idle_s is None
    link.go.set()
    worker.join()
    between = WorkerStatus.of(said(runner, member, failure="no more", is_leaving=True))
    assert between.collective == ""
    assert between.idle_s is not None
    assert between.failure == "no more"
    assert between.is_leaving
    assert between.sent_s_ago is None, "never"


def test_between_two_generations_the_link_is_gone() -> None:
    link = Held()
    link.is_closed = True
    assert WorkerStatus.of(said(Runner(link, rank=0), in_mode(Mode.RING))).posted == 0


def test_where_the_users_threads_are() -> None:
    def load_batch() -> None:
        started.set()
        assert go_on.wait(10)

    started, go_on = threading.Event(), threading.Event()
    loader = threading.Thread(target=load_batch, name="loader")
    loader.start()
    assert started.wait(10)
    found = {thread["name"]: thread for thread in threads()}
    go_on.set()
    loader.join()
    assert "test_status.py:" in found["loader"]["users"]
    assert found["loader"]["users"].endswith(" in load_batch"), "not where Python's own code waits"
    assert "wait" in found["loader"]["stack"][-1]
    assert "MainThread" in found
