"""Admission of jobs to slots: quotas, the order of the queue, pre-emption. No I/O, no clock.

A job counts with the slots that it asks for, 2 * window * packets a message, once, however many switches it
uses; a gang, which is admitted as a whole or not at all, with those of all its planes. A job that could run
in the network but finds no room, or is over a quota, runs by ring and waits:

- Jobs of the tenant that uses the least for its weight come first, then those that have waited longest.
- A job that lacks room reserves what it needs: switches that lack it completely, and its part of the others.
  So many small jobs cannot keep a large one out for ever. A job that waits only for its tenant's quota
  reserves nothing.
- With pre-emption, a job of a tenant below its fair share of a switch moves out the newest job of the tenant
  furthest above its own. Then it goes first, so that no other job takes the room.
- A gang takes smaller regions, down to LEAST_PLANE_SLOTS each, where there is no room for larger ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.api.errors import InvalidRequestError, NoResourcesError
from controller.config import ConfigError
from controller.slots.allocator import Region, SwitchAllocator

DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_LEAST_WINDOW, _LEAST_PACKETS = 1, 2
LEAST_PLANE_SLOTS = 64  # of a window of 4 and 8 packets a message: the ring is hardly worse than less


class QuotaError(ConfigError, ValueError):
    """Error in quotas; the message says where."""


@dataclass(frozen=True, kw_only=True)
class TenantQuota:
    """A tenant's part of the switches for its `weight`, and its limit of `slots` (None: none).

    `hosts`: only workers on these hosts may make jobs of this tenant, and of no tenant without them; empty:
    any.
    """

    weight: float = 1.0
    slots: int | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Quotas of all tenants. `job_slots`: a job's limit (None: none). Unnamed tenants have weight 1."""

    job_slots: int | None = None
    tenants: Mapping[str, TenantQuota] = field(default_factory=dict)
    preemption: bool = False

    def tenant(self, name: str) -> TenantQuota:
        """Return a tenant's quota."""
        return self.tenants.get(name or DEFAULT_TENANT, TenantQuota())

    def why_not_from(self, host: str, tenant: str) -> str:
        """Say why a worker on that host may not make a job of a tenant; return "" if it may."""
        hosts = self.tenant(tenant).hosts
        owners = sorted(name for name, quota in self.tenants.items() if host in quota.hosts)
        if host in hosts or not (hosts or owners):
            return ""
        whose = f"tenant {' and '.join(owners)} has it" if owners else f"it has {', '.join(hosts)}"
        return (
            f"host {host} does not belong to tenant {tenant or DEFAULT_TENANT}, {whose}: join for the tenant "
            "of the host, or have an operator create the job"
        )

    def job_limit(self, tenant: str) -> int | None:
        """Return how many slots a job of that tenant may ever have; None for any number."""
        limits = [limit for limit in (self.job_slots, self.tenant(tenant).slots) if limit is not None]
        return min(limits, default=None)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A job, or a gang of `planes`, and its need: a region of `slots` on each of `switches`.

    A switch is named once for each region needed on it. `smaller`: other sizes of a region that will do, in
    slots, the largest first. `key` tells it from all others. `tenant` is DEFAULT_TENANT if none was named.
    `since`: since when it has waited, or has had its place; of any clock. `first`: room was made for it.
    """

    key: int
    name: str
    tenant: str
    slots: int
    switches: tuple[str, ...]
    since: float
    first: bool = False
    planes: int = 1
    smaller: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The number of slots that it counts with."""
        return self.slots * self.planes

    @property
    def what(self) -> str:
        """Word for the demand in messages, "job" or "gang"."""
        return "job" if self.planes == 1 else "gang"

    @property
    def sizes(self) -> tuple[Demand, ...]:
        """The demand in the sizes that will do, the largest first."""
        return tuple(replace(self, slots=slots, smaller=()) for slots in (self.slots, *self.smaller))

    @property
    def least(self) -> Demand:
        """The demand in the smallest size."""
        return self.sizes[-1]

    def on(self, switch: str) -> int:
        """Return the number of regions that it needs there."""
        return self.switches.count(switch)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A job or gang and its regions by switch. `movable`: it may be moved to the ring."""

    demand: Demand
    regions: Mapping[str, Sequence[Region]]
    movable: bool = True


@dataclass(frozen=True)
class Decision:
    """Answer to the queue. `admitted`: the demands that get in now.

    `reasons`: by key, why the others wait, in their order. `never`: by key, why a job cannot get in with
    these quotas, whatever becomes free.
    """

    admitted: tuple[Demand, ...]
    reasons: Mapping[int, str]
    never: Mapping[int, str]


@dataclass(frozen=True)
class Preemption:
    """Order to make room: `victims` have to move to the ring, then there is room for `demand`."""

    demand: Demand
    victims: tuple[Demand, ...]


def tenant_of(name: str) -> str:
    """Return a tenant's name as jobs have it: empty for the default one. Raise InvalidRequestError."""
    if name and _TENANT.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{name!r} is no tenant's name: 1 to 64 letters, digits and . _ @ + -, beginning with a letter, "
            "digit or _"
        )
    return "" if name == DEFAULT_TENANT else name


