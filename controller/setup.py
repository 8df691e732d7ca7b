"""From workers that have all joined to a plan, and to the entries of it on a switch where there is room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from controller import planning
from controller.api.errors import NoResourcesError, NotPossibleError, UnreachableError
from controller.config import Config
from controller.entries import Entry
from controller.fabric import ManagedSwitch
from controller.flows import Ring, job_entries
from controller.jobs import Job, Member, Mode, Phase, Plan
from controller.store import Place, Store, StoredJob
from controller.switch import SwitchError

_SWITCH_PATIENCE_S = 2.0  # how long a job waits for a switch that is not connected

# Takes off a locked switch what ended jobs have in the way of these entries.
MakeRoom = Callable[[ManagedSwitch, Sequence[Entry]], Awaitable[None]]


class Installer:
    """Makes plans, in the network where that is possible and by ring where it is not.

    A region and its entries are in the database before the switch is written, so that nothing can be left on
    a switch that nobody knows of.
    """

    def __init__(
        self, config: Config, store: Store, switches: Mapping[str, ManagedSwitch], *, make_room: MakeRoom
    ) -> None:
        self._config = config
        self._make_room = make_room
        self._store = store
        self._switches = switches

    async def set_up(self, job: Job) -> tuple[Plan, Place | None]:
        """A plan, and the place on a switch. NotPossibleError where it must have one but cannot."""
        reason = planning.why_ring(self._config, job.spec, job.members)
        if not reason:
            try:
                return await self._in_network(job)
            except (NoResourcesError, UnreachableError, SwitchError) as error:
                reason = str(error)
        if job.spec.mode is Mode.IN_NETWORK:
            raise NotPossibleError(f"it must run in the network, but {reason}")
        return self._plan(job, Mode.RING, reason), None

    async def _in_network(self, job: Job) -> tuple[Plan, Place]:
        switch = self._switches[planning.switch_of(self._config, job.members[0])]
        await switch.require_ready(_SWITCH_PATIENCE_S)
        async with switch.lock:
            plan = self._plan(job, Mode.IN_NETWORK)
            region = switch.allocator.allocate(plan.slots)
            entries = job_entries(
                self._ring(job.members, switch),
                plan,
                region,
                check_icrc=self._config.check_icrc,
                rnr_timer=self._config.straggler_rnr_timer,
            )
            place = Place(switch=switch.name, region=region, entries=tuple(entries))
            try:
                self._store.save_job(stored(job, plan, place, {}, Phase.INSTALLING))
            except BaseException:
                switch.allocator.release(region)
                raise
            try:
                await self._make_room(switch, place.entries)
                await switch.install(place, len(job.members))
            except BaseException:
                # If the database fails here, the region stays taken, as it is there, until the next start.
                self._store.release(plan.generation)
                self._store.forget_job(plan.generation)
                switch.allocator.release(region)
                raise
        return plan, place

    def _plan(self, job: Job, mode: Mode, reason: str = "") -> Plan:
        members = job.members
        window, packets = planning.sizes(self._config, job.spec, planning.switch_of(self._config, members[0]))
        generation = self._store.next_generation()
        return Plan(
            job_id=generation & 0xFFFF,
            generation=generation,
            window=window,
            message_packets=packets,
            path_mtu=planning.path_mtu(self._config, job.spec, members),
            mode=mode,
            mode_reason=reason,
        )

    def _ring(self, members: Sequence[Member], switch: ManagedSwitch) -> Ring:
        ports = {member.rank: self._config.by_ip[member.ip].port for member in members}
        return Ring(members, ports, switch.device_id)


def stored(job: Job, plan: Plan, place: Place | None, tokens: Mapping[int, bytes], phase: Phase) -> StoredJob:
    """The job as the database keeps it."""
    return StoredJob(
        spec=job.spec,
        explicit=job.explicit,
        plan=plan,
        workers=tuple((member, tokens.get(member.rank, b"")) for member in job.members),
        phase=phase,
        place=place,
    )
