"""Allocations of jobs on the switches. A job, or a gang, gets all of its allocations or none.

`put` and `extend` give slots. These free them:

- `freed`, when a switch holds nothing of the job any more: after `clean`, as soon as its workers allow it, or
  after `_evict`, where another job is found in its slots;
- `take_off`, when a running job goes on by ring;
- `_give_back`, when `put` failed;
- `_give_up`, `push` and `_look_for_orphans`, for jobs that the database does not know.

Several switches are always locked in the order of the configuration, which rules out a deadlock. The database
is written before a switch, and deleted from after it, so no switch holds anything that the database lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.api.errors import ControllerError, NoResourcesError, UnreachableError
from controller.config import Config
from controller.database.store import Store
from controller.entries import Entry
from controller.fabric.tables.up import is_uplink
from controller.fabric.trees import Tree, entries_on
from controller.jobs.effects import Forgotten
from controller.jobs.specs import Phase, Plan
from controller.orchestration.engine import Engine
from controller.orchestration.orphans import Orphan, guards_found, orphans
from controller.orchestration.record import Record, stored
from controller.slots.allocation import Allocation
from controller.switches.links import LinkWatch
from controller.switches.managed_switch import ManagedSwitch, collide, guards_of
from controller.switches.updates import SwitchError

logger = logging.getLogger(__name__)

_SWITCH_PATIENCE_S = 2.0  # how long a job waits for a switch that is not connected


class HalfOffError(ControllerError):
    """A switch lacks entries of a running job, which could not be written again.

    The job needs a new generation.
    """


@dataclass(frozen=True)
class Claim:
    """A job, or a plane of a gang, that shall have allocations for a plan."""

    record: Record
    tree: Tree
    plan: Plan


class Allocations:
    """Allocations of all jobs. `holding`: the jobs with one. Calls `on_room` when slots become free."""

    def __init__(
        self,
        config: Config,
        store: Store,
        switches: Mapping[str, ManagedSwitch],
        links: LinkWatch,
        engine: Engine,
        *,
        on_room: Callable[[], None],
    ) -> None:
        self.config = config
        self.store = store
        self.switches = switches
        self.links = links
        self.holding: list[Record] = []
        # By generation, what the database did not take: forgotten when it can be written again.
        self._owed: dict[int, tuple[Record, tuple[Allocation, ...]]] = {}
        self.orphans: dict[str, list[Orphan]] = {name: [] for name in switches}
        # What switches may hold that could not be removed, and the database has no more.
        self._left_behind: dict[str, set[Entry]] = {name: set() for name in switches}
        self._engine = engine
        self._on_room = on_room

    # Who has what

    @property
    def remains(self) -> list[Record]:
        """The jobs that have ended and still have allocations."""
        return [record for record in self.holding if not record.job.live and not record.installing]

    def on(self, switch: str) -> list[Record]:
        """Return all jobs with an allocation on a switch."""
        return [record for record in self.holding if switch in record.allocations]

    def held(self, switch: str) -> list[tuple[Allocation, bool]]:
        """Return the allocations on a switch, each with True if its job is live."""
        known = [(record.allocations[switch], record.job.live) for record in self.on(switch)]
        return known + [(orphan.allocation, not orphan.lost) for orphan in self.orphans[switch]]

    def guards(self, switch: str) -> list[Entry]:
        """Return the guards that a switch needs before routes: no part of a sum may reach a worker."""
        return guards_of(self.held(switch))

    def take_over(self, record: Record, allocations: Iterable[Allocation]) -> None:
        """Take over a job from before a restart. Raise ValueError if another job has its regions."""
        for allocation in allocations:
            self.switches[allocation.switch].allocator.take(allocation.region)
            record.allocations[allocation.switch] = allocation
        if record.allocations:
            self.holding.append(record)

    # Jobs that the database does not know

    def orphan(self, switch: str, generation: int) -> Orphan | None:
        """Return the orphan of that generation on a switch, if any."""
        return next((orphan for orphan in self.orphans[switch] if orphan.generation == generation), None)

    def adopted(self, record: Record, orphans: Iterable[Orphan]) -> None:
        """Note that these orphans' job is known again; their slots are taken already."""
        for orphan in orphans:
            self.orphans[orphan.allocation.switch].remove(orphan)
        if record.allocations:
            self.holding.append(record)

    async def take_qps_back(self, generation: int, qps: frozenset[tuple[int, int]]) -> None:
        """Give up older unknown jobs with entries for these QPs, which workers of a generation have.

        Keep only their guards of other QPs.
        """
        for name, mine in self.orphans.items():
            for orphan in [o for o in mine if (o.generation or 0) < generation and o.is_for(qps)]:
                switch = self.switches[name]
                await self._give_up(switch, orphan, qps)

    async def outgrown(
        self, generations: frozenset[int], qps: frozenset[tuple[int, int]], away: frozenset[int]
    ) -> None:
        """Free the orphans of unknown generations that all workers of a job have left for a later one.

        `qps`: the workers' QPs there; `away`: addresses of workers that the job went on without, which may
        still send. Orphans that have other workers' QPs as well stay.
        """
        mine = [
            (self.switches[name], orphan)
            for name, on_switch in self.orphans.items()
            for orphan in on_switch
            if orphan.generation in generations
        ]
        theirs = {qp for _, orphan in mine for qp in orphan.qps}
        if not theirs & qps or any(ip not in away for ip, _ in theirs - qps):
            return
        for switch, orphan in mine:
            await self._give_up(switch, orphan, qps)
        self._on_room()

    async def _give_up(self, switch: ManagedSwitch, orphan: Orphan, qps: frozenset[tuple[int, int]]) -> None:
        """Free an orphan's slots, and keep only its guards except those of these QPs."""
        async with switch.lock:
            mine = self.orphans[switch.name]
            if orphan not in mine:
                return
            switch.allocator.release(orphan.allocation.region)
            going = orphan.give_up(qps)
            if orphan.allocation.entries:
                switch.allocator.take(orphan.allocation.region)
            else:
                mine.remove(orphan)
            try:
                await switch.switch.remove(going)
            except ControllerError as error:
                self._left_behind[switch.name].update(going)
                logger.warning(
                    "switch %s: what is left of a job goes when it is back: %s", switch.name, error
                )

    def _look_for_orphans(self, switch: ManagedSwitch, found: set[Entry]) -> None:
        """Keep entries of unknown jobs, and give what these jobs own to nobody."""
        name, mine = switch.name, self.orphans[switch.name]
        for orphan in mine:
            orphan.lost |= not orphan.is_whole(found)
        found = found - self._left_behind[name]
        known = [allocation for allocation, _ in self.held(name)]
        new = orphans(name, self.config.role(name), found, known, self.store.is_ours)
        before = list(mine)
        for orphan in new:
            self._evict(switch, orphan)
            for older in [older for older in before if older in mine and orphan.collides(older.allocation)]:
                mine.remove(older)
                switch.allocator.release(older.allocation.region)
            try:
                switch.allocator.take(orphan.allocation.region)
            except ValueError as error:  # no controller writes that: two such jobs in the same slots
                logger.error(
                    "switch %s: of generation %s only guards are kept: %s", name, orphan.generation, error
                )
                orphan.give_up(frozenset())
                switch.allocator.take(orphan.allocation.region)
            mine.append(orphan)
            logger.warning(
                "switch %s holds generation %s of a job that this database does not know: it stays until its "
                "workers tell of it, or 'p4reduce push %s --force' takes everything away",
                *(name, "(unknown)" if orphan.generation is None else orphan.generation, name),
            )
        self.store.outlive(max((orphan.generation or 0 for orphan in new), default=0))

    def _evict(self, switch: ManagedSwitch, orphan: Orphan) -> None:
        """Take allocations that collide with an orphan's from known jobs.

        The database is older than the orphan: whoever gave the slots to the orphan's job had seen that nobody
        needs them, nor their guards.
        """
        losing = [
            (record, record.allocations[switch.name])
            for record in self.on(switch.name)
            if orphan.collides(record.allocations[switch.name])
        ]
        for record, _ in losing:
            if record.generation is None:
                raise UnreachableError(
                    f"job {record.job.spec.name} is being set up where generation {orphan.generation} is"
                )
        for record, _ in losing:
            logger.warning(
                "switch %s has generation %s where the database %s has job %s, whose place there is given up",
                *(switch.name, orphan.generation or "(unknown)", self.store.path, record.job.spec.name),
            )
            self.freed(record, switch.name)
        # Not before all of them are freed: a plane that goes on takes its gang's others out of their places.
        for record, allocation in losing:
            if allocation.role == "leaf" and record.job.live and not record.installing:
                self._forgot(
                    record,
                    f"switch {switch.name} has another job in its slots, which is younger than the "
                    "controller's database: that is from a backup",
                )

    def _forgot(self, record: Record, reason: str) -> None:
        """Report that a leaf has lost sums of a job that nobody else has."""
        self._engine.post(record, Forgotten(reason))

    # Giving

    @contextlib.asynccontextmanager
    async def locked(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these switches, taken in the order of the configuration."""
        wanted = set(names)
        async with contextlib.AsyncExitStack() as stack:
            for name, switch in self.switches.items():
                if name in wanted:
                    await stack.enter_async_context(switch.lock)
            yield

    async def put(self, claims: Sequence[Claim], *, admit: Callable[[], None] = lambda: None) -> None:
        """Allocate slots and write entries for a job, or for all planes of a gang: everywhere or nowhere.

        A job gets them on all its leaves, and on the spines that join these. `admit` may object with a
        ControllerError when all switches are locked. Raise that, NoResourcesError, UnreachableError,
        SwitchError or the database's error; nothing is allocated anywhere then.
        """
        leaves = list(dict.fromkeys(leaf for claim in claims for leaf in claim.tree.leaves))
        await asyncio.gather(*(self.switches[leaf].require_ready(_SWITCH_PATIENCE_S) for leaf in leaves))
        wanted = {spine for claim in claims for spine in claim.tree.spines(self.links.state)}
        async with self.locked((*leaves, *wanted)):
            for leaf in leaves:
                await self.switches[leaf].require_ready(0.0)
            spines = [self._spines_for(claim.tree, wanted) for claim in claims]
            for claim, usable in zip(claims, spines, strict=True):
                self.require_new(claim.plan.generation, (*claim.tree.leaves, *usable))
            admit()
            self.settle_owed()
            if any(claim.plan.generation in self._owed for claim in claims):
                raise UnreachableError(f"the controller's database {self.store.path} cannot be written")
            given = self._allocate_all(claims, spines)
            try:
                self.store.save_job(
                    *(
                        stored(claim.record.job, claim.plan, mine, Phase.INSTALLING)
                        for claim, mine in zip(claims, given, strict=True)
                    )
                )
            except BaseException:
                self._free(allocation for mine in given for allocation in mine)
                raise
            for claim, mine in zip(claims, given, strict=True):
                claim.record.allocations = {allocation.switch: allocation for allocation in mine}
                self.holding.append(claim.record)
            try:
                for claim, mine in zip(claims, given, strict=True):
                    for allocation in reversed(mine):  # spines first
                        switch = self.switches[allocation.switch]
                        await self._make_room(switch, allocation.entries)
                        flows = claim.tree.flows_on(allocation.switch)
                        await switch.install(allocation, flows, claim.plan.generation)
            except BaseException:
                await self._take_back(claims, given)
                raise

    def _spines_for(self, tree: Tree, locked: Collection[str]) -> tuple[str, ...]:
        """Return the locked spines that can add up for a job now; UnreachableError if it needs one."""
        usable = tree.spines(self.links.state)
        spines = tuple(spine for spine in usable if spine in locked and self.switches[spine].ready)
        if tree.two_level and not spines:
            raise UnreachableError(tree.graph.why_apart(tree.leaves, self.links.state))
        return spines

    def _allocate_all(
        self, claims: Sequence[Claim], spines: Sequence[Sequence[str]]
    ) -> list[list[Allocation]]:
        given: list[list[Allocation]] = []
        try:
            for claim, usable in zip(claims, spines, strict=True):
                given.append(self._allocate(claim.tree, claim.plan, usable))
        except BaseException:
            self._free(allocation for mine in given for allocation in mine)
            raise
        return given

    def require_new(self, generation: int, names: Iterable[str]) -> None:
        """Raise UnreachableError if a switch may have had the generation under another database."""
        for name in names:
            if generation <= self.switches[name].repeated_to and self.store.is_doubtful(generation):
                raise UnreachableError(
                    f"switch {name} may have sums of an earlier generation {generation}, as the controller's "
                    f"database {self.store.path} is older than they are; the job can have its slots there "
                    "under another generation"
                )

    def _allocate(
        self, tree: Tree, plan: Plan, spines: Sequence[str], *, leaves: bool = True
    ) -> list[Allocation]:
        """Allocate regions and make entries, leaves before spines."""
        allocations: list[Allocation] = []
        try:
            for name in (*(tree.leaves if leaves else ()), *spines):
                try:
                    region = self.switches[name].allocator.allocate(plan.slots)
                except NoResourcesError as error:
                    raise NoResourcesError(f"{name}: {error}") from error
                allocation = Allocation(
                    switch=name, region=region, entries=(), role="leaf" if name in tree.leaves else "spine"
                )
                allocations.append(allocation)
                entries = entries_on(self.config, tree, name, plan, region, spines)
                allocations[-1] = replace(allocation, entries=tuple(entries))
        except BaseException:
            self._free(allocations)
            raise
        return allocations

    def _free(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.switches[allocation.switch].allocator.release(allocation.region)

    async def _take_back(self, claims: Sequence[Claim], given: Sequence[Sequence[Allocation]]) -> None:
        """Undo `put` after a switch has refused; a switch that is away follows when it is back.

        If the database fails here, the regions stay taken until it can be written again.
        """
        for claim in claims:
            claim.record.allocations = {}
            self.holding.remove(claim.record)
        for allocation in (allocation for mine in given for allocation in mine):
            try:
                await self.switches[allocation.switch].remove(allocation)
            except SwitchError as error:
                logger.warning("switch %s holds too much until it is back: %s", allocation.switch, error)
                self._left_behind[allocation.switch].update(allocation.entries)
        wrong: sqlite3.Error | None = None
        for claim, mine in zip(claims, given, strict=True):
            try:
                self._give_back(claim.record, claim.plan.generation, mine)
            except sqlite3.Error as error:
                wrong = error
        if wrong is not None:
            raise wrong

    def _give_back(self, record: Record, generation: int, allocations: Sequence[Allocation]) -> None:
        """Free a job's allocations, in the database too; if that cannot be written, later."""
        job = record.job
        try:
            self.store.release(generation, *(allocation.switch for allocation in allocations))
            if job.plan is None or record.unheard:
                self.store.forget_job(generation)
            else:
                self.store.save_job(replace(stored(job, job.plan, (), job.phase), deleted=record.deleted))
        except sqlite3.Error as error:
            if generation not in self._owed:
                logger.error("%s: job %s is not forgotten yet: %s", self.store.path, job.spec.name, error)
            self._owed[generation] = (record, tuple(allocations))
            raise
        self._owed.pop(generation, None)
        self._free(allocations)

    def settle_owed(self) -> None:
        """Write what the database did not take before."""
        for generation, (record, allocations) in list(self._owed.items()):
            with contextlib.suppress(sqlite3.Error):
                self._give_back(record, generation, allocations)
                self._on_room()

    async def extend(self, record: Record, spine: str) -> None:
        """Allocate on one more spine, which was not there when the job was set up. Raise as `put`."""
        switch = self.switches[spine]
        async with switch.lock:
            plan, generation = record.job.plan, record.generation
            wanted = record.job.live and record.allocations and not record.installing
            if not (switch.ready and wanted) or spine in record.allocations:
                return
            assert plan is not None
            assert generation is not None
            self.require_new(plan.generation, [spine])
            tree = Tree.of(self.config, record.job.members)
            (allocation,) = self._allocate(tree, plan, [spine], leaves=False)
            try:
                self.store.save_allocations([(generation, allocation)])
            except BaseException:
                self._free([allocation])
                raise
            record.allocations[spine] = allocation
            try:
                await switch.install(allocation, tree.flows_on(allocation.switch), plan.generation)
            except BaseException:
                self._left_behind[spine].update(allocation.entries)
                del record.allocations[spine]
                self.store.release(generation, spine)
                self._free([allocation])
                raise

    # Taking away

    async def take_off(self, planes: Sequence[tuple[Record, Plan]]) -> None:
        """Free all allocations of a running job, or gang, that goes on by ring under these plans.

        All its workers must hold. UnreachableError, SwitchError and the database's errors leave everything as
        it was; HalfOffError does not. After a restart before the database is written, leaves lack the job's
        entries, and the job is renewed.
        """
        names = list(dict.fromkeys(name for record, _ in planes for name in record.allocations))
        async with self.locked(names):
            for record, _ in planes:
                for leaf in record.leaves:
                    await self.switches[leaf].require_ready(0.0)
            allocations = [allocation for record, _ in planes for allocation in record.allocations.values()]
            try:
                for allocation in allocations:
                    if self.switches[allocation.switch].ready:
                        await self.switches[allocation.switch].remove(allocation)
                    else:  # a spine that is away is made to forget when it is back
                        self._left_behind[allocation.switch].update(allocation.entries)
                self.store.save_job(
                    *(stored(record.job, plan, (), record.job.phase) for record, plan in planes)
                )
            except BaseException as error:
                await self._restore(names, error)
                raise
            for record, plan in planes:
                record.job.plan, record.allocations = plan, {}
                self.holding.remove(record)
            self._free(allocations)
        self._on_room()

    async def _restore(self, names: Iterable[str], why: BaseException) -> None:
        try:
            for name in names:
                if self.switches[name].ready:
                    await self.switches[name].adopt(self.held(name))
        except SwitchError as error:
            raise HalfOffError(f"its entries were half removed: {why}, and then {error}") from error

    def needs_cleaning(self, record: Record, now: float) -> bool:
        """Tell whether an ended job has something that can go now."""
        return any(
            self.switches[name].ready
            and (allocation.role == "spine" or now >= record.free_at or name not in record.flows_removed)
            for name, allocation in record.allocations.items()
        )

    async def clean(self, record: Record) -> None:
        """Take an ended job off its switches as far as its workers allow."""
        if record.cleaning:
            return
        record.cleaning = True
        try:
            for name in list(record.allocations):
                await self._clean(record, self.switches[name])
        finally:
            record.cleaning = False

    async def _clean(self, record: Record, switch: ManagedSwitch) -> None:
        try:
            async with switch.lock:
                allocation = record.allocations.get(switch.name)
                if not switch.ready or allocation is None:
                    return
                if allocation.role == "spine" or self._engine.awake() >= record.free_at:
                    await self._remove(record, switch)
                elif switch.name not in record.flows_removed:
                    await switch.remove_flows(allocation)
                    record.flows_removed.add(switch.name)
        except (ControllerError, sqlite3.Error) as error:
            logger.warning("job %s is not off switch %s yet: %s", record.job.spec.name, switch.name, error)

    async def _make_room(self, switch: ManagedSwitch, entries: Sequence[Entry]) -> None:
        """Take ended jobs away whose guards are in the way; the switch is locked."""
        for record in self.remains:
            allocation = record.allocations.get(switch.name)
            if allocation is not None and collide(allocation, entries):
                await self._remove(record, switch)

    async def _remove(self, record: Record, switch: ManagedSwitch) -> None:
        """Take all of an ended job off a switch, which is locked."""
        await switch.remove(record.allocations[switch.name])
        self.freed(record, switch.name)

    def freed(self, record: Record, name: str) -> None:
        """Note that a switch holds nothing of the job any more, and free its slots there."""
        assert record.generation is not None
        # First the database: what it still has must not be given to another job.
        self.store.release(record.generation, name)
        if record.unheard and len(record.allocations) == 1:
            self.store.forget_job(record.generation)
        self._free([record.allocations.pop(name)])
        if not record.allocations:
            self.holding.remove(record)
        self._on_room()

    # Switches that come back

    async def settle(self, switch: ManagedSwitch) -> None:
        """Compare a connected switch with what it should hold, and make it so.

        A leaf that has forgotten a job has lost sums that nobody else has, so the job is renewed. A spine is
        filled again: leaves can repeat everything that it lost.
        """
        if switch.ready or switch.settling:
            return
        switch.settling = True
        try:
            async with switch.lock:
                found = await switch.switch.read_entries()
                self._look_for_orphans(switch, found)
                for record in self.on(switch.name):
                    allocation = record.allocations.get(switch.name)
                    if allocation is None:  # it is renewed for another plane's sake
                        continue
                    fixed = {entry for entry in allocation.entries if not is_uplink(entry)}
                    lost = allocation.role == "leaf" and not found.issuperset(fixed)
                    if lost and record.job.live and not record.installing:
                        self._keep_guards(record, switch.name, found)
                        self._forgot(
                            record, f"switch {switch.name} was restarted, and has forgotten the job's sums"
                        )
                await switch.adopt(self.held(switch.name))
                self._left_behind[switch.name].clear()
        except (ControllerError, sqlite3.Error) as error:
            logger.warning("switch %s: %s", switch.name, error)
        finally:
            switch.settling = False
        if switch.ready:
            self._on_room()

    def _keep_guards(self, record: Record, name: str, found: set[Entry]) -> None:
        """Keep the guards that a switch has of a job whose entries are others in the database.

        Whichever is right, its workers send until they have answered the renewal that comes.
        """
        allocation, known = record.allocations[name], [other for other, _ in self.held(name)]
        guards = guards_found(allocation, found, known)
        if not guards or record.generation is None:
            return
        logger.warning(
            "switch %s has %d guards of job %s that the database %s lacks: was that changed? They stay as "
            "long as the others",
            *(name, len(guards), record.job.spec.name, self.store.path),
        )
        record.allocations[name] = replace(allocation, entries=(*allocation.entries, *guards))
        self.store.save_allocations([(record.generation, record.allocations[name])])

    async def push(self, switch: ManagedSwitch) -> None:
        """Load the program again, which makes a leaf forget its jobs."""
        async with switch.lock:
            for record in self.on(switch.name):
                allocation = record.allocations.get(switch.name)
                if allocation is not None and allocation.role == "leaf" and record.job.live:
                    self._forgot(record, f"switch {switch.name} was loaded with its program anew")
            for orphan in self.orphans[switch.name]:
                switch.allocator.release(orphan.allocation.region)
            self.orphans[switch.name].clear()
            await switch.switch.push()
            self._left_behind[switch.name].clear()
            await switch.adopt(self.held(switch.name))  # guards stay until no worker can send any more
            for record in self.remains:
                if switch.name in record.allocations:
                    record.flows_removed.add(switch.name)
