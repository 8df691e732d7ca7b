"""Memory while entries come and go: bounded by what is there at one time, not by how much there was."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from soft_switch.dataplane import DataPlane, Exact, Group, Match, Range, Ternary
from soft_switch.server.device import Device
from tests.soft_switch.programs import p4info, program

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

ROUND = 500  # entries that are inserted and deleted together
LIVE = 4  # rounds of entries that are there at one time
ONE, TWO = "TestIngress.one", "TestIngress.two"


def resident() -> int:
    """Return how many bytes of this process are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(rounds: int, insert: Callable[[], object], delete: Callable[[object], None]) -> int:
    """Return how many bytes are in memory at the end and were not after a quarter of the rounds."""
    chance = random.Random(3)
    live: list[object] = []
    before = 0
    for number in range(rounds):
        if number == rounds // 4:
            before = resident()
        live.append(insert())
        if len(live) > LIVE:
            delete(live.pop(chance.randrange(len(live))))
    for entries in live:
        delete(entries)
    return resident() - before


@pytest.fixture
def plane() -> Iterator[DataPlane]:
    plane = DataPlane()
    yield plane
    plane.close()


def roomy(name: str) -> bytes:
    """Return a program whose tables hold a million entries."""
    text = json.loads(program(name))
    for pipeline in text["pipelines"]:
        for table in pipeline["tables"]:
            if table["key"]:
                table["max_size"] = 1 << 20
    return json.dumps(text).encode()


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_the_native_table(plane: DataPlane, rounds: int) -> None:
    """100,000 writes (a million); every entry has a mask of its own."""
    plane.load(roomy("tables"))
    chance, table = random.Random(5), "TestIngress.ternary_match"

    def insert() -> list[int]:
        handles = []
        for _ in range(ROUND):
            match: list[Match] = []
            for width in (32, 128):
                mask = chance.getrandbits(width)
                match.append(Ternary(chance.getrandbits(width) & mask, mask))
            handles.append(plane.insert(table, match, priority=7, action=TWO, params=[1, 2]))
        return handles

    def delete(handles: object) -> None:
        assert isinstance(handles, list)
        chance.shuffle(handles)
        for handle in handles:
            plane.delete(table, handle)

    assert growth(rounds, insert, delete) < 4 << 20


def test_ranges_and_profiles(plane: DataPlane) -> None:
    plane.load(roomy("profiles"))
    chance = random.Random(6)
    table, indirect, profile = (f"TestIngress.{name}" for name in ("wide_range", "also_by_crc32", "crc32"))

    def insert() -> tuple[list[int], list[int], tuple[int, int]]:
        ranges = []
        for _ in range(50):
            low, high = sorted(chance.getrandbits(128) for _ in range(2))
            match: list[Match] = [Range(low, high), Range(0, chance.getrandbits(16)), Ternary(0, 0)]
            ranges.append(plane.insert(table, match, priority=1, action=ONE, params=[1]))
        members = [plane.profile_member_insert(profile, TWO, [i, i]) for i in range(chance.randrange(1, 99))]
        group = plane.profile_group_insert(profile, members)
        own: list[Match] = [Ternary(0, chance.getrandbits(32))]
        entry = plane.insert(indirect, own, priority=group + 1, target=Group(group))
        return ranges, members, (entry, group)

    def delete(made: object) -> None:
        assert isinstance(made, tuple)
        ranges, members, (entry, group) = made
        for handle in ranges:
            plane.delete(table, handle)
        plane.delete(indirect, entry)
        plane.profile_group_delete(profile, group)
        for member in members:
            plane.profile_member_delete(profile, member)

    assert growth(100, insert, delete) < 4 << 20


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_the_server(plane: DataPlane, rounds: int) -> None:
    """30,000 writes (a million) of P4Runtime, without the network."""
    info = text_format.Parse(p4info("tables"), p4i.P4Info())
    tables = {table.preamble.alias: table.preamble.id for table in info.tables}
    actions = {action.preamble.alias: action.preamble.id for action in info.actions}
    device = Device(plane)
    action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    config = p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=roomy("tables"))
    device.set_config(p4r.SetForwardingPipelineConfigRequest(action=action, config=config), lambda: None)
    chance = random.Random(7)

    def exact(number: int, field: int) -> p4r.FieldMatch:
        value = p4r.FieldMatch.Exact(value=number.to_bytes(4, "big").lstrip(b"\0") or b"\0")
        return p4r.FieldMatch(field_id=field, exact=value)

    def ternary(field: int, width: int) -> p4r.FieldMatch:
        mask = chance.getrandbits(width) | 1
        value = chance.getrandbits(width) & mask
        size = width // 8
        return p4r.FieldMatch(
            field_id=field,
            ternary=p4r.FieldMatch.Ternary(
                value=value.to_bytes(size, "big"), mask=mask.to_bytes(size, "big")
            ),
        )

    def write(kind: p4r.Update.Type.ValueType, entries: list[p4r.TableEntry]) -> None:
        updates = [p4r.Update(type=kind, entity=p4r.Entity(table_entry=entry)) for entry in entries]
        assert not any(device.write(p4r.WriteRequest(updates=updates), lambda: None))

    def insert() -> list[p4r.TableEntry]:
        param = p4r.Action.Param(param_id=1, value=b"\x05")
        call = p4r.TableAction(action=p4r.Action(action_id=actions["one"], params=[param]))
        made = []
        for number in range(ROUND // 2):
            match = [exact(chance.getrandbits(32), 1), exact(number, 2)]
            made.append(p4r.TableEntry(table_id=tables["exact_match"], match=match, action=call))
            match = [ternary(1, 32), ternary(2, 128)]
            made.append(
                p4r.TableEntry(table_id=tables["ternary_match"], match=match, priority=3, action=call)
            )
        write(p4r.Update.INSERT, made)
        return made

    def delete(entries: object) -> None:
        assert isinstance(entries, list)
        write(p4r.Update.DELETE, entries)

    assert growth(rounds, insert, delete) < 6 << 20


def filled_and_emptied() -> tuple[int, int]:
    """Return how many bytes a table of 50,000 entries takes, and how many are left when they are gone."""
    with DataPlane() as plane:
        plane.load(roomy("tables"))
        table = "TestIngress.exact_match"
        before = resident()
        handles = [
            plane.insert(table, [Exact(number), Exact(1)], priority=0, action=TWO, params=[1, 1])
            for number in range(50_000)
        ]
        full = resident()
        for handle in handles:
            plane.delete(table, handle)
        del handles
        return full - before, resident() - before


def test_a_table_that_was_full_gives_its_memory_back() -> None:
    """Check it in a process of its own: another's memory has room that earlier tests freed, in pieces."""
    code = f"from {filled_and_emptied.__module__} import filled_and_emptied; print(*filled_and_emptied())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, left = map(int, done.stdout.split())
    assert taken > 3 << 20
    assert left < 8 << 20
