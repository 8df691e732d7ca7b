"""Well-formed packets of a program: walks through the parser of its JSON that set what states select on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.soft_switch.fuzz.entries import few_values

MAX_STEPS = 64
PAYLOADS = (0, 0, 1, 20, 64, 300, 1400)


class PacketMaker:
    """Makes packets that a program's parser takes deep into its states."""

    def __init__(self, document: dict[str, Any], chance: random.Random) -> None:
        self.chance = chance
        parser = document["parsers"][0]
        self.start: str | None = parser["init_state"]
        self.states = {state["name"]: state for state in parser["parse_states"]}
        self.types = {kind["name"]: kind["fields"] for kind in document["header_types"]}
        self.headers = {header["name"]: header["header_type"] for header in document["headers"]}
        self.stacks = {
            stack["name"]: (stack["header_type"], len(stack["header_ids"]))
            for stack in document.get("header_stacks", ())
        }
        self.unions = {stack["name"] for stack in document.get("header_union_stacks", ())}

    def packet(self) -> bytes:
        """Return one packet: headers, filled at random but for what was selected on, and a payload."""
        walk = _Walk(self)
        state = self.start
        for _ in range(MAX_STEPS):
            if state is None or state not in self.states:
                break
            state = walk.step(self.states[state])
        return walk.bytes()


class _Walk:
    """One way through the parser."""

    def __init__(self, maker: PacketMaker) -> None:
        self.maker = maker
        self.chance = maker.chance
        self.bits: list[int] = []
        self.at: dict[tuple[str, str], tuple[int, int]] = {}  # header, field: first bit and width
        self.last: dict[str, str] = {}  # stack: name of the header extracted last
        self.taken: dict[str, int] = {}
        self.position = 0

    def step(self, state: dict[str, Any]) -> str | None:
        for op in state["parser_ops"]:
            self.operation(op["op"], op["parameters"])
        transitions = state["transitions"]
        if not transitions:
            return None
        chosen = self.chance.choice(transitions)
        if chosen.get("type") == "hexstr" and chosen["value"] is not None:
            self.select(state["transition_key"], int(chosen["value"], 16), chosen["mask"])
        return chosen["next_state"] if isinstance(chosen["next_state"], str) else None

    def operation(self, op: str, parameters: Sequence[Any]) -> None:
        if op in ("extract", "extract_VL"):
            target = parameters[0]
            name = target["value"]
            if target["type"] == "regular":
                kind = self.maker.headers[name]
            elif target["type"] == "stack" and name in self.maker.stacks:
                kind, depth = self.maker.stacks[name]
                number = self.taken.get(name, 0)
                self.taken[name] = number + 1
                self.last[name] = f"{name}[{min(number, depth - 1)}]"
                name = self.last[name]
            else:
                return
            self.extract(name, kind)
        elif op in ("shift", "advance") and isinstance(parameters[0], int):
            self.position += 8 * parameters[0] if op == "shift" else parameters[0]

    def extract(self, name: str, kind: str) -> None:
        for field, width, *_ in self.maker.types[kind]:
            if width == "*":
                width = 8 * self.chance.randrange(5)
            if self.position >= len(self.bits):  # nobody has looked ahead here
                self.fill(self.position + width)
                self.set(self.position, width, few_values(width, self.chance))
            self.fill(self.position + width)
            self.at[name, field] = (self.position, width)
            self.position += width

    def fill(self, length: int) -> None:
        self.bits += [0] * (length - len(self.bits))

    def select(self, keys: Sequence[dict[str, Any]], value: int, mask: str | None) -> None:
        """Set the bits that the keys read; each key takes whole bytes of value and mask."""
        places = [self.place(key) for key in keys]
        care = -1 if mask is None else int(mask, 16)
        for place in reversed(places):
            if place is None:
                value, care = value >> 8, care >> 8
                continue
            first, width = place
            self.fill(first + width)
            old, mine = self.get(first, width), care & ((1 << width) - 1)
            self.set(first, width, (old & ~mine) | (value & mine))
            whole = -(-width // 8) * 8
            value, care = value >> whole, care >> whole

    def get(self, first: int, width: int) -> int:
        return int("0" + "".join(map(str, self.bits[first : first + width])), 2)

    def set(self, first: int, width: int, value: int) -> None:
        self.bits[first : first + width] = [value >> (width - 1 - i) & 1 for i in range(width)]

    def place(self, key: dict[str, Any]) -> tuple[int, int] | None:
        kind, value = key["type"], key["value"]
        if kind == "lookahead":
            return self.position + value[0], value[1]
        if kind == "field":
            return self.at.get((value[0], value[1]))
        if kind == "stack_field":
            return self.at.get((self.last.get(value[0], ""), value[1]))
        return None

    def bytes(self) -> bytes:
        """Return the packet, with right checksums in all IPv4 headers of the usual form."""
        for (name, field), (start, width) in list(self.at.items()):
            if width == 16 and "checksum" in field.lower() and (name, "ihl") in self.at:
                first = start - 80
                self.set(first, 8, 0x45)
                self.set(start, 16, 0)
                total = sum(self.get(first + 16 * i, 16) for i in range(10))
                total = (total & 0xFFFF) + (total >> 16)
                self.set(start, 16, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)
        self.fill(-(-max(self.position, 112) // 8) * 8)
        whole = len(self.bits) // 8
        text = "".join(map(str, self.bits[: 8 * whole]))
        return int(text, 2).to_bytes(whole, "big") + self.chance.randbytes(self.chance.choice(PAYLOADS))
