"""What workers' sessions were told."""

from __future__ import annotations

from controller.jobs import Ended, Event, Heartbeat, Ready, Waiting
from controller.sessions import Session


def heard(session: Session) -> list[Event | None]:
    """What a session was told since the last call, without waiting and heartbeats."""
    events: list[Event | None] = []
    while not session.events.empty():
        event = session.events.get_nowait()
        if not isinstance(event, (Waiting, Heartbeat)):
            events.append(event)
    return events


def ready_of(session: Session) -> Ready:
    """The Ready that it was told first."""
    (first, *_) = heard(session)
    assert isinstance(first, Ready)
    return first


def ended_of(session: Session) -> Ended:
    """The Ended that it was told last."""
    *_, event, last = heard(session)
    assert isinstance(event, Ended)
    assert last is None
    return event
