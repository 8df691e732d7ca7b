"""Action profiles through P4Runtime, on the real data plane: what is written is what packets meet."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer
from soft_switch.server.device import Device
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.programs import program
from tests.soft_switch.server.profiles import (
    INFO,
    KEY,
    RESULT,
    call,
    entry,
    group,
    member,
    one_shot,
)

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller

    Connect = Callable[[str], Controller]


class Plane(DataPlane):
    """A data plane whose ports 1 to 4 are there, up or down as a test says."""

    def __init__(self) -> None:
        super().__init__(cpu_port=255)
        self.down: set[int] = set()

    def spare(self) -> Plane:
        made = Plane()
        made.down = self.down
        return made

    def port_is_up(self, port: int) -> bool | None:
        return port not in self.down if 1 <= port <= 4 else None


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Plane, P4RuntimeServer]]:
    plane = Plane()
    server = P4RuntimeServer(plane, device_id=1, address="127.0.0.1:0")
    server.start()
    yield plane, server
    server.stop(grace_s=0)
    plane.close()


_ELECTIONS = itertools.count(1)


@pytest.fixture
def plane(shared: tuple[Plane, P4RuntimeServer]) -> Plane:
    shared[0].down = set()
    return shared[0]


@pytest.fixture
def controller(shared: tuple[Plane, P4RuntimeServer], plane: Plane, connect: Connect) -> Iterator[Controller]:
    """Yield the primary of a switch that has just loaded the program."""
    controller = connect(shared[1].address)
    controller.become_primary(next(_ELECTIONS))  # the one before may not be gone yet
    controller.set_config(
        config=p4r.ForwardingPipelineConfig(p4info=INFO, p4_device_config=program("profiles"))
    )
    yield controller
    controller.close()


def write(controller: Controller, kind: str, *entities: p4r.Entity) -> None:
    controller.write(*[p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity) for entity in entities])


def why(controller: Controller, kind: str, entity: p4r.Entity) -> str:
    """Return the code and message that an update is refused with."""
    refusal = controller.refused(write, controller, kind, entity)
    assert len(refusal.codes) == 1
    return f"{refusal.codes[0]}: {refusal.details[0].message}"


def values(plane: DataPlane, count: int, which: int = 4, a: int = 7) -> list[int]:
    """Return what packets whose hash is 0, 1, ... get from an identity selector."""
    result = []
    for b in range(count):
        [(_, left)] = plane.process(1, pack(KEY, {"which": which, "a": a, "b": b}))
        result.append(unpack(RESULT, left)["value"])
    return result


def test_members(controller: Controller, plane: Plane) -> None:
    written = [member(5, 55, profile="profile"), member(1, 11, 3, profile="profile", name="two")]
    write(controller, "INSERT", *written)
    for wanted in (member(0, profile="profile"), p4r.Entity(action_profile_member=p4r.ActionProfileMember())):
        assert controller.read(wanted) == written
    assert controller.read(member(1, profile="profile")) == written[1:]
    assert controller.read(member(0, profile="crc16")) == []
    write(controller, "INSERT", entry("by_member", action_profile_member_id=5))
    assert values(plane, 1, which=0) == [55]
    write(controller, "MODIFY", member(5, 56, profile="profile"))
    assert values(plane, 1, which=0) == [56]
    write(controller, "MODIFY", entry("by_member", action_profile_member_id=1))
    assert values(plane, 1, which=0) == [11]
    assert controller.read(entry("by_member")) == [entry("by_member", action_profile_member_id=1)]
    write(controller, "DELETE", member(5, profile="profile"))
    assert why(controller, "DELETE", member(1, profile="profile")) == (
        "FAILED_PRECONDITION: action profile TestIngress.profile: member 1 is still in use, "
        "a table entry refers to it"
    )
    write(controller, "DELETE", entry("by_member"), member(1, profile="profile"))
    assert controller.read(member(0, profile="profile")) == []


def test_groups(controller: Controller, plane: Plane) -> None:
    write(controller, "INSERT", *(member(number, 10 * number) for number in (1, 2, 3)))
    written = group(9, (3, 1), (1, 1), max_size=5)
    write(controller, "INSERT", written, entry(action_profile_group_id=9))
    for wanted in (group(0), group(9), p4r.Entity(action_profile_group=p4r.ActionProfileGroup())):
        assert controller.read(wanted) == [written]
    assert controller.read(entry()) == [entry(action_profile_group_id=9)]
    assert values(plane, 4) == [10, 30, 10, 30]
    write(controller, "MODIFY", group(9, (1, 1), (2, 1), (3, 1), max_size=5))
    assert values(plane, 4) == [10, 20, 30, 10]
    write(controller, "MODIFY", member(2, 22))
    assert values(plane, 3) == [10, 22, 30]
    assert "group 9 has it" in why(controller, "DELETE", member(2))
    assert why(controller, "DELETE", group(9)).startswith("FAILED_PRECONDITION")
    write(controller, "MODIFY", entry(action_profile_member_id=3))
    assert values(plane, 3) == [30, 30, 30]
    write(controller, "DELETE", group(9), member(2), entry(), member(3), member(1))
    assert controller.read(group(0), member(0)) == []


def test_a_weight_is_as_many_handles(controller: Controller, plane: Plane) -> None:
    """Check that it is as in simple_switch_grpc: further handles are asked for by rising member id."""
    write(controller, "INSERT", member(1, 10), member(2, 20), group(1, (2, 2), (1, 3)))
    write(controller, "INSERT", entry(action_profile_group_id=1))
    assert values(plane, 5) == [10, 20, 10, 10, 20]
    write(controller, "INSERT", member(3, 30))
    write(controller, "MODIFY", group(1, (1, 1), (2, 2), (3, 1)))  # gives back handles 2 and 3
    assert values(plane, 4) == [10, 20, 20, 30]
    write(controller, "MODIFY", member(2, 21))
    assert values(plane, 4) == [10, 21, 21, 30]
    write(controller, "DELETE", entry(), group(1), member(1), member(2), member(3))


def test_a_member_of_groups_of_different_weights(controller: Controller, plane: Plane) -> None:
    write(controller, "INSERT", member(1, 10), member(2, 20))
    write(controller, "INSERT", group(1, (1, 4)), group(2, (1, 2), (2, 1)))
    write(controller, "INSERT", entry(action_profile_group_id=2), entry(a=8, action_profile_group_id=1))
    write(controller, "MODIFY", group(1, (1, 1)))
    assert sorted(values(plane, 3)) == [10, 10, 20]
    write(controller, "MODIFY", group(1))
    assert sorted(values(plane, 3)) == [10, 10, 20]
    assert values(plane, 2, a=8) == [0, 0]
    assert "group 2 has it" in why(controller, "DELETE", member(1))


def test_one_shots(controller: Controller, plane: Plane) -> None:
    written = entry(
        action_profile_action_set=one_shot((call("one", 5), 1), (call("one", 6), 2), (call("one", 5), 1))
    )
    write(controller, "INSERT", written)
    assert values(plane, 4) == [5, 6, 6, 5]
    assert controller.read(entry()) == [written]
    assert controller.read(group(0), member(0)) == []
    changed = entry(action_profile_action_set=one_shot((call("two", 8, 1), 1)))
    write(controller, "MODIFY", changed)
    assert values(plane, 2) == [8, 8]
    assert controller.read(entry()) == [changed]
    padded = entry(action_profile_action_set=one_shot((call("one", 8), 1)))
    padded.table_entry.action.action_profile_action_set.action_profile_actions[0].action.params[
        0
    ].value = b"\0\x08"
    write(controller, "MODIFY", padded)
    assert controller.read(entry()) == [entry(action_profile_action_set=one_shot((call("one", 8), 1)))]
    write(controller, "DELETE", entry())
    assert values(plane, 2) == [0, 0]


def test_either_one_shots_or_groups(controller: Controller) -> None:
    shot = entry(action_profile_action_set=one_shot((call("one", 5), 1)))
    write(controller, "INSERT", shot)
    mixed = "INVALID_ARGUMENT: action selector TestIngress.identity: either all"
    assert why(controller, "INSERT", member(1, 1)).startswith(mixed)
    assert why(controller, "INSERT", group(1)).startswith(mixed)
    assert why(controller, "INSERT", entry(a=8, action_profile_member_id=1)).startswith(mixed)
    write(controller, "INSERT", member(1, 1, profile="crc16"))
    write(controller, "DELETE", entry())
    write(controller, "INSERT", member(1, 1))
    assert why(controller, "INSERT", shot).startswith(mixed)
    write(controller, "DELETE", member(1))
    write(controller, "INSERT", shot)


def test_a_member_whose_port_is_down_is_left_out(controller: Controller, plane: Plane) -> None:
    plane.down = {2}
    write(controller, "INSERT", *(member(number, 10 * number) for number in (1, 2, 3)))
    written = group(1, (1, 1, 1), (2, 2, 2), (3, 1))
    write(controller, "INSERT", written, entry(action_profile_group_id=1))
    assert values(plane, 4) == [10, 30, 10, 30]
    assert controller.read(group(1)) == [written]
    write(controller, "MODIFY", group(1, (1, 1, 2), (2, 1, 2)))
    assert values(plane, 2) == [0, 0]  # nobody is left
    assert "group 1 has it" in why(controller, "DELETE", member(2))
    plane.down = set()
    write(controller, "MODIFY", group(1, (1, 1, 2), (2, 1, 2)))
    assert values(plane, 2) == [10, 20]


def test_a_port_goes_down_and_comes_up(controller: Controller, plane: Plane) -> None:
    write(controller, "INSERT", *(member(number, 10 * number) for number in (1, 2)))
    write(controller, "INSERT", group(1, (1, 2, 1), (2, 1, 2)), entry(action_profile_group_id=1))
    shot = one_shot((call("one", 3), 1, 2), (call("one", 4), 1))
    write(controller, "INSERT", entry("by_crc16", action_profile_action_set=shot))

    def soon(expected: list[int], one_shots: set[int]) -> None:
        deadline = time.monotonic() + 10
        while values(plane, 3) != expected or set(values(plane, 8, which=1)) != one_shots:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    soon([10, 20, 10], {3, 4})
    plane.down = {2}
    soon([10, 10, 10], {4})
    plane.down = {1, 2}
    soon([0, 0, 0], {4})
    plane.down = set()
    soon([10, 20, 10], {3, 4})


@pytest.mark.parametrize(
    ("kind", "entity", "text"),
    [
        ("INSERT", member(0, 1), "INVALID_ARGUMENT: action profile TestIngress.identity: the member id is"),
        ("INSERT", member(2), "INVALID_ARGUMENT: action profile TestIngress.identity: a member needs an"),
        ("INSERT", member(1, 1), "ALREADY_EXISTS: action profile TestIngress.identity has a member 1"),
        ("INSERT", member(2, 1, 1), "INVALID_ARGUMENT: action TestIngress.one has no parameter 2"),
        ("INSERT", member(2, 1, name="drop"), "INVALID_ARGUMENT: action TestIngress.drop is not one of"),
        ("MODIFY", member(2, 1), "NOT_FOUND: action profile TestIngress.identity has no member 2"),
        ("MODIFY", member(1), "INVALID_ARGUMENT: action profile TestIngress.identity: a member needs an"),
        ("DELETE", member(2), "NOT_FOUND: action profile TestIngress.identity has no member 2"),
        ("INSERT", group(0), "INVALID_ARGUMENT: action profile TestIngress.identity: the group id is"),
        ("INSERT", group(1), "ALREADY_EXISTS: action profile TestIngress.identity has a group 1"),
        ("INSERT", group(2, (7, 1)), "NOT_FOUND: action profile TestIngress.identity has no member 7"),
        ("INSERT", group(2, (1, 0)), "INVALID_ARGUMENT: group 2: a weight of 0"),
        ("INSERT", group(2, (1, -1)), "INVALID_ARGUMENT: group 2: a weight of -1"),
        ("INSERT", group(2, (1, 1), (1, 1)), "INVALID_ARGUMENT: group 2: member 1 is given twice"),
        ("INSERT", group(2, (1, 1, 9)), "INVALID_ARGUMENT: group 2: its watch port 9 is not there"),
        ("INSERT", group(2, (1, 3), max_size=2), "RESOURCE_EXHAUSTED: group 2: a size of 3"),
        ("INSERT", group(2, (1, 1 << 30)), "RESOURCE_EXHAUSTED"),
        ("INSERT", group(2, max_size=-1), "INVALID_ARGUMENT: a group's max_size is -1"),
        ("INSERT", group(2, profile="crc16", max_size=9), "INVALID_ARGUMENT: a group's max_size is 9"),
        ("INSERT", group(2, profile="profile"), "INVALID_ARGUMENT: action profile TestIngress.profile has"),
        ("MODIFY", group(1, max_size=4), "INVALID_ARGUMENT: group 1 was inserted with max_size 2"),
        ("MODIFY", group(1, (1, 3)), "RESOURCE_EXHAUSTED: group 1: a size of 3"),
        ("MODIFY", group(2), "NOT_FOUND: action profile TestIngress.identity has no group 2"),
        ("DELETE", group(2), "NOT_FOUND: action profile TestIngress.identity has no group 2"),
        ("INSERT", entry(action=call("one", 1)), "INVALID_ARGUMENT: table TestIngress.by_identity has an"),
        ("INSERT", entry(action_profile_member_id=9), "NOT_FOUND"),
        ("INSERT", entry(action_profile_group_id=9), "NOT_FOUND"),
        (
            "INSERT",
            entry("by_member", action_profile_group_id=1),
            "INVALID_ARGUMENT: table TestIngress.by_member: its action profile has no selector",
        ),
        (
            "INSERT",
            entry("by_member", action_profile_action_set=one_shot()),
            "INVALID_ARGUMENT: table TestIngress.by_member: its action profile has no selector",
        ),
        (
            "INSERT",
            entry("by_crc16", action_profile_action_set=one_shot((call("one", 1), 9))),
            "INVALID_ARGUMENT: table TestIngress.by_crc16: a group of 9 is greater than max_group_size 8",
        ),
        (
            "INSERT",
            entry("by_crc16", action_profile_action_set=one_shot((call("one", 1), 0))),
            "INVALID_ARGUMENT: table TestIngress.by_crc16: a weight of 0",
        ),
        (
            "INSERT",
            entry("by_crc16", action_profile_action_set=one_shot(action_selection_mode=2)),
            "UNIMPLEMENTED: table TestIngress.by_crc16: the selection mode",
        ),
        (
            "INSERT",
            entry("by_crc16", action_profile_action_set=one_shot((call("one", 1), 1), size_semantics=2)),
            "UNIMPLEMENTED: table TestIngress.by_crc16: the size semantics",
        ),
        (
            "INSERT",
            p4r.Entity(action_profile_member=p4r.ActionProfileMember(action_profile_id=1, member_id=1)),
            "INVALID_ARGUMENT: there is no action profile with id 0x00000001",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(controller: Controller, kind: str, entity: p4r.Entity, text: str) -> None:
    write(controller, "INSERT", member(1, 1), group(1, max_size=2))
    before = controller.read(member(0), group(0))
    assert why(controller, kind, entity).startswith(text)
    assert controller.read(member(0), group(0)) == before


def test_a_full_profile(controller: Controller) -> None:
    write(controller, "INSERT", *(member(number, 1, profile="profile") for number in range(1, 5)))
    assert why(controller, "INSERT", member(5, 1, profile="profile")) == (
        "RESOURCE_EXHAUSTED: action profile TestIngress.profile is full: it holds 4 members"
    )


def test_a_saved_pipeline_takes_profiles_too(controller: Controller, plane: Plane) -> None:
    config = p4r.ForwardingPipelineConfig(p4info=INFO, p4_device_config=program("profiles"))
    controller.set_config("VERIFY_AND_SAVE", config)
    write(controller, "INSERT", member(1, 10), member(2, 20), group(1, (1, 1), (2, 1)))
    write(controller, "INSERT", entry(action_profile_group_id=1))
    write(controller, "INSERT", entry("by_crc16", action_profile_action_set=one_shot((call("one", 3), 2))))
    assert why(controller, "INSERT", group(2, (1, 1, 9))).endswith("its watch port 9 is not there")
    assert values(plane, 2) == [0, 0]
    controller.set_config("COMMIT")
    assert values(plane, 2) == [10, 20]
    assert controller.read(group(0)) == [group(1, (1, 1), (2, 1))]


@pytest.mark.parametrize("seed", range(3))
def test_random_updates_leave_nothing_behind(controller: Controller, plane: Plane, seed: int) -> None:
    """Members, groups and entries come and go; packets meet a model of them, and handles are not lost."""
    chance = random.Random(seed)
    members: dict[int, int] = {}
    groups: dict[int, list[tuple[int, int]]] = {}
    entries: dict[int, tuple[str, int]] = {}

    def in_use(number: int) -> bool:
        return ("member", number) in entries.values() or any(
            number in (m for m, _ in group) for group in groups.values()
        )

    for step in range(120):
        number = chance.randrange(1, 6)
        what = chance.choice(["member", "group", "entry", "packet"])
        if what == "member":
            if number in members and not in_use(number) and chance.random() < 0.5:
                write(controller, "DELETE", member(number))
                del members[number]
            else:
                write(controller, "MODIFY" if number in members else "INSERT", member(number, step + 1))
                members[number] = step + 1
        elif what == "group":
            if number in groups and ("group", number) not in entries.values() and chance.random() < 0.5:
                write(controller, "DELETE", group(number))
                del groups[number]
            else:
                chosen: Sequence[int] = chance.sample(sorted(members), chance.randrange(len(members) + 1))
                given = [(m, chance.randrange(1, 4)) for m in chosen]
                write(controller, "MODIFY" if number in groups else "INSERT", group(number, *given))
                groups[number] = given
        elif what == "entry":
            targets = [("member", m) for m in members] + [("group", g) for g in groups]
            if number in entries and (not targets or chance.random() < 0.5):
                write(controller, "DELETE", entry(a=number))
                del entries[number]
            elif targets:
                kind, target = chance.choice(targets)
                message = entry(a=number, **{f"action_profile_{kind}_id": target})
                write(controller, "MODIFY" if number in entries else "INSERT", message)
                entries[number] = kind, target
        elif number in entries:
            kind, target = entries[number]
            if kind == "member":
                expected = [members[target]]
            else:
                expected = sorted(members[m] for m, weight in groups[target] for _ in range(weight))
            assert sorted(values(plane, len(expected), a=number)) == expected
    write(controller, "DELETE", *(entry(a=number) for number in entries))
    write(controller, "DELETE", *(group(number) for number in groups))
    write(controller, "DELETE", *(member(number) for number in members))
    assert plane.profile_member_insert("TestIngress.identity", "TestIngress.one", [1]) == 0
    assert plane.profile_group_insert("TestIngress.identity", []) == 0


def test_ports_that_nothing_watches_any_more_are_not_looked_at(plane: Plane) -> None:
    device = Device(plane)
    commit = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    config = p4r.ForwardingPipelineConfig(p4info=INFO, p4_device_config=program("profiles"))
    device.set_config(p4r.SetForwardingPipelineConfigRequest(action=commit, config=config), lambda: None)

    def put(kind: str, entity: p4r.Entity) -> bool:
        """Write an update, and tell whether ports are looked at from now on."""
        update = p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity)
        assert device.write(p4r.WriteRequest(updates=[update]), lambda: None) == [None]
        return device.delay_ns() is not None

    shot = entry("by_crc16", action_profile_action_set=one_shot((call("one", 3), 1, 1)))
    assert not put("INSERT", member(1, 10))
    assert put("INSERT", group(1, (1, 1, 1)))
    assert put("INSERT", group(2, (1, 2, 1)))
    assert put("INSERT", shot)
    assert put("MODIFY", group(1, (1, 1, 2)))
    assert put("MODIFY", group(1, (1, 1)))
    assert put("DELETE", group(2))
    assert not put("DELETE", shot)
