"""Programs do the same with and without what the compiler leaves out: clearing and copying.

The programs are random, made for variables that are written on some ways only, read beyond a register's end,
read by egress after replication, and passed to hashes.
"""

from __future__ import annotations

import os
import random
from typing import Any, cast

import pytest

from p4reduce.simulation.rack import routes_of
from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane, Exact
from tests.p4src.pair import Pair
from tests.p4src.rack import JSON as P4REDUCE
from tests.p4src.rack import CompiledRack
from tests.soft_switch.aggregation_frames import NoPlane, p4reduce_frames
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.bmv2_json import Json, assign, call, const, field, operation, program

pytestmark = pytest.mark.slow

HEADER = {"sel": 8, "a": 32, "b": 32, "out0": 32, "out1": 32, "port": 8, "group": 8, "wide": 256}
VARIABLES = {f"v{n}": 32 for n in range(7)}
WIDE = {f"w{n}": 256 for n in range(3)}
REGISTERS = {"narrow": (32, 4), "broad": (256, 2)}
GROUP = 1
# In each of eight lanes of 32 bits.
ONES = sum(1 << 32 * lane for lane in range(8))
SIGNS, VALUES = ONES << 31, ONES * 0x7FFFFFFF
MASKS = (ONES, SIGNS, VALUES, ONES * 0xFFFF, ONES * 0x7C00, (1 << 256) - 1, 0x80 << 120)


def whole(value: Json) -> Json:
    """Cut to 256 bits, as p4c does it."""
    return operation("&", value, const((1 << 256) - 1))