# Quotas as they are written


def parse_quotas(value: Any) -> Quotas:
    """Parse quotas from JSON's objects. Raise QuotaError."""
    top = _fields(value, "quotas", ("job_slots", "tenants", "preemption"))
    tenants = top.get("tenants", {})
    if not isinstance(tenants, Mapping):
        raise QuotaError(f"quotas.tenants is {tenants!r}, not an object of tenants by name")
    preemption = top.get("preemption", False)
    if not isinstance(preemption, bool):
        raise QuotaError(f"quotas.preemption is {preemption!r}, neither true nor false")
    return Quotas(
        job_slots=_slots(top.get("job_slots"), "quotas.job_slots"),
        tenants={_name(name): _tenant(item, f"quotas.tenants.{name}") for name, item in tenants.items()},
        preemption=preemption,
    )


def _tenant(value: Any, where: str) -> TenantQuota:
    fields = _fields(value, where, ("weight", "slots", "hosts"))
    weight = fields.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise QuotaError(f"{where}.weight is {weight!r}, not a number above 0")
    return TenantQuota(
        weight=float(weight),
        slots=_slots(fields.get("slots"), f"{where}.slots"),
        hosts=_hosts(fields.get("hosts"), f"{where}.hosts"),
    )


def _hosts(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    if not is_list or not value:
        raise QuotaError(f"{where} is {value!r}, not a list of names of hosts, or null for any host")
    return tuple(value)


def _fields(value: Any, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise QuotaError(f"{where} is {value!r}, not an object with {', '.join(known)}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise QuotaError(f"{where} has a field {unknown[0]!r}; known are {', '.join(known)}")
    return value


def _slots(value: Any, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise QuotaError(f"{where} is {value!r}, not a number of slots from 0 on, or null for any number")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise QuotaError(f"quotas.tenants has the name {value!r}: a name is text, and not empty")
    try:
        tenant_of(value)
    except InvalidRequestError as error:
        raise QuotaError(f"quotas.tenants: {error}") from error
    return value


# One job's size


def shrink(window: int, packets: int, limit: int | None, *, fixed: tuple[bool, bool]) -> tuple[int, int]:
    """Return a window and packets a message within the limit of 2 * window * packets slots, if any are.

    `fixed`: whether window and packets were asked for, and so stay as they are.
    """
    smaller = (window, packets)
    while limit is not None and 2 * smaller[0] * smaller[1] > limit:
        w, p = smaller
        if p > max(_LEAST_PACKETS, w) and not fixed[1]:
            smaller = (w, p // 2)
        elif w > _LEAST_WINDOW and not fixed[0]:
            smaller = (w // 2, p)
        elif p > _LEAST_PACKETS and not fixed[1]:
            smaller = (w, p // 2)
        else:
            return window, packets
    return smaller


def plane_slots(window: int, packets: int, planes: int) -> int:
    """Return the most slots of each of a gang's planes: together they have the window of one job.

    They share a machine's link. Any more data under way would wait in its queue until it was taken for lost.
    """
    return max(LEAST_PLANE_SLOTS, 2 * window * packets // planes)


def smaller_shapes(
    window: int, packets: int, *, fixed: tuple[bool, bool], planes: int
) -> list[tuple[int, int]]:
    """Return smaller windows and packets a message for a plane of a gang; none for a job of its own."""
    shapes: list[tuple[int, int]] = []
    while planes > 1 and window * packets >= LEAST_PLANE_SLOTS:  # half of its slots are enough
        smaller = shrink(window, packets, window * packets, fixed=fixed)
        if smaller == (window, packets):
            break
        shapes.append(smaller)
        window, packets = smaller
    return shapes


def why_never(quotas: Quotas, demand: Demand) -> str:
    """Say why a job can never have slots with these quotas; return "" if it can."""
    demand = demand.least
    own, per_job = quotas.tenant(demand.tenant).slots, quotas.job_slots
    if demand.planes == 1:
        needs = f"it needs {demand.slots} slots"
    else:
        needs = f"its {demand.planes} planes need {demand.total} slots, {demand.slots} each"
    smaller = "it stays on the ring (with a smaller window or fewer packets a message it needs fewer)"
    if per_job is not None and demand.total > per_job:
        return f"{needs}, over the quota of {per_job} a job: {smaller}"
    if own is not None and demand.total > own:
        return f"{needs}, more than the {own} of tenant {demand.tenant} altogether: {smaller}"
    return ""


def why_over(quotas: Quotas, demand: Demand, used: Mapping[str, int]) -> str:
    """Say why its tenant's quota keeps a job waiting; return "" if not. `used`: slots by tenant."""
    tenant, demand = demand.tenant, demand.least
    own, taken = quotas.tenant(tenant).slots, used.get(tenant, 0)
    if own is None or taken + demand.total <= own:
        return ""
    each = "" if demand.planes == 1 else f" for its {demand.planes} planes"
    needs = "" if taken >= own else f", the {demand.what} needs {demand.total}{each}"
    return f"tenant {tenant} has {taken} of its {own} slots{needs}"


# All jobs


class Rooms:
    """A copy of the switches' slots, to try things out on. `roles`: "leaf" or "spine", by switch."""

    def __init__(
        self, allocators: Mapping[str, SwitchAllocator], roles: Mapping[str, str] | None = None
    ) -> None:
        self._roles = dict(roles or {})
        self._switches: dict[str, SwitchAllocator] = {}
        for name, allocator in allocators.items():
            copy = self._switches[name] = SwitchAllocator(slots=allocator.slots, jobs=allocator.jobs)
            for region in allocator.regions:
                copy.take(region)

    def copy(self) -> Rooms:
        """Return a copy for a try of its own."""
        return Rooms(self._switches, self._roles)

    def lacking(self, demand: Demand) -> tuple[str, ...]:
        """Return the switches that have no room for all that a job needs there."""
        return tuple(name for name in dict.fromkeys(demand.switches) if not self._fits(name, demand))

    def take(self, demand: Demand) -> None:
        """Take room for a job, which there is."""
        for name in demand.switches:
            self._switches[name].allocate(demand.slots)

    def take_where_it_fits(self, demand: Demand) -> tuple[str, ...]:
        """Take room for a job on the switches that have it, and return these."""
        fitting = tuple(name for name in dict.fromkeys(demand.switches) if self._fits(name, demand))
        self.take(replace(demand, switches=tuple(name for name in demand.switches if name in fitting)))
        return fitting

    def release(self, regions: Mapping[str, Iterable[Region]]) -> None:
        """Give room back."""
        for name, mine in regions.items():
            for region in mine:
                self._switches[name].release(region)

    def why(self, name: str, demand: Demand) -> str:
        """Say why a switch has no room."""
        switch, count, slots = self._switches[name], demand.on(name), demand.slots
        where, jobs = f"{self._roles.get(name, 'switch')} {name}", len(switch.regions)
        enough = switch.used + slots * count <= switch.slots
        if enough and jobs + count > switch.jobs:
            if count == 1:
                return f"needs a place on {where}; it serves {jobs} jobs, all it can"
            return f"needs {count} places on {where}; it serves {jobs} jobs, and can serve {switch.jobs}"
        adjacent = " adjacent" if enough else ""
        each = f"{count} times {slots}" if count > 1 else f"{slots}"
        return (
            f"needs {each}{adjacent} slots on {where}; {switch.used} of {switch.slots} in use by {jobs} "
            f"{'job' if jobs == 1 else 'jobs'}"
        )

    def load(self, name: str, demand: Demand) -> float:
        """Return the part of a switch that a job takes, of its slots or its places for jobs: the larger."""
        switch, count = self._switches[name], demand.on(name)
        return max(demand.slots * count / switch.slots, count / switch.jobs)

    def _fits(self, name: str, demand: Demand) -> bool:
        switch, taken = self._switches[name], []
        try:
            for _ in range(demand.on(name)):
                taken.append(switch.allocate(demand.slots))
        except NoResourcesError:
            return False
        finally:
            for region in taken:
                switch.release(region)
        return True


def used_by_tenant(demands: Iterable[Demand]) -> dict[str, int]:
    """Return slots by tenant."""
    used: dict[str, int] = {}
    for demand in demands:
        tenant = demand.tenant
        used[tenant] = used.get(tenant, 0) + demand.total
    return used


def in_order(quotas: Quotas, waiting: Iterable[Demand], used: Mapping[str, int]) -> list[Demand]:
    """Return the order in which jobs get in: each counts for its tenant before the next is chosen."""
    counted, left, order = dict(used), list(waiting), []
    while left:
        chosen = min(left, key=lambda d: _turn(quotas, d, counted))
        left.remove(chosen)
        order.append(chosen)
        tenant = chosen.tenant
        counted[tenant] = counted.get(tenant, 0) + chosen.total
    return order


def _turn(quotas: Quotas, demand: Demand, used: Mapping[str, int]) -> tuple[bool, float, float, int]:
    tenant = demand.tenant
    return (not demand.first, used.get(tenant, 0) / quotas.tenant(tenant).weight, demand.since, demand.key)


def decide(quotas: Quotas, rooms: Rooms, holding: Iterable[Demand], waiting: Iterable[Demand]) -> Decision:
    """Decide which jobs get in, in which size. `holding`: those that count for tenants.

    In `rooms`, their slots are taken.
    """
    free, left, used = rooms.copy(), rooms.copy(), used_by_tenant(holding)  # left: by those further ahead
    never = {d.key: why for d in waiting if (why := why_never(quotas, d))}
    admitted: list[Demand] = []
    reasons: dict[int, str] = {}
    kept: dict[str, str] = {}  # switches that a job further ahead lacks room on, and its name
    first: dict[str, str] = {}  # who keeps a part of a switch
    for wanted in in_order(quotas, (d for d in waiting if d.key not in never), used):
        behind = {name: kept[name] for name in wanted.switches if name in kept}
        allowed = [size for size in wanted.sizes if not why_over(quotas, size, used)]
        demand = next((size for size in allowed if not behind and not left.lacking(size)), wanted.least)
        if not allowed:
            reasons[demand.key] = why_over(quotas, demand, used)
        elif behind or (lacking := left.lacking(demand)):
            really = [] if behind else [name for name in free.lacking(demand) if name in lacking]
            behind = behind or {name: first[name] for name in lacking if name in first}
            if really:
                reasons[demand.key] = free.why(really[0], demand)
            else:
                name, job = next(iter(behind.items()))
                reasons[demand.key] = f"waits behind {job} for slots on {name}"
            for name in left.lacking(demand):
                kept.setdefault(name, f"{demand.what} {demand.name}")
            for name in left.take_where_it_fits(demand):
                first.setdefault(name, f"{demand.what} {demand.name}")
        else:
            free.take(demand)
            left.take(demand)
            admitted.append(demand)
            used[demand.tenant] = used.get(demand.tenant, 0) + demand.total
    return Decision(tuple(admitted), reasons, never)


def preempt(
    quotas: Quotas, rooms: Rooms, holders: Sequence[Holder], waiting: Sequence[Demand]
) -> Preemption | None:
    """Return who has to give way to whom, for the first in the queue with a right to more; or None."""
    if not quotas.preemption:
        return None
    used = used_by_tenant(holder.demand for holder in holders)
    for demand in in_order(quotas, (d for d in waiting if not why_never(quotas, d)), used):
        if why_over(quotas, demand, used) or not rooms.lacking(demand.least):
            continue
        victims = _victims(quotas, rooms.copy(), list(holders), demand.least, waiting)
        if victims:
            return Preemption(demand, victims)
    return None


def _victims(
    quotas: Quotas, rooms: Rooms, holders: list[Holder], demand: Demand, waiting: Sequence[Demand]
) -> tuple[Demand, ...]:
    """Return the jobs whose leaving makes room for a job; empty if not enough may be asked to."""
    victims: list[Demand] = []
    tenant = demand.tenant
    while lacking := rooms.lacking(demand):
        switch = lacking[0]
        there = [holder for holder in holders if switch in holder.regions]
        loads: dict[str, float] = {}
        for holder in there:
            owner = holder.demand.tenant
            loads[owner] = loads.get(owner, 0.0) + rooms.load(switch, holder.demand)
        wanting = {d.tenant for d in waiting if switch in d.switches}
        everybody = {*loads, *wanting, *(v.tenant for v in victims)}
        whole = sum(quotas.tenant(name).weight for name in everybody)
        above = {name: load - quotas.tenant(name).weight / whole for name, load in loads.items()}
        own = loads.get(tenant, 0.0) + rooms.load(switch, demand)
        if own > quotas.tenant(tenant).weight / whole + 1e-9:
            return ()
        choices = [
            holder
            for holder in there
            if holder.movable and above[owner := holder.demand.tenant] > 1e-9 and owner != tenant
        ]
        if not choices:
            return ()
        victim = max(choices, key=lambda h: (above[h.demand.tenant], h.demand.since, h.demand.key))
        rooms.release(victim.regions)
        holders.remove(victim)
        victims.append(victim.demand)
    return tuple(victims)
