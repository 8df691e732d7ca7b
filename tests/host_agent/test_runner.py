"""Patience, and operations that the connection does not take."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest

from host_agent.collectives.plan import Steps, Wait
from host_agent.communicator import Communicator
from host_agent.errors import CollectiveTimeoutError, UsageError
from host_agent.recovery import LinkCut
from host_agent.runner import Alone, Runner
from host_agent.transport import (
    EventType,
    Operation,
    Progress,
    SwitchOp,
    TransportClosedError,
    TransportTimeoutError,
)


class SlowLink(Alone):
    """Every wait takes 100 s or what it is given; the result is there after an hour."""

    def __init__(self) -> None:
        self.now = 0.0

    def post(self, operation: Operation) -> int:
        return 1

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        self.now += timeout_s if timeout_s is not None else 3600
        if self.now < 3600:
            raise TransportTimeoutError("not yet")

    def progress(self) -> Progress:
        return Progress(**{field.name: 0 for field in fields(Progress)})  # type: ignore[arg-type]


class PickyLink(SlowLink):
    """Refuses the operation with sequence number `refused`."""

    def __init__(self, refused: int) -> None:
        super().__init__()
        self.refused = refused

    def post(self, operation: Operation) -> int:
        if operation.collective == self.refused:
            raise ValueError("more than 2^32 - 1 elements")
        return 1


def operation(number: int) -> Operation:
    return Operation(
        switch_op=SwitchOp.SUM,
        send=np.zeros(1, np.int32),
        receive=None,
        element_type=1,
        reduction=1,
        collective=number,
        total_elements=1,
    )


def two_operations() -> Steps[str]:
    for number in range(2):
        yield Wait((yield operation(number)))
    return "done"


def test_without_a_timeout_a_straggler_is_waited_for_but_not_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = SlowLink()
    assert Runner(link, rank=0, clock=lambda: link.now).run(two_operations(), "all_reduce") == "done"
    assert 50 <= len(caplog.messages) <= 60  # an hour of it
    assert "rank 0 saw no progress for 60 s. The first" in caplog.text
    assert "waiting on" in caplog.text


def test_with_a_timeout_it_is_not() -> None:
    link = SlowLink()
    with pytest.raises(CollectiveTimeoutError, match="no progress for 60 s, the timeout that it was"):
        Runner(link, rank=0, timeout_s=60, clock=lambda: link.now).run(two_operations(), "all_reduce")


def test_whoever_is_missing_is_named() -> None:
    link, asked = SlowLink(), list[float]()

    def who_is_missing(*, timeout_s: float) -> str:
        asked.append(timeout_s)
        return "The controller says: rank 2 is in no collective"

    with pytest.raises(CollectiveTimeoutError, match="The controller says: rank 2 is in no collective"):
        Runner(link, rank=0, timeout_s=60, clock=lambda: link.now, who_is_missing=who_is_missing).run(
            two_operations(), "all_reduce"
        )
    assert len(asked) == 1
    assert asked[0] <= 5


def test_what_comes_while_it_asks_is_progress() -> None:
    class MovingLink(SlowLink):
        """Something comes with each question."""

        received = 0

        def progress(self) -> Progress:
            return replace(super().progress(), received_messages=self.received)

    link = MovingLink()

    def who_is_missing(*, timeout_s: float) -> str:
        link.received += 1
        return "rank 2"

    runner = Runner(link, rank=0, timeout_s=60, clock=lambda: link.now, who_is_missing=who_is_missing)
    assert runner.run(two_operations(), "all_reduce") == "done"
    assert link.received > 10


@pytest.mark.parametrize("make", [Communicator, Communicator.join])
def test_by_default_the_controller_decides_who_is_dead(make: object) -> None:
    assert inspect.signature(make).parameters["timeout_s"].default is None  # type: ignore[arg-type]


def test_a_repair_that_runs_meanwhile_leaves_what_is_parked_as_running() -> None:
    class CutLink(SlowLink):
        """The first wait meets a cut."""

        cuts = 1

        def wait(self, op_id: int, **how: object) -> None:
            if self.cuts:
                self.cuts -= 1
                raise TransportClosedError("the job is renewed")

    def parked() -> Steps[None]:
        try:
            yield Wait(1)
        except LinkCut:
            seen.append(runner.running)

    def repair() -> Steps[None]:
        seen.append(runner.running)
        return
        yield

    seen: list[tuple[str, float] | None] = []
    runner = Runner(CutLink(), rank=0)
    runner.run(parked(), "all_reduce", on_cut=lambda error: runner.run(repair(), "its result"))
    assert [running and running[0] for running in seen] == ["its result", "all_reduce"]
    assert runner.running is None


def test_what_cannot_be_sent_at_all_is_the_users_error() -> None:
    with pytest.raises(UsageError, match=r"all_gather cannot be sent: more than 2\^32 - 1 elements"):
        Runner(PickyLink(0), rank=0).run(two_operations(), "all_gather")


def test_what_cannot_be_finished_is_not() -> None:
    """Check that the communicator is unusable afterwards, as the others wait for the rest."""
    with pytest.raises(ValueError, match="more than") as caught:
        Runner(PickyLink(1), rank=0).run(two_operations(), "all_gather")
    assert not isinstance(caught.value, UsageError)