class Maker:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.calculations: list[Json] = []
        self.actions: list[list[Json]] = []
        self.serial = 0

    def narrow(self) -> Json:
        chance = self.chance
        kind = chance.random()
        if kind < 0.55:
            return field("m", chance.choice(list(VARIABLES)))
        if kind < 0.85:
            return field("h", chance.choice(["a", "b", "out0", "out1", "sel"]))
        return const(chance.choice([0, 1, 5, 0xFFFFFFFF]))

    def wide(self, depth: int = 2) -> Json:
        """Draw mostly what does not leave its word, so that such assignments share a loop; not all of it."""
        chance, kind = self.chance, self.chance.random()
        if depth == 0 or kind < 0.4:
            return field("h", "wide") if kind < 0.12 else field("m", chance.choice(list(WIDE)))
        x = self.wide(depth - 1)
        if kind < 0.55:
            shift = operation(
                chance.choice(["<<", ">>"]), x, const(chance.choice([0, 1, 5, 16, 31, 63, 64, 70]))
            )
            return operation("&", whole(shift), const(chance.choice(MASKS)))
        if kind < 0.6:
            return whole(operation(">>", operation("&", x, const(SIGNS)), const(31)))
        if kind < 0.65:
            return whole(operation("~", None, x))
        y = self.wide(depth - 1)
        if kind < 0.8:
            return operation(chance.choice(["&", "|", "^"]), x, y)
        if kind < 0.87:
            return whole(operation("+", operation("&", x, const(VALUES)), operation("&", y, const(VALUES))))
        if kind < 0.9:
            return whole(operation("+", x, y))
        if kind < 0.95:
            return whole(operation("-", operation("|", x, const(SIGNS)), operation("&", y, const(VALUES))))
        z = operation("&", x, const(chance.choice(MASKS)))
        return whole(operation("-", z, whole(operation(">>", z, const(chance.choice([1, 15, 31]))))))

    def target(self) -> Json:
        if self.chance.random() < 0.75:
            return field("m", self.chance.choice(list(VARIABLES)))
        return field("h", self.chance.choice(["out0", "out1"]))

    def condition(self) -> Json:
        return operation(self.chance.choice(["<", "==", ">="]), self.narrow(), self.narrow())

    def statement(self, in_egress: bool) -> Json:
        chance, kind = self.chance, self.chance.random()
        wide_target = field("h", "wide") if chance.random() < 0.3 else field("m", chance.choice(list(WIDE)))
        index = operation("&", self.narrow(), const(7))
        if kind < 0.25:
            return assign(self.target(), self.narrow())
        if kind < 0.4:
            sum_ = operation("+", self.narrow(), self.narrow())
            return assign(self.target(), operation("&", sum_, const(0xFFFFFFFF)))
        if kind < 0.55:
            return assign(wide_target, self.wide())
        if kind < 0.65:
            name = {"type": "register_array", "value": "narrow"}
            return call("register_read", self.target(), name, index)
        if kind < 0.72:
            name = {"type": "register_array", "value": "broad"}
            return call("register_read", wide_target, name, index)
        if kind < 0.8:
            return call("register_write", {"type": "register_array", "value": "narrow"}, index, self.narrow())
        if kind < 0.84:
            return call("register_write", {"type": "register_array", "value": "broad"}, index, self.wide())
        if kind < 0.94:
            return self.hash()
        if kind < 0.97:
            return call("exit") if chance.random() < 0.3 else assign(self.target(), self.narrow())
        if in_egress or chance.random() < 0.7:
            return call("modify_field_rng_uniform", self.target(), const(9), const(chance.choice([3, 9])))
        return call("mark_to_drop", {"type": "header", "value": "standard_metadata"})

    def hash(self) -> Json:
        inputs = [part for part in (self.narrow(), self.wide(), self.narrow()) if part["type"] == "field"]
        name = f"calc{len(self.calculations)}"
        if self.calculations and self.chance.random() < 0.2:
            name = self.calculations[-1]["name"]  # one that is used more than once
        else:
            self.calculations.append({"name": name, "id": 0, "algo": "crc32", "input": inputs})
        calculation = {"type": "calculation", "value": name}
        return call(
            "modify_field_with_hash_based_offset", self.target(), const(0), calculation, const(1 << 32)
        )

    def action(self, in_egress: bool) -> int:
        statements: list[Json] = []
        for _ in range(self.chance.randint(1, 7)):
            statements.append(self.statement(in_egress))
        if self.chance.random() < 0.3:  # a jump over what follows
            at = self.chance.randrange(len(statements))
            to = const(self.chance.randint(at + 1, len(statements) + 1))
            statements.insert(at, call("_jump_if_zero", self.condition(), to))
        self.actions.append(statements)
        return len(self.actions) - 1

    def pipeline(self, prefix: str, size: int, in_egress: bool) -> Json:
        tables, conditionals, calls = [], [], []
        names = [f"{prefix}{n}" for n in range(size)]

        def later(n: int) -> str | None:
            return self.chance.choice([*names[n + 1 : n + 4], *([None] if n >= size // 2 else [])])

        for n, name in enumerate(names):
            kind = self.chance.random()
            if kind < 0.35:
                calls.append({"name": name, "action_id": self.action(in_egress), "next_node": later(n)})
            elif kind < 0.6:
                conditionals.append(
                    {"name": name, "id": n, "expression": self.condition(), "true_next": later(n)}
                    | {"false_next": later(n)}
                )
            else:
                tables.append(self.table(name, n, later, in_egress))
        # What a packet takes out of the pipeline.
        self.actions.append(
            [
                assign(field("h", "out0"), field("m", "v0")),
                assign(field("h", "out1"), operation("^", field("h", "out1"), field("m", "v1"))),
            ]
        )
        if not in_egress:
            self.actions[-1] += [
                assign(field("standard_metadata", "egress_spec"), field("h", "port")),
                assign(field("standard_metadata", "mcast_grp"), field("h", "group")),
            ]
        last = {"name": f"{prefix}last", "action_id": len(self.actions) - 1, "next_node": names[0]}
        if in_egress or self.chance.random() < 0.5:
            return {
                "init_table": last["name"],
                "tables": tables,
                "conditionals": conditionals,
                "action_calls": [*calls, last],
            }
        # At the end instead: what leads nowhere leads there.
        for item in [*calls, *conditionals, *tables]:
            for key in ("next_node", "true_next", "false_next", "base_default_next"):
                if key in item and item[key] is None:
                    item[key] = last["name"]
            if "next_tables" in item:
                item["next_tables"] = {k: v or last["name"] for k, v in item["next_tables"].items()}
        last["next_node"] = None
        return {
            "init_table": names[0],
            "tables": tables,
            "conditionals": conditionals,
            "action_calls": [*calls, last],
        }

    def table(self, name: str, n: int, later: Any, in_egress: bool) -> Json:
        numbers = [self.action(in_egress) for _ in range(2)]
        default = self.chance.choice([None, self.action(in_egress)])
        used = [*numbers, *([] if default is None else [default])]
        hit = self.chance.random() < 0.5
        key = self.chance.choice([field("h", "sel"), field("m", self.chance.choice(list(VARIABLES)))])
        table: Json = {
            "name": name,
            "id": n,
            "key": [{"match_type": "exact", "name": "k", "target": key["value"], "mask": None}],
            "type": "simple",
            "max_size": 16,
            "with_counters": False,
            "direct_meters": None,
            "action_ids": used,
            "actions": [f"action{number}" for number in used],
            "base_default_next": later(n),
            "next_tables": {"__HIT__": later(n), "__MISS__": later(n)}
            if hit
            else {f"action{number}": later(n) for number in used},
        }
        if default is not None:
            table["default_entry"] = {"action_id": default, "action_const": False, "action_data": []}
        return table

    def make(self) -> bytes:
        ingress = self.pipeline("i", self.chance.randint(4, 9), in_egress=False)
        egress = self.pipeline("e", self.chance.randint(2, 6), in_egress=True)
        return program(
            header=HEADER,
            metadata={**VARIABLES, **WIDE},
            actions=self.actions,
            ingress=ingress,
            egress=egress,
            registers=REGISTERS,
            calculations=self.calculations,
        )


def run(text: bytes, seed: int, *, optimise: bool) -> tuple[list[list[tuple[int, bytes]]], list[int]]:
    """Return what leaves for the same random packets and entries, and what the registers hold then."""
    chance = random.Random(seed)
    plane = DataPlane(seed=1)
    plane.load(text, optimise=optimise)
    plane.multicast_set(GROUP, [(1, 1), (2, 2), (3, 3)])
    assert plane.program is not None
    for table in plane.program.tables.values():
        for value in (0, 1, 2, 5):
            action = chance.choice(table.actions)
            plane.insert(table.name, [Exact(value)], priority=0, action=action, params=[])
    left = []
    for _ in range(400):
        values = {
            name: chance.choice([0, 1, 2, 3, 5, 9, chance.getrandbits(HEADER[name])])
            for name in ("sel", "a", "b", "out0", "out1", "wide")
        }
        values |= {"port": chance.randrange(1, 5), "group": chance.choice([0, 0, GROUP])}
        left.append(plane.process(1, pack(HEADER, values)))
    state = [plane.register_read(n, i) for n, (_, cells) in REGISTERS.items() for i in range(cells)]
    plane.close()
    return left, state


# More of them with a number in the environment.
SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "4"))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, SEEDS))])
def test_random_programs(seed: int) -> None:
    text = Maker(seed).make()
    assert run(text, seed, optimise=True) == run(text, seed, optimise=False)


