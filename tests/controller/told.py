"""Events that workers' sessions were told."""

from __future__ import annotations

from dataclasses import fields

from controller.api.messages import Ended, FromController, Heartbeat, Ready, Waiting
from controller.jobs.specs import Plan
from controller.orchestration.sessions import Session


def everything(session: Session) -> list[FromController | None]:
    """Return what a session was told since the last call."""
    return [session.events.get_nowait() for _ in range(session.events.qsize())]


def heard(session: Session) -> list[FromController | None]:
    """Return the same without waiting and heartbeats."""
    return [event for event in everything(session) if not isinstance(event, (Waiting, Heartbeat))]


def plan_of(ready: Ready) -> Plan:
    """Return the plan of the job, as far as Ready tells it."""
    said = {field.name for field in fields(Plan)} & {field.name for field in fields(ready)}
    return Plan(**{name: getattr(ready, name) for name in said})


def ready_of(session: Session) -> Ready:
    """Return the Ready that a session was told first."""
    (first, *_) = heard(session)
    assert isinstance(first, Ready)
    return first


def ended_of(session: Session) -> Ended:
    """Return the Ended that a session was told last."""
    *_, event, last = heard(session)
    assert isinstance(event, Ended)
    assert last is None
    return event
