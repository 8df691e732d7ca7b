"""Action profiles, selectors and wide ranges beside BMv2's simple_switch_grpc: the same choices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import grpc
import pytest
from finsy.proto import U128, p4r

from soft_switch.dataplane import Match, Range, Ternary
from tests.soft_switch.beside_bmv2 import BeforeParser, Both, Frames, assert_alike
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.programs import p4info, program
from tests.soft_switch.server.profiles import KEY, RESULT, call, entry, group, member, one_shot
from tests.soft_switch.switches import BMV2, TIMEOUT_S, Switch

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(180),
]


def prepare(both: Both) -> None:
    for switch in both[0]:
        switch.push(program("profiles"), p4info("profiles"))
    for bench in both[1]:
        bench.fence = BeforeParser(pack(KEY, {"which": 9}))  # every packet goes to port 3
        bench.fence.port = 3
        bench.targets = [3]


def frames_for(chance: random.Random, which: Sequence[int], count: int) -> Frames:
    return [
        (
            1,
            pack(
                KEY,
                {
                    "which": chance.choice(which),
                    "a": chance.randrange(1, 6),
                    "b": chance.choice([chance.randrange(16), chance.getrandbits(16)]),
                    "wide": chance.choice([chance.getrandbits(128), 0, 1 << 64]),
                },
            ),
        )
        for _ in range(count)
    ]


def write(switch: Switch, kind: str, entity: p4r.Entity) -> bool:
    """Write an update, and tell whether it is taken."""
    update = p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity)
    request = p4r.WriteRequest(device_id=0, election_id=U128.encode(1), updates=[update])
    try:
        switch.stub.Write(request, timeout=TIMEOUT_S)
    except grpc.RpcError:
        return False
    return True


class Script:
    """Updates at random that make sense: most are accepted."""

    def __init__(self, seed: int, profile: str, table: str) -> None:
        self.chance = random.Random(seed)
        self.profile, self.table = profile, table
        self.members: set[int] = set()
        self.groups: dict[int, set[int]] = {}
        self.entries: dict[int, tuple[str, int]] = {}

    def update(self) -> tuple[str, p4r.Entity]:
        chance, number = self.chance, self.chance.randrange(1, 6)
        what = chance.choice(["member", "group", "group", "entry"])
        if what == "member" or not self.members:
            used = any(number in group for group in self.groups.values())
            used |= ("member", number) in self.entries.values()
            if number in self.members and not used and chance.random() < 0.4:
                self.members.remove(number)
                return "DELETE", member(number, profile=self.profile)
            kind = "MODIFY" if number in self.members else "INSERT"
            self.members.add(number)
            return kind, member(number, chance.getrandbits(32), profile=self.profile)
        if what == "group":
            used = ("group", number) in self.entries.values()
            if number in self.groups and not used and chance.random() < 0.3:
                del self.groups[number]
                return "DELETE", group(number, profile=self.profile)
            # BMv2 divides by zero where a packet meets an empty group.
            chosen = chance.sample(sorted(self.members), chance.randrange(1, len(self.members) + 1))
            kind = "MODIFY" if number in self.groups else "INSERT"
            self.groups[number] = set(chosen)
            weights = [(item, chance.choice([1, 1, 2])) for item in chosen[:4]]
            self.groups[number] = {item for item, _ in weights}
            return kind, group(number, *weights, profile=self.profile)
        targets = [("member", item) for item in self.members] + [("group", item) for item in self.groups]
        if number in self.entries and chance.random() < 0.3:
            del self.entries[number]
            return "DELETE", entry(self.table, number)
        name, item = chance.choice(targets)
        kind = "MODIFY" if number in self.entries else "INSERT"
        self.entries[number] = name, item
        return kind, entry(self.table, number, **{f"action_profile_{name}_id": item})


def test_members_and_groups(both: Both) -> None:
    prepare(both)
    seen = set()
    scripts = [Script(1, "crc16", "by_crc16"), Script(2, "identity", "by_identity")]
    for round_ in range(8):
        for script in scripts:
            for _ in range(12):
                kind, entity = script.update()
                assert [write(switch, kind, entity) for switch in both[0]] == [True, True], (kind, entity)
        left = assert_alike(both, frames_for(random.Random(round_), [1, 4], 120), batch=5)
        seen |= {unpack(RESULT, frame)["value"] for frame in left[3]}
    assert len(seen) > 30


def test_one_shots(both: Both) -> None:
    prepare(both)
    chance = random.Random(3)
    values = set()
    for round_ in range(6):
        for table in ("by_crc16", "by_identity"):
            for a in range(1, 6):
                actions = [
                    (call("one", chance.getrandbits(32)), chance.randrange(1, 3))
                    for _ in range(chance.randrange(1, 5))
                ]
                message = entry(table, a, action_profile_action_set=one_shot(*actions))
                kind = "MODIFY" if round_ else "INSERT"
                assert [write(switch, kind, message) for switch in both[0]] == [True, True]
        left = assert_alike(both, frames_for(random.Random(round_), [1, 4], 120), batch=5)
        values |= {unpack(RESULT, frame)["value"] for frame in left[3]}
    assert len(values) > 60


def test_members_without_a_selector(both: Both) -> None:
    prepare(both)
    for switch in both[0]:
        for number in (1, 2):
            assert write(switch, "INSERT", member(number, 10 * number, profile="profile"))
            assert write(switch, "INSERT", entry("by_member", number, action_profile_member_id=number))
        assert not write(switch, "DELETE", member(1, profile="profile"))
        assert write(switch, "MODIFY", member(2, 7, 8, profile="profile", name="two"))
    assert_alike(both, frames_for(random.Random(4), [0], 60), batch=5)


def test_wide_ranges(both: Both) -> None:
    """Check also which entry wins where priorities are equal: the one with the lowest handle."""
    prepare(both)
    chance = random.Random(5)
    corners = [0, 1, (1 << 64) - 1, 1 << 64, 1 << 127, (1 << 128) - 1]
    rows: list[tuple[list[Match], int]] = []
    for _ in range(40):
        low, high = sorted([chance.choice(corners), chance.getrandbits(128)])
        narrow = sorted(chance.getrandbits(16) for _ in range(2))
        match: list[Match] = [Range(low, high), Range(narrow[0], narrow[1]), Ternary(0, 0)]
        rows.append((match, chance.randrange(1, 4)))
    for number, (match, priority) in enumerate(rows):
        for switch in both[0]:
            switch.insert(
                "TestIngress.wide_range", match, priority=priority, action="TestIngress.one", params=[number]
            )
    left = assert_alike(both, frames_for(random.Random(6), [5], 300), batch=5)
    assert len({unpack(RESULT, frame)["value"] for frame in left[3]}) > 5
