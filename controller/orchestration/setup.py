"""Set-up of a job or gang whose workers have all joined: in the network if there is room, else by ring."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from controller.api.errors import NoResourcesError, NotPossibleError, UnreachableError
from controller.api.messages import Mode
from controller.fabric.trees import Tree
from controller.jobs.job import Job
from controller.jobs.specs import Plan, slots_of
from controller.orchestration import planning
from controller.orchestration.allocations import Claim
from controller.orchestration.demands import Demands
from controller.orchestration.record import Record
from controller.orchestration.switch_manager import SwitchManager
from controller.switches.updates import SwitchError


class Installer:
    """Plans within the quotas, and the writing of switches for them."""

    def __init__(self, manager: SwitchManager, demands: Demands) -> None:
        self._config = manager.config
        self._store = manager.store
        self._allocations = manager.allocations
        self._demands = demands

    async def set_up(
        self, planes: Sequence[Record], *, generations: Sequence[int] | None = None
    ) -> list[Plan]:
        """Plan a job, or all planes of a gang, with allocations for all or for none.

        Raise NotPossibleError if they must run in the network but cannot. Without `generations`, take the
        next ones. A gang takes smaller regions if there is no room for its own.
        """
        jobs = [record.job for record in planes]
        everybody = [member for job in jobs for member in job.members]
        for job in jobs:
            planning.require_selective(job.spec, everybody)
        whys = (planning.why_ring(self._config, job.spec, job.members) for job in jobs)
        reason = next(filter(None, whys), "")
        shapes = self._shapes(jobs)
        if not reason:
            numbers = self._numbers(jobs, generations)
            drafts = self._plans(jobs, numbers, shapes[0], Mode.IN_NETWORK)
            for shape in [shape for shape in shapes if self._was_granted(planes, shape)]:
                plans = [_shaped(plan, shape) for plan in drafts]
                claims = [
                    Claim(record, Tree.of(self._config, record.job.members), plan)
                    for record, plan in zip(planes, plans, strict=True)
                ]
                try:
                    await self._allocations.put(
                        claims, admit=functools.partial(self._demands.admit, planes, plans)
                    )
                except NoResourcesError as error:
                    reason = str(error)
                except (UnreachableError, SwitchError) as error:
                    reason = str(error)
                    break
                else:
                    return plans
        if any(job.spec.mode is Mode.IN_NETWORK and len(job.members) > 1 for job in jobs):
            raise NotPossibleError(f"it must run in the network, but {reason}")
        return self.by_ring(jobs, reason, generations=self._numbers(jobs, generations))

    def _numbers(self, jobs: Sequence[Job], generations: Sequence[int] | None) -> Sequence[int]:
        return [self._store.next_generation() for _ in jobs] if generations is None else generations

    def by_ring(
        self, jobs: Sequence[Job], reason: str, *, generations: Sequence[int], backup: bool = False
    ) -> list[Plan]:
        """Make plans that need nothing of the switches; with `backup`, over the backup interfaces."""
        shape = self._shapes(jobs)[0]
        return self._plans(jobs, generations, shape, Mode.RING, reason, backup=backup)

    def _shapes(self, jobs: Sequence[Job]) -> list[tuple[int, int]]:
        """Return windows and packets a message that all switches of all planes take, the largest first."""
        trees = [Tree.of(self._config, job.members) for job in jobs]
        switches = [name for tree in trees for name in planning.switches_of(tree)]
        sizes = [planning.sizes(self._config, job.spec, switches) for job in jobs]
        window, packets = min(window for window, _ in sizes), min(packets for _, packets in sizes)
        return self._demands.shapes(jobs, window, packets)

    def _was_granted(self, planes: Sequence[Record], shape: tuple[int, int]) -> bool:
        """Tell whether a gang may have that size: it may have been let in with smaller regions."""
        return planes[0].granted is None or slots_of(*shape) <= planes[0].granted

    def _plans(
        self,
        jobs: Sequence[Job],
        generations: Sequence[int],
        shape: tuple[int, int],
        mode: Mode,
        reason: str = "",
        *,
        backup: bool = False,
    ) -> list[Plan]:
        """Make plans for all planes with the same sizes, which every worker can have.

        The planes then cut each tensor alike.
        """
        path_mtu = min(planning.path_mtu(self._config, job.spec, job.members, backup=backup) for job in jobs)
        selective = all(planning.selective(job.spec, job.members) for job in jobs)
        return [
            Plan(
                job_id=generation & 0xFFFF,
                generation=generation,
                window=shape[0],
                message_packets=shape[1],
                path_mtu=path_mtu,
                mode=mode,
                mode_reason=reason,
                ring=Tree.of(self._config, job.members).ring,
                backup=backup,
                selective=selective,
            )
            for job, generation in zip(jobs, generations, strict=True)
        ]


def _shaped(plan: Plan, shape: tuple[int, int]) -> Plan:
    return replace(plan, window=shape[0], message_packets=shape[1])