def test_the_programs_are_worth_it() -> None:
    """Most of them differ as C++, and all let packets through that depend on their variables."""
    texts = [read_program(Maker(seed).make()) for seed in range(8)]
    differ = [compile_program(t).source != compile_program(t, optimise=False).source for t in texts]
    assert sum(differ) > 5
    left = [frames for seed in range(4) for frames in run(Maker(seed).make(), seed, optimise=True)[0]]
    assert len({unpack(HEADER, frame)["out0"] for frames in left for _, frame in frames}) > 10


def test_a_variable_that_was_set_before_a_read_that_finds_nothing() -> None:
    """BMv2 leaves the target of a read beyond the end alone."""
    read = call(
        "register_read", field("m", "v0"), {"type": "register_array", "value": "narrow"}, field("h", "a")
    )
    text = program(
        header={"a": 32, "b": 32},
        metadata={"v0": 32},
        actions=[
            [assign(field("m", "v0"), field("h", "b")), read, assign(field("h", "b"), field("m", "v0"))]
        ],
        registers={"narrow": (32, 4)},
    )
    for optimise in (True, False):
        plane = DataPlane()
        plane.load(text, optimise=optimise)
        plane.register_write("narrow", 3, 333)
        for index, expected in ((3, 333), (4, 77), (2, 0), (2**32 - 1, 77)):
            [(_, frame)] = plane.process(1, pack({"a": 32, "b": 32}, {"a": index, "b": 77}))
            assert unpack({"a": 32, "b": 32}, frame)["b"] == expected
        plane.close()


@pytest.mark.parametrize(
    "check_icrc", [pytest.param(True, marks=pytest.mark.long), pytest.param(False, marks=pytest.mark.slow)]
)
def test_the_aggregation_program(check_icrc: bool) -> None:
    """A job's packets, repeated, damaged, cut and from strangers: the same leaves, and the same is stored."""
    pair = Pair(cast(CompiledRack, NoPlane()), world_size=4, window=4, check_icrc=check_icrc, rnr_ranks=7)
    frames = list(p4reduce_frames(pair, random.Random(7), 1200))
    racks = []
    for optimise in (True, False):
        rack = CompiledRack()
        rack.plane.load(P4REDUCE.read_bytes(), optimise=optimise)
        rack.reset([pair.job], routes_of(pair.configs), check_icrc=check_icrc)
        racks.append(rack)
    one, other = (rack.plane for rack in racks)
    left = 0
    for port, frame in frames:
        out = one.process(port, frame)
        assert out == other.process(port, frame)
        left += len(out)
    assert left > 500
    assert racks[0].counted(pair.job) == racks[1].counted(pair.job)
    assert racks[0].counted(pair.job)["not_ready"] > 5
    assert one.program is not None
    for name, register in one.program.registers.items():
        if name == "SwitchIngress.claimed_at":  # times
            continue
        for index in (0, 1, 5, 15, register.size - 1):
            assert one.register_read(name, index) == other.register_read(name, index)
    one.close()
    other.close()


def test_the_aggregation_program_needs_few_of_its_variables_cleared() -> None:
    """The point of it: p4c's copies of a packet's payload are neither made nor cleared nor copied."""
    optimised = compile_program(read_program(P4REDUCE.read_bytes())).source
    kept, cleared, copied = (
        optimised.split(f"struct {name} {{")[1].split("};")[0] for name in ("Kept", "Cleared", "Copied")
    )
    assert "Wide<32>" not in kept + cleared
    assert "scalars.slots_" not in kept + cleared  # what a control writes before it reads it
    assert copied.count("Wide<32>") <= 16
