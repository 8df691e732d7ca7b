"""Comparison of the calls of workers that disagree, for the error message. No I/O.

The first worker that meets a mismatch reports it, with its own call. The controller asks all others. They
answer at once, even if they have not called anything yet, and again as soon as they have. The job ends for
all when every worker has named its call or cannot answer any more, and in any case after a short time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.api.messages import Called
from controller.jobs.serials import ahead
from controller.jobs.workers import WorkerState

LONGEST_CALL = 200  # characters
_LONGEST_S = 5.0


@dataclass
class Comparison:
    """Comparison of the calls of `ranks` as collective `collective`, begun at `since` for `reason`.

    `each`: the word for a rank in messages; in a plane of a gang, "machine".
    """

    collective: int
    ranks: frozenset[int]
    reason: str
    since: float
    each: str = "rank"
    answers: dict[int, str] = field(default_factory=dict)  # in words, as a sentence goes on behind a rank

    def called(self, rank: int, called: Called) -> None:
        """Note a worker's call. Only its first answer with a call counts."""
        if not called.what:
            return
        what = called.what[:LONGEST_CALL]
        if called.collective != self.collective:
            what += f", as its collective {called.collective}"
        self.answers.setdefault(rank, f": {what}")

    def gone(self, rank: int, why: str) -> None:
        """Note that a worker will not say anything more."""
        self.answers.setdefault(rank, f" has not said what it has called: {why}")

    def update(self, workers: Mapping[int, WorkerState]) -> None:
        """Note the workers that call nothing more: they are lost, or have left before this collective."""
        for rank, worker in workers.items():
            if worker.lost:
                self.gone(rank, "it is lost")
            if worker.left_after is not None and ahead(self.collective, worker.left_after) >= 0:
                self.answers.setdefault(rank, f" has left after {_counted(worker.left_after)}")

    @property
    def is_complete(self) -> bool:
        """True if no worker is waited for."""
        return self.ranks <= self.answers.keys()

    def is_late(self, now: float, limit_s: float) -> bool:
        """Tell whether it has taken too long, so that nobody is waited for any more."""
        return now - self.since > min(limit_s, _LONGEST_S)

    @property
    def outcome(self) -> str:
        """The calls of all ranks, as one sentence for everybody."""
        ranks: dict[str, list[int]] = {}  # by what they have said
        for rank in sorted(self.ranks):
            ranks.setdefault(self.answers.get(rank, " has not called it"), []).append(rank)
        lines = [f"{self.each} {_listed(same)}{what}" for what, same in ranks.items()]
        return (
            f"the workers disagree about collective {self.collective}: {'; '.join(lines)}. All workers have "
            "to call the same collectives in the same order, with the same roots, sizes, element types, "
            f"reductions and strategies ({self.reason})"
        )


def in_vain(workers: Mapping[int, WorkerState]) -> tuple[int, str] | None:
    """Find a collective that one worker is in and another has left before, so that it never has a result.

    Return it with the reason in words; None if there is none.
    """
    for worker in workers.values():
        for away in workers.values():
            if worker.in_collective is None or away.left_after is None:
                continue
            if ahead(worker.in_collective, away.left_after) >= 0:
                return worker.in_collective, f"{worker.member} waits for {away.member}, which has left"
    return None


def _counted(collectives: int) -> str:
    return f"{collectives} collective{'' if collectives == 1 else 's'}"


def _listed(ranks: Iterable[int]) -> str:
    """List ranks in order, as "3" or "0-2, 5". The text follows "rank", whose verbs then suit both."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
