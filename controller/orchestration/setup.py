"""Sets up a job whose workers have all joined: in the network if there is room for it, else by ring."""

from __future__ import annotations

from controller.api.errors import NoResourcesError, NotPossibleError, UnreachableError
from controller.api.messages import Mode
from controller.fabric.trees import Tree
from controller.jobs.job import Job
from controller.jobs.specs import Plan
from controller.orchestration import planning
from controller.orchestration.demands import Demands
from controller.orchestration.record import Record
from controller.orchestration.switch_manager import SwitchManager
from controller.switches.updates import SwitchError


class Installer:
    """Makes plans within the quotas, and has the switches written for them."""

    def __init__(self, manager: SwitchManager, demands: Demands) -> None:
        self._config = manager.config
        self._store = manager.store
        self._allocations = manager.allocations
        self._demands = demands

    async def set_up(self, record: Record, *, generation: int | None = None) -> Plan:
        """A plan, and the job's allocations. NotPossibleError where it must have what it cannot have.

        Without a `generation`, the next one is taken.
        """
        job = record.job
        planning.require_selective(job.spec, job.members)
        reason = planning.why_ring(self._config, job.spec, job.members)
        if not reason:
            plan = self._plan(job, Mode.IN_NETWORK, generation=generation)
            try:
                await self._allocations.put(
                    record,
                    Tree.of(self._config, job.members),
                    plan,
                    admit=lambda: self._demands.admit(job, plan),
                )
                return plan
            except (NoResourcesError, UnreachableError, SwitchError) as error:
                reason = str(error)
        if job.spec.mode is Mode.IN_NETWORK and len(job.members) > 1:
            raise NotPossibleError(f"it must run in the network, but {reason}")
        return self._plan(job, Mode.RING, reason, generation=generation)

    def by_ring(self, job: Job, reason: str, *, generation: int, backup: bool = False) -> Plan:
        """A plan that needs nothing of the switches; with `backup`, over the workers' backup interfaces."""
        return self._plan(job, Mode.RING, reason, generation=generation, backup=backup)

    def _plan(
        self, job: Job, mode: Mode, reason: str = "", *, generation: int | None, backup: bool = False
    ) -> Plan:
        tree = Tree.of(self._config, job.members)
        sizes = planning.sizes(self._config, job.spec, planning.switches_of(tree))
        window, packets = self._demands.shape(job, *sizes)
        generation = self._store.next_generation() if generation is None else generation
        return Plan(
            job_id=generation & 0xFFFF,
            generation=generation,
            window=window,
            message_packets=packets,
            path_mtu=planning.path_mtu(self._config, job.spec, job.members, backup=backup),
            mode=mode,
            mode_reason=reason,
            ring=tree.ring,
            backup=backup,
            selective=planning.selective(job.spec, job.members),
        )
