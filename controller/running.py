"""A job as the controller runs it: its state machine, its workers' sessions, its places on switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.jobs import Job
from controller.store import Place, StoredJob

if TYPE_CHECKING:
    from controller.sessions import Session


@dataclass(eq=False)
class Running:
    """A job, its workers' sessions by rank, and its places by switch (empty: it has none anywhere).

    `free_at`: when the guards of an ended job may go; `installing`: switches are being written for it;
    `flows_removed`: the switches where an ended job has only its guards left. `deleted`: nobody asks for it
    any more; `unheard`: no worker has heard of its generation, and the database forgets it when no switch has
    anything of it. `before`: what generations before this one have left on switches; `when_written`: what is
    to be done when switches are not being written any more. `waits_for`: in words, what keeps it from going
    on. `unsaved`: the database does not know of its generation yet, nor of those `behind`. `refused`: how
    often in this renewal workers offered queue pairs whose numbers they cannot have. `ended_at`: None also
    where that was before a restart. `later`, by token: the generation behind the database's that a worker
    came back with, and the numbers of its QPs there, where the database is from a backup.
    """

    job: Job
    places: dict[str, Place] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    installing: bool = False
    cleaning: bool = False
    flows_removed: set[str] = field(default_factory=set)
    free_at: float = 0.0
    deleted: bool = False
    unheard: bool = False
    before: list[Running] = field(default_factory=list)
    when_written: list[Callable[[], None]] = field(default_factory=list)
    waits_for: str = ""
    unsaved: bool = False
    behind: list[StoredJob] = field(default_factory=list)
    refused: int = 0
    ended_at: float | None = None
    later: dict[bytes, tuple[int, frozenset[int]]] = field(default_factory=dict)

    @property
    def generation(self) -> int | None:
        """None before there is a plan."""
        return self.job.plan.generation if self.job.plan is not None else None

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves that it has a place on."""
        return tuple(name for name, place in self.places.items() if place.role == "leaf")

    @property
    def leaves_first(self) -> list[Place]:
        """Its places, those on leaves before those on spines, by switch."""
        return sorted(self.places.values(), key=lambda place: (place.role, place.switch))
