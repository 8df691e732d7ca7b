"""Quotas, the queue and pre-emption, by themselves and against a model that lets jobs come and go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.api.errors import InvalidRequestError
from controller.config import ConfigError
from controller.slots.admission import (
    DEFAULT_TENANT,
    Demand,
    Holder,
    QuotaError,
    Quotas,
    Rooms,
    TenantQuota,
    decide,
    in_order,
    parse_quotas,
    preempt,
    shrink,
    smaller_shapes,
    tenant_of,
    used_by_tenant,
)
from controller.slots.allocator import Region, SwitchAllocator


def demand(
    key: int,
    slots: int = 256,
    *switches: str,
    tenant: str = DEFAULT_TENANT,
    since: float = 0.0,
    first: bool = False,
    planes: int = 1,
    smaller: tuple[int, ...] = (),
) -> Demand:
    return Demand(
        key=key,
        name=f"job{key}",
        tenant=tenant,
        slots=slots,
        switches=(switches or ("s1",)) * planes,
        since=since,
        first=first,
        planes=planes,
        smaller=smaller,
    )


@dataclass
class Fabric:
    """Switches, and what jobs have there."""

    allocators: dict[str, SwitchAllocator]
    holders: dict[int, Holder] = field(default_factory=dict)

    @classmethod
    def of(cls, *names: str, slots: int = 8192, jobs: int = 32) -> Fabric:
        return cls({name: SwitchAllocator(slots=slots, jobs=jobs) for name in names})

    @property
    def rooms(self) -> Rooms:
        return Rooms(self.allocators, dict.fromkeys(self.allocators, "leaf"))

    @property
    def held(self) -> list[Demand]:
        return [holder.demand for holder in self.holders.values()]

    def put(self, wanted: Demand, *, since: float = 0.0, movable: bool = True) -> None:
        regions: dict[str, list[Region]] = {}
        for name in wanted.switches:
            regions.setdefault(name, []).append(self.allocators[name].allocate(wanted.slots))
        self.holders[wanted.key] = Holder(
            demand=replace(wanted, since=since, first=False), regions=regions, movable=movable
        )

    def take(self, key: int) -> Demand:
        holder = self.holders.pop(key)
        for name, regions in holder.regions.items():
            for region in regions:
                self.allocators[name].release(region)
        return holder.demand


# Quotas as they are written


def test_quotas_are_read_from_the_configuration() -> None:
    written = {
        "job_slots": 256,
        "tenants": {"blue": {"weight": 2, "slots": 512}, "red": {}},
        "preemption": True,
    }
    quotas = parse_quotas(written)
    assert quotas.job_slots == 256
    assert quotas.preemption
    assert quotas.tenant("blue") == TenantQuota(weight=2.0, slots=512)
    assert quotas.tenant("red") == quotas.tenant("nobody") == quotas.tenant("") == TenantQuota()
    assert parse_quotas({}) == Quotas()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], r"quotas is \[\], not an object with job_slots, tenants, preemption"),
        ({"slots": 1}, "quotas has a field 'slots'; known are job_slots, tenants, preemption"),
        ({"job_slots": -1}, r"quotas.job_slots is -1, not a number of slots from 0 on, or null"),
        ({"job_slots": True}, r"quotas.job_slots is True, not a number of slots"),
        ({"preemption": 1}, "quotas.preemption is 1, neither true nor false"),
        ({"tenants": ["blue"]}, r"quotas.tenants is \['blue'\], not an object of tenants by name"),
        ({"tenants": {"": {}}}, "quotas.tenants has the name ''"),
        ({"tenants": {"a b": {}}}, "quotas.tenants: 'a b' is no tenant's name"),
        ({"tenants": {"blue": {"weight": 0}}}, "quotas.tenants.blue.weight is 0, not a number above 0"),
        ({"tenants": {"blue": {"weight": "x"}}}, "quotas.tenants.blue.weight is 'x', not a number above 0"),
        ({"tenants": {"blue": {"slots": 1.5}}}, "quotas.tenants.blue.slots is 1.5, not a number of slots"),
        ({"tenants": {"blue": {"limit": 1}}}, "quotas.tenants.blue has a field 'limit'; known are weight"),
        (
            {"tenants": {"blue": {"hosts": []}}},
            r"quotas.tenants.blue.hosts is \[\], not a list of names of h",
        ),
        ({"tenants": {"blue": {"hosts": "h1"}}}, "quotas.tenants.blue.hosts is 'h1', not a list of names"),
        ({"tenants": {"blue": {"hosts": [1]}}}, r"quotas.tenants.blue.hosts is \[1\], not a list of names"),
    ],
)
def test_quotas_that_cannot_be_say_where(value: Any, text: str) -> None:
    with pytest.raises(QuotaError, match=text) as caught:
        parse_quotas(value)
    assert isinstance(caught.value, ConfigError)


HOSTS: list[tuple[str, str, str]] = [
    ("h1", "red", ""),
    ("h2", "red", ""),
    ("h2", "blue", ""),
    ("h9", "green", ""),
    ("h9", "nobody", ""),
    ("h9", "", ""),
    ("h1", "blue", "host h1 does not belong to tenant blue, tenant red has it: join for"),
    ("h2", "green", "host h2 does not belong to tenant green, tenant blue and red has it"),
    ("h1", "nobody", "host h1 does not belong to tenant nobody, tenant red has it"),
    ("h1", "", "host h1 does not belong to tenant default, tenant red has it"),
    ("h9", "red", "host h9 does not belong to tenant red, it has h1, h2: join for the"),
]


@pytest.mark.parametrize(("host", "tenant", "why"), HOSTS)
def test_hosts_of_a_tenant_are_its_own_and_it_has_no_others(host: str, tenant: str, why: str) -> None:
    quotas = parse_quotas(
        {
            "tenants": {
                "red": {"hosts": ["h1", "h2"]},
                "blue": {"hosts": ["h2"]},
                "green": {"hosts": None},
            }
        }
    )
    said = quotas.why_not_from(host, tenant)
    assert said.startswith(why)
    assert bool(said) is bool(why)


def test_the_default_tenant_has_no_name_of_its_own() -> None:
    assert tenant_of("") == tenant_of("default") == ""
    assert tenant_of("blue") == "blue"
    with pytest.raises(InvalidRequestError, match="is no tenant's name"):
        tenant_of("blue\n")


# One job's size


@given(
    window=st.sampled_from([1, 2, 4, 8]),
    packets=st.sampled_from([2, 4, 8, 16, 32, 64]),
    limit=st.none() | st.integers(0, 1100),
    fixed=st.tuples(st.booleans(), st.booleans()),
)
def test_a_job_is_made_as_small_as_its_quota_wants_but_no_smaller(
    window: int, packets: int, limit: int | None, fixed: tuple[bool, bool]
) -> None:
    w, p = shrink(window, packets, limit, fixed=fixed)
    smallest = 2 * (window if fixed[0] else 1) * (packets if fixed[1] else 2)
    assert w == window or not fixed[0]
    assert p == packets or not fixed[1]
    assert w in (1, 2, 4, 8)
    assert p >= 2
    if limit is None or 2 * window * packets <= limit or smallest > limit:
        assert (w, p) == (window, packets), "nothing is gained by another size"
    else:
        assert limit / 2 < 2 * w * p <= limit or 2 * w * p == smallest


# The queue


def test_the_reason_says_what_is_lacking_and_who_has_it() -> None:
    fabric = Fabric.of("l1", "l2", slots=1024, jobs=4)
    for key in range(3):
        fabric.put(demand(key, 256, "l1"))
    fabric.put(demand(3, 256, "l2"))
    for key in range(4, 7):
        fabric.put(demand(key, 64, "l2"))
    waiting = [demand(10, 512, "l1", since=1), demand(11, 512, "l2", since=2), demand(12, 64, "l2", since=3)]
    assert decide(Quotas(), fabric.rooms, fabric.held, waiting).reasons == {
        10: "needs 512 slots on leaf l1; 768 of 1024 in use by 3 jobs",
        11: "needs a place on leaf l2; it serves 4 jobs, all it can",
        12: "waits behind job job11 for slots on l2",
    }


def test_room_in_pieces_is_no_room() -> None:
    fabric = Fabric.of("s1", slots=1024)
    for key in range(4):
        fabric.put(demand(key, 256))
    fabric.take(0)
    fabric.take(2)
    (reason,) = decide(Quotas(), fabric.rooms, fabric.held, [demand(10, 512)]).reasons.values()
    assert reason == "needs 512 adjacent slots on leaf s1; 512 of 1024 in use by 2 jobs"


def test_a_tenant_s_quota_keeps_its_own_jobs_waiting_and_nobody_else() -> None:
    quotas = Quotas(tenants={"blue": TenantQuota(slots=512), "none": TenantQuota(slots=0)}, job_slots=256)
    fabric = Fabric.of("s1")
    for key in range(2):
        fabric.put(demand(key, tenant="blue"))
    waiting = [
        demand(10, tenant="blue", since=1),
        demand(11, tenant="red", since=2),
        demand(12, 512, tenant="red", since=3),
        demand(13, tenant="none", since=4),
    ]
    decision = decide(quotas, fabric.rooms, fabric.held, waiting)
    assert decision.admitted == (waiting[1],)
    assert decision.reasons == {10: "tenant blue has 512 of its 512 slots"}
    assert decision.never[12].startswith(
        "it needs 512 slots, over the quota of 256 a job: it stays on the ring"
    )
    assert decision.never[13].startswith("it needs 256 slots, more than the 0 of tenant none altogether")
    fabric.take(0)
    half = decide(quotas, fabric.rooms, fabric.held, [demand(14, 64, tenant="blue")])
    assert len(half.admitted) == 1
    quotas = replace(quotas, tenants={"blue": TenantQuota(slots=500)})
    (reason,) = decide(quotas, fabric.rooms, fabric.held, [waiting[0]]).reasons.values()
    assert reason == "tenant blue has 256 of its 500 slots, the job needs 256"


def test_who_uses_the_least_for_its_weight_comes_first_then_who_has_waited_longest() -> None:
    quotas = Quotas(tenants={"heavy": TenantQuota(weight=2)})
    waiting = [
        demand(1, tenant="light", since=1),
        demand(2, tenant="light", since=2),
        demand(3, tenant="heavy", since=3),
        demand(4, tenant="heavy", since=4),
        demand(5, tenant="heavy", since=5),
        demand(6, tenant="heavy", since=6),
    ]
    assert [d.key for d in in_order(quotas, waiting, {})] == [1, 3, 4, 2, 5, 6]
    assert [d.key for d in in_order(quotas, waiting, {"heavy": 2048})] == [1, 2, 3, 4, 5, 6]
    assert [d.key for d in in_order(quotas, waiting, {"light": 256})] == [3, 4, 1, 5, 6, 2]
    waiting.append(demand(7, tenant="light", since=9, first=True))
    assert in_order(quotas, waiting, {"light": 8192})[0].key == 7


def test_a_large_job_is_not_kept_out_by_small_ones() -> None:
    fabric = Fabric.of("l1", "l2", slots=1024)
    for key in range(3):
        fabric.put(demand(key, 256, "l1"))
    large, small, elsewhere = (
        demand(10, 1024, "l1"),
        demand(11, 64, "l1", since=1),
        demand(12, 64, "l2", since=2),
    )
    decision = decide(Quotas(), fabric.rooms, fabric.held, [large, small, elsewhere])
    assert decision.admitted == (elsewhere,)
    assert list(decision.reasons) == [10, 11]


def test_a_job_across_racks_keeps_its_part_of_the_switches_that_have_room() -> None:
    fabric = Fabric.of("l1", "l2", "s1", slots=1024)
    fabric.put(demand(0, 1024, "l1"))
    fabric.put(demand(1, 256, "l2"))
    across = demand(10, 512, "l1", "l2", "s1")
    local = [demand(11, 256, "l2", since=1), demand(12, 256, "l2", since=2), demand(13, 64, "l1", since=3)]
    decision = decide(Quotas(), fabric.rooms, fabric.held, [across, *local])
    assert decision.admitted == (local[0],)
    assert decision.reasons == {
        10: "needs 512 slots on leaf l1; 1024 of 1024 in use by 1 job",
        12: "waits behind job job10 for slots on l2",
        13: "waits behind job job10 for slots on l1",
    }


# Pre-emption


# Gangs


def test_a_gang_gets_room_for_all_planes_or_for_none() -> None:
    room = Fabric.of("s1", "s2", slots=1024)
    room.put(demand(1, 512, "s1"))
    gang = demand(2, 256, "s1", "s2", planes=2)
    assert decide(Quotas(), room.rooms, room.held, [gang]).admitted == (gang,)
    room.put(demand(3, 256, "s1"))
    decision = decide(Quotas(), room.rooms, room.held, [gang, demand(4, 512, "s2", since=1.0)])
    assert decision.reasons == {2: "needs 2 times 256 slots on leaf s1; 768 of 1024 in use by 2 jobs"}
    assert [d.key for d in decision.admitted] == [4]  # beside what the gang keeps there


def test_a_gang_has_a_place_for_each_plane_among_the_jobs_of_a_switch() -> None:
    room = Fabric.of("s1", jobs=4)
    room.put(demand(1, 64))
    gang = demand(2, 64, planes=4)
    reasons = decide(Quotas(), room.rooms, room.held, [gang]).reasons
    assert reasons == {2: "needs 4 places on leaf s1; it serves 1 jobs, and can serve 4"}


def test_a_gang_takes_the_largest_regions_that_fit() -> None:
    room = Fabric.of("s1", slots=1024)
    room.put(demand(1, 256))
    gang = demand(2, 256, planes=4, smaller=(128, 64))
    (admitted,) = decide(Quotas(), room.rooms, room.held, [gang]).admitted
    assert (admitted.key, admitted.slots, admitted.total) == (2, 128, 512)
    quotas = Quotas(tenants={DEFAULT_TENANT: TenantQuota(slots=600)})
    (admitted,) = decide(quotas, room.rooms, room.held, [gang]).admitted
    assert admitted.slots == 64
    never = decide(Quotas(job_slots=255), room.rooms, room.held, [gang]).never
    assert never[2].startswith("its 4 planes need 256 slots, 64 each, over the quota of 255 a job")


@pytest.mark.parametrize(
    ("shape", "fixed", "planes", "smaller"),
    [
        ((8, 16), (False, False), 1, []),
        ((8, 16), (False, False), 8, [(8, 8), (4, 8)]),
        ((8, 16), (True, False), 2, [(8, 8), (8, 4)]),
        ((8, 16), (False, True), 2, [(4, 16), (2, 16)]),
        ((8, 16), (True, True), 2, []),
        ((4, 8), (False, False), 2, []),
    ],
)
def test_planes_may_become_smaller_down_to_64_slots(
    shape: tuple[int, int], fixed: tuple[bool, bool], planes: int, smaller: list[tuple[int, int]]
) -> None:
    assert smaller_shapes(*shape, fixed=fixed, planes=planes) == smaller


def test_a_gang_counts_with_all_its_planes_and_gives_way_as_a_whole() -> None:
    quotas = Quotas(preemption=True)
    room = Fabric.of("s1", slots=1024)
    gang, small = demand(1, 256, tenant="red", planes=3), demand(2, 256, tenant="red")
    room.put(gang, since=2.0)
    room.put(small, since=1.0)
    assert used_by_tenant([gang, small]) == {"red": 1024}
    found = preempt(quotas, room.rooms, list(room.holders.values()), [demand(3, 512, tenant="blue")])
    assert found is not None
    assert [victim.key for victim in found.victims] == [1]


def test_a_tenant_below_its_share_moves_out_the_newest_of_the_one_furthest_above() -> None:
    quotas = Quotas(preemption=True)
    fabric = Fabric.of("s1", slots=1024)
    for key, tenant in enumerate(["red", "red", "green", "red"]):
        fabric.put(demand(key, tenant=tenant), since=key)
    waiting = [demand(10, tenant="blue")]
    found = preempt(quotas, fabric.rooms, list(fabric.holders.values()), waiting)
    assert found is not None
    assert (found.demand.key, [victim.key for victim in found.victims]) == (10, [3])
    assert preempt(Quotas(), fabric.rooms, list(fabric.holders.values()), waiting) is None
    fixed = [replace(h, movable=h.demand.key == 0) for h in fabric.holders.values()]
    found = preempt(quotas, fabric.rooms, fixed, waiting)
    assert found is not None
    assert [victim.key for victim in found.victims] == [0]


def test_nobody_gives_way_to_a_tenant_that_has_its_share_or_for_nothing() -> None:
    quotas = Quotas(preemption=True, tenants={"red": TenantQuota(weight=3)})
    fabric = Fabric.of("s1", slots=1024)
    for key in range(3):
        fabric.put(demand(key, tenant="red"), since=key)
    fabric.put(demand(3, tenant="blue"), since=3)
    held = list(fabric.holders.values())
    assert preempt(quotas, fabric.rooms, held, [demand(10, tenant="blue")]) is None  # 1/4 is its share
    assert preempt(quotas, fabric.rooms, held, [demand(10, tenant="red")]) is None
    # Green's share is 1/5, which one job of 256 of 1024 slots is more than.
    assert preempt(quotas, fabric.rooms, held, [demand(10, 256, tenant="green")]) is None


def test_as_many_give_way_as_it_takes_and_none_if_that_is_not_enough() -> None:
    quotas = Quotas(preemption=True)
    fabric = Fabric.of("s1", slots=1024)
    for key in range(4):
        fabric.put(demand(key, tenant="red"), since=key)
    held = list(fabric.holders.values())
    found = preempt(quotas, fabric.rooms, held, [demand(10, 512, tenant="blue")])
    assert found is not None
    assert [victim.key for victim in found.victims] == [3, 2]
    stuck = [replace(holder, movable=holder.demand.key == 3) for holder in held]
    assert preempt(quotas, fabric.rooms, stuck, [demand(10, 512, tenant="blue")]) is None


class Cluster(RuleBasedStateMachine):
    """Jobs of tenants come, wait, get in and leave in any order."""

    TENANTS = ("default", "blue", "red")

    def __init__(self) -> None:
        super().__init__()
        self.fabric = Fabric.of("l1", "l2", "s1", slots=64, jobs=6)
        self.waiting: dict[int, Demand] = {}
        self.now = 0.0
        self.count = 0

    @initialize(data=st.data())
    def quotas(self, data: st.DataObject) -> None:
        limits = st.none() | st.sampled_from([16, 32, 48])
        weights = st.sampled_from([0.5, 1.0, 3.0])
        self.quotas_ = Quotas(
            job_slots=data.draw(limits),
            tenants={
                name: TenantQuota(weight=data.draw(weights), slots=data.draw(limits)) for name in self.TENANTS
            },
            preemption=data.draw(st.booleans()),
        )

    @rule(
        tenant=st.sampled_from(TENANTS),
        slots=st.sampled_from([4, 8, 16, 32, 64]),
        switches=st.sampled_from([("l1",), ("l2",), ("l1", "l2", "s1")]),
    )
    def comes(self, tenant: str, slots: int, switches: tuple[str, ...]) -> None:
        self.count += 1
        self.now += 1
        self.waiting[self.count] = demand(self.count, slots, *switches, tenant=tenant, since=self.now)
        self.settle()

    @precondition(lambda self: self.fabric.holders or self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({*self.fabric.holders, *self.waiting})))
        if self.waiting.pop(key, None) is None:
            self.fabric.take(key)
        self.settle()

    def settle(self) -> None:
        """Decide as the controller does after each change, until nothing changes any more."""
        for _ in range(50):
            decision = decide(self.quotas_, self.fabric.rooms, self.fabric.held, self.waiting.values())
            assert {d.key for d in decision.admitted} | set(decision.reasons) | set(decision.never) == set(
                self.waiting
            )
            assert all(decision.reasons.values())
            for admitted in decision.admitted:
                self.now += 1
                self.fabric.put(self.waiting.pop(admitted.key), since=self.now)
            if decision.admitted:
                continue
            found = preempt(
                self.quotas_,
                self.fabric.rooms,
                list(self.fabric.holders.values()),
                list(self.waiting.values()),
            )
            if found is None:
                return
            assert self.quotas_.preemption
            for victim in found.victims:
                assert victim.tenant != found.demand.tenant
                self.now += 1
                self.waiting[victim.key] = replace(self.fabric.take(victim.key), since=self.now)
            self.waiting[found.demand.key] = replace(found.demand, first=True)
        raise AssertionError("jobs push each other out for ever")

    @invariant()
    def within_quotas(self) -> None:
        if not hasattr(self, "quotas_"):
            return
        for tenant, used in used_by_tenant(self.fabric.held).items():
            limit = self.quotas_.tenant(tenant).slots
            assert limit is None or used <= limit
        for held in self.fabric.held:
            assert self.quotas_.job_slots is None or held.slots <= self.quotas_.job_slots

    @invariant()
    def the_first_is_kept_out_by_what_is_there_alone(self) -> None:
        """Check that the head of the queue gets in if it would get in alone."""
        if not hasattr(self, "quotas_"):
            return
        for waiting in self.waiting.values():
            alone = decide(self.quotas_, self.fabric.rooms, self.fabric.held, [waiting])
            together = decide(self.quotas_, self.fabric.rooms, self.fabric.held, self.waiting.values())
            if alone.admitted:
                assert together.reasons[waiting.key].startswith("waits behind job ")
            else:
                assert not together.admitted

    def teardown(self) -> None:
        """Check that everybody who ever can has had a turn when those who have slots leave one by one."""
        if not hasattr(self, "quotas_"):
            return
        never = decide(self.quotas_, self.fabric.rooms, self.fabric.held, self.waiting.values()).never
        had_turn: set[int] = set()
        while self.fabric.holders:
            had_turn |= set(self.fabric.holders)
            self.fabric.take(min(self.fabric.holders))
            self.settle()
        assert set(self.waiting) == set(never) & set(self.waiting)
        assert all(key in never or key in had_turn for key in self.waiting)


TestCluster = pytest.mark.slow(Cluster.TestCase)
TestCluster.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
