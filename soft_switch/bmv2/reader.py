"""Reader of the BMv2 JSON that p4c writes. It, or `compiler`, refuses what this switch cannot do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from soft_switch.bmv2 import program as bmv2
from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.expression_reader import Json, SyntaxReader, read_source
from soft_switch.description import (
    ActionCall,
    ActionInfo,
    ActionProfileInfo,
    CounterInfo,
    Exact,
    InitialEntry,
    KeyField,
    Lpm,
    Match,
    MeterInfo,
    Param,
    Program,
    Range,
    RegisterInfo,
    TableInfo,
    Ternary,
    ValueSetInfo,
)
from soft_switch.errors import ProgramError, Source, UnsupportedConstruct

SUPPORTED_MAJOR = 2
MIN_PRESET_SIZE = 1 << 16  # entries of a table that has some from the start
MAX_WIDTH = 1 << 16  # bits; p4c stops at 2048
MAX_SIZE = 1 << 32  # entries or cells; P4 has 32 bits for it


def read_program(text: bytes) -> bmv2.Bmv2Program:
    """Read a program. ProgramError: it is not BMv2 JSON; UnsupportedConstruct: it asks for too much."""
    try:
        root = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ProgramError(f"the program is not JSON: {error}") from error
    if not isinstance(root, dict) or "pipelines" not in root:
        raise ProgramError("the program is JSON but not of BMv2: it has no 'pipelines'")
    try:
        return _Reader(root).read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ProgramError(f"the program is not the BMv2 JSON that p4c writes: {error!r}") from error


class _Reader:
    """Reader of the parts, in the order in which they refer to each other."""

    def __init__(self, root: Json) -> None:
        self.root = root
        version = root.get("__meta__", {}).get("version", [SUPPORTED_MAJOR, 0])
        if version[0] != SUPPORTED_MAJOR:
            raise UnsupportedConstruct(f"BMv2 JSON version {'.'.join(map(str, version))}")
        for item in root.get("extern_instances", ()):
            raise UnsupportedConstruct(f"extern instance {item['name']}", read_source(item))
        self.types = {item["name"]: self._header_type(item) for item in root["header_types"]}
        for item in root["headers"]:
            if item["header_type"] not in self.types:
                raise UnsupportedConstruct(f"header union {item['name']} as a header", read_source(item))
        self.instances = {
            item["name"]: bmv2.HeaderInstance(
                item["name"], self.types[item["header_type"]], bool(item["metadata"])
            )
            for item in root["headers"]
        }
        for item in root["headers"]:
            kind = self.instances[item["name"]]
            if not kind.metadata and kind.type.width % 8:
                raise ProgramError(f"header {kind.name} has {kind.type.width} bits, which are no whole bytes")
        by_id = {item["id"]: item["name"] for item in root["headers"]}
        self.stacks = {
            item["name"]: bmv2.HeaderStack(
                item["name"],
                self.types[item["header_type"]],
                tuple(by_id[number] for number in item["header_ids"]),
                item["name"],
            )
            for item in root.get("header_stacks", ())
        }
        self.unions = {
            item["name"]: tuple(by_id[number] for number in item["header_ids"])
            for item in root.get("header_unions", ())
        }
        columns = {item["name"]: self._columns(item) for item in root.get("header_union_stacks", ())}
        self.syntax = SyntaxReader(self.instances, self.stacks, self.unions, columns)
        self.value_sets = {item["name"]: _value_set(item) for item in root.get("parse_vsets", ())}
        self.used_value_sets: set[str] = set()
        self.actions = {item["id"]: self._action(item) for item in root["actions"]}
        self.learn_lists = {int(item["id"]): self._learn_list(item) for item in root.get("learn_lists", ())}
        self.direct_meters = {
            item["name"]: bmv2.DirectMeter(
                item["name"], self.syntax.field(item["result_target"], read_source(item))
            )
            for item in root.get("meter_arrays", ())
            if item["is_direct"]
        }

    def _header_type(self, item: Json) -> bmv2.HeaderType:
        fields = []
        if item.get("length_exp") is not None:
            raise UnsupportedConstruct(f"the length expression of header {item['name']}", read_source(item))
        fixed = sum(int(field[1]) for field in item["fields"] if field[1] != "*")
        for field in item["fields"]:
            name, width, varbit = field[0], field[1], field[1] == "*"
            if varbit:
                if "max_length" not in item:
                    raise UnsupportedConstruct(
                        f"varbit field {item['name']}.{name} without a greatest length", read_source(item)
                    )
                width = 8 * int(item["max_length"]) - fixed
                if width % 8:
                    raise ProgramError(f"varbit field {item['name']}.{name} has {width} bits at most")
            signed = len(field) > 2 and bool(field[2])
            least = 1 if varbit or signed else 0  # bit<0> is the one type that holds nothing
            if not least <= int(width) <= MAX_WIDTH:
                raise ProgramError(f"field {item['name']}.{name} is {width} bits wide")
            fields.append(bmv2.FieldType(name, int(width), signed, varbit, len(field) > 3 and bool(field[3])))
        if sum(field.varbit for field in fields) > 1:
            raise ProgramError(f"header type {item['name']} has more than one varbit field")
        return bmv2.HeaderType(item["name"], tuple(fields))

    def _columns(self, item: Json) -> Mapping[str, str]:
        """Return the stacks that stand for the members of a stack of unions, and add them to the stacks."""
        by_id = {union["id"]: union["name"] for union in self.root["header_unions"]}
        kinds = {kind["name"]: kind["headers"] for kind in self.root["header_union_types"]}
        unions = [self.unions[by_id[number]] for number in item["header_union_ids"]]
        result = {}
        for position, (member, header_type) in enumerate(kinds[item["union_type"]]):
            name = f"{item['name']}.{member}"
            headers = tuple(union[position] for union in unions)
            self.stacks[name] = bmv2.HeaderStack(name, self.types[header_type], headers, item["name"])
            result[member] = name
        return result

    def _action(self, item: Json) -> bmv2.Action:
        params = tuple(Param(p["name"], int(p["bitwidth"])) for p in item["runtime_data"])
        place = read_source(item)
        primitives = tuple(self.syntax.primitive(p, place) for p in item["primitives"])
        return bmv2.Action(ActionInfo(item["name"], int(item["id"]), params), primitives)

    def read(self) -> bmv2.Bmv2Program:
        root = self.root
        parsers = {item["name"]: item for item in root["parsers"]}
        deparsers = {item["name"]: item for item in root["deparsers"]}
        if "parser" not in parsers or "deparser" not in deparsers:
            raise ProgramError("the program lacks the parser 'parser' or the deparser 'deparser' of v1model")
        pipelines = {item["name"]: self._pipeline(item) for item in root["pipelines"]}
        for name in ("ingress", "egress"):
            if name not in pipelines:
                raise ProgramError(
                    f"the program lacks the pipeline '{name}' of v1model: is it for another target?"
                )
        states = {item["name"]: self._parser_state(item) for item in parsers["parser"]["parse_states"]}
        name = str(root.get("program", ""))
        calculations = {item["name"]: self._calculation(item) for item in root.get("calculations", ())}
        selectors = {}
        for item in self._profiles():
            if "selector" in item:
                chooser = self._selector(item)
                calculations[chooser.name] = chooser
                selectors[item["name"]] = chooser.name
        checksums = tuple(self._checksum(item) for item in root.get("checksums", ()))
        statements = tuple(self.syntax.primitive(p) for p in deparsers["deparser"].get("primitives", ()))
        return bmv2.Bmv2Program(
            name=name,
            header_instances=self.instances,
            stacks=self.stacks,
            unions=tuple(self.unions.values()),
            errors=_error_codes(root.get("errors", ())),
            parser_start=parsers["parser"].get("init_state"),
            parser_states=states,
            deparser_order=tuple(deparsers["deparser"]["order"]),
            deparser_primitives=statements,
            actions=self.actions,
            pipelines=pipelines,
            calculations=calculations,
            checksums=checksums,
            aliases=self._aliases(),
            description=self._description(name, pipelines),
            selectors=selectors,
            field_lists={
                int(item["id"]): tuple(self._list_fields(item)) for item in root.get("field_lists", ())
            },
            learn_lists=self.learn_lists,
        )

    def _aliases(self) -> Mapping[str, tuple[str, str]]:
        """Return the fields that aliases lead to; in BMv2 an alias can lead to an earlier one."""
        given = {str(alias): (str(to[0]), str(to[1])) for alias, to in self.root.get("field_aliases") or ()}
        found: dict[str, tuple[str, str]] = {}
        for alias, (header, field) in sorted(given.items()):
            name = f"{header}.{field}"
            instance = self.instances.get(header)
            if name in found:
                found[alias] = found[name]
            elif instance is not None and field in instance.type.numbers:
                found[alias] = header, field
            else:
                raise ProgramError(
                    f"the field alias {alias} leads to {name}, which the program does not have: "
                    "correct 'field_aliases' or compile the program again"
                )
        return found

    def _profiles(self) -> Sequence[Json]:
        """Return the action profiles; in older JSON the table that has one describes it."""
        result = [item for pipe in self.root["pipelines"] for item in pipe.get("action_profiles", ())]
        for pipe in self.root["pipelines"]:
            for table in pipe["tables"]:
                if "action_profile" not in table and "act_prof_name" in table:
                    chooser = {"selector": table["selector"]} if "selector" in table else {}
                    result.append({"name": table["act_prof_name"], **chooser})
        return result

    def _selector(self, item: Json) -> bmv2.Calculation:
        """Return the calculation that chooses the members of a selector's groups; P4 cannot give its name."""
        selector, place = item["selector"], read_source(item)
        inputs = tuple(self._calc_input(part, place) for part in selector["input"])
        return bmv2.Calculation(f"{item['name']} (selector)", selector["algo"], inputs, place)

    def _description(self, name: str, pipelines: Mapping[str, bmv2.Pipeline]) -> Program:
        counters = {}
        tables = {table.info.name: table.info for pipe in pipelines.values() for table in pipe.tables}
        for item in self.root.get("counter_arrays", ()):
            table = item["binding"] if item["is_direct"] else None
            size = tables[table].size if table else _size(item, "size")
            counters[item["name"]] = CounterInfo(item["name"], size, table)
        registers = {
            item["name"]: RegisterInfo(item["name"], _size(item, "size"), _size(item, "bitwidth", MAX_WIDTH))
            for item in self.root.get("register_arrays", ())
        }
        profiles = {
            item["name"]: ActionProfileInfo(item["name"], int(item.get("max_size", 0)), "selector" in item)
            for item in self._profiles()
        }
        meters = {item["name"]: self._meter(item, tables) for item in self.root.get("meter_arrays", ())}
        return Program(
            name=name,
            tables=tables,
            actions=tuple(a.info for a in self.actions.values()),
            counters=counters,
            registers=registers,
            action_profiles=profiles,
            value_sets=self.value_sets,
            meters=meters,
            # One for each call; those of one type share a name.
            digests={
                item.name: tuple(width for _, width in item.values) for item in self.learn_lists.values()
            },
        )

    def _meter(self, item: Json, tables: Mapping[str, TableInfo]) -> MeterInfo:
        rates, unit = int(item["rate_count"]), str(item["type"])
        if rates != 2 or unit not in ("packets", "bytes"):
            raise UnsupportedConstruct(f"meter {item['name']} of {rates} rates in {unit}", read_source(item))
        table = item["binding"] if item["is_direct"] else None
        size = tables[table].size if table else _size(item, "size")
        return MeterInfo(item["name"], size, unit, table)

    def _list_fields(self, item: Json) -> Iterator[p4.Field]:
        """Yield the fields of a field list or learn list; constants in a field list have no effect."""
        for element in item["elements"]:
            if element["type"] == "field":
                yield self.syntax.field(element["value"], read_source(item))
            elif element["type"] != "hexstr":
                raise UnsupportedConstruct(
                    f"{element['type']} in field list {item['name']}", read_source(item)
                )

    def _learn_list(self, item: Json) -> bmv2.LearnList:
        values: list[tuple[p4.Field | p4.Const, int]] = []
        for element in item["elements"]:
            if element["type"] == "hexstr":
                values.append((p4.Const(int(element["value"], 16)), int(element["bitwidth"])))
            elif element["type"] == "field":
                field = self.syntax.field(element["value"], read_source(item))
                values.append((field, self._field_width(field)))
            else:
                raise UnsupportedConstruct(f"{element['type']} in digest {item['name']}", read_source(item))
        return bmv2.LearnList(str(item["name"]), tuple(values))

    # Parser

    def _parser_state(self, item: Json) -> bmv2.ParserState:
        place = read_source(item)
        ops = tuple(self._parser_op(op, item["name"], place) for op in item["parser_ops"])
        key = tuple(self.syntax.expression(part, place) for part in item["transition_key"])
        if any(isinstance(part, p4.Field) and self._is_varbit(part) for part in key):
            raise UnsupportedConstruct(f"select on a varbit field in parser state {item['name']}", place)
        transitions = []
        for branch in item["transitions"]:
            kind = branch.get("type", "hexstr")
            if kind == "default" or branch["value"] in (None, "default"):
                transitions.append(bmv2.Transition(None, None, branch["next_state"]))
            elif kind == "hexstr":
                mask = branch["mask"]
                transitions.append(
                    bmv2.Transition(
                        int(branch["value"], 16),
                        None if mask is None else int(mask, 16),
                        branch["next_state"],
                    )
                )
            elif kind == "parse_vset":
                transitions.append(self._value_set_transition(branch, item["name"], key, place))
            else:
                raise UnsupportedConstruct(f"transition on {kind} in parser state {item['name']}", place)
        return bmv2.ParserState(item["name"], ops, key, tuple(transitions))

    def _parser_op(self, item: Json, state: str, place: Source | None) -> bmv2.ParserOp:
        op, params = item["op"], item["parameters"]
        place = read_source(item) or place
        if op in ("extract", "extract_VL"):
            length = self.syntax.expression(params[1], place) if op == "extract_VL" else None
            return bmv2.ParserOp("extract", self._extracted(params[0], state, place), length)
        if op == "set":
            target = self.syntax.operand(params[0], place)
            return bmv2.ParserOp(op, target, self.syntax.expression(params[1], place))
        if op == "verify":
            condition = self.syntax.expression(params[0], place)
            return bmv2.ParserOp(op, self.syntax.expression(params[1], place), condition)
        if op == "shift":
            return bmv2.ParserOp("advance", None, p4.Const(8 * int(params[0])))
        if op == "advance":
            return bmv2.ParserOp(op, None, self.syntax.expression(params[0], place))
        if op == "primitive":
            return bmv2.ParserOp(op, None, None, self.syntax.primitive(params[0], place))
        raise UnsupportedConstruct(f"parser operation {op} in parser state {state}", place)

    def _extracted(self, item: Json, state: str, place: Source | None) -> p4.Operand:
        kind, name = item["type"], item["value"]
        if kind == "regular":
            reference = name if isinstance(name, Mapping) else {"type": "header", "value": name}
            return self.syntax.header(reference, place)
        if kind == "stack":
            return self.syntax.operand({"type": "header_stack", "value": name}, place)
        if kind == "union_stack":
            return self.syntax.column(name[0], name[1], place)
        raise UnsupportedConstruct(f"extract of a {kind} in parser state {state}", place)

    def _value_set_transition(
        self, branch: Json, state: str, key: Sequence[p4.Expression], place: Source | None
    ) -> bmv2.Transition:
        name = branch["value"]
        if branch.get("mask") is not None:
            raise UnsupportedConstruct(f"value set {name} with a mask in parser state {state}", place)
        fields = []
        for number, part in enumerate(key):
            if not isinstance(part, (p4.Field, p4.LastField, p4.Lookahead)):
                raise UnsupportedConstruct(f"select on an expression in parser state {state}", place)
            fields.append(KeyField(f"field{number}", "exact", self._part_width(part)))
        known = self.value_sets.get(name)
        if known is None:
            raise ProgramError(
                f"parser state {state} uses a value set {name} that the program does not define"
            )
        if name in self.used_value_sets and known.fields != tuple(fields):
            raise UnsupportedConstruct(f"value set {name} in selects of different widths", place)
        self.used_value_sets.add(name)
        self.value_sets[name] = replace(known, fields=tuple(fields))
        return bmv2.Transition(None, None, branch["next_state"], name)

    def _part_width(self, part: p4.Field | p4.LastField | p4.Lookahead) -> int:
        if isinstance(part, p4.Lookahead):
            return part.width
        if isinstance(part, p4.LastField):
            return self.stacks[part.stack].type.field(part.field).width
        return self._field_width(part)

    # Pipelines

    def _pipeline(self, item: Json) -> bmv2.Pipeline:
        conditionals = tuple(
            bmv2.Conditional(
                c["name"],
                self.syntax.expression(c["expression"], read_source(c)),
                c["true_next"],
                c["false_next"],
                read_source(c),
            )
            for c in item.get("conditionals", ())
        )
        calls = tuple(
            bmv2.ActionCallNode(c["name"], int(c["action_id"]), c["next_node"])
            for c in item.get("action_calls", ())
        )
        tables = tuple(self._table(t) for t in item["tables"])
        return bmv2.Pipeline(item["name"], item["init_table"], tables, conditionals, calls)

    def _table(self, item: Json) -> bmv2.Table:
        name, place = item["name"], read_source(item)
        kind = item.get("type", "simple")
        if kind not in ("simple", "indirect", "indirect_ws"):
            raise UnsupportedConstruct(f"table {name} of type {kind}", place)
        keys = tuple(self._key_source(key, place) for key in item["key"])
        fields = tuple(
            KeyField(
                _key_name(key),
                "exact" if key["match_type"] == "valid" else key["match_type"],
                self._key_width(src),
            )
            for key, src in zip(item["key"], keys, strict=True)
        )
        for field in fields:
            if field.kind not in ("exact", "lpm", "ternary", "range", "optional"):
                raise UnsupportedConstruct(f"match kind {field.kind} in table {name}", place)
        default = item.get("default_entry")
        rows = item.get("entries", ())
        top = max((row["priority"] for row in rows), default=0) + 1
        info = TableInfo(
            name=name,
            keys=fields,
            # Where there are initial entries p4c writes how many, whatever size the program gives the table.
            size=max(_size(item, "max_size"), len(rows), MIN_PRESET_SIZE if rows else 0),
            actions=tuple(item["actions"]),
            entries=tuple(self._initial_entry(row, fields, top) for row in rows),
            default=self._call(default) if default else None,
            default_is_const=bool(default and default.get("action_const", False)),
            has_direct_counter=bool(item.get("with_counters", False)),
            profile=None if kind == "simple" else item.get("action_profile") or item["act_prof_name"],
            has_idle_timeout=bool(item.get("support_timeout", False)),
        )
        next_tables = item["next_tables"]
        by_hit = "__HIT__" in next_tables or "__MISS__" in next_tables
        base = item.get("base_default_next")
        return bmv2.Table(
            info=info,
            keys=keys,
            action_ids=tuple(self._action_ids(item)),
            default_action_id=int(default["action_id"]) if default else None,
            entry_action_ids=tuple(int(row["action_entry"]["action_id"]) for row in rows),
            next_by_action={} if by_hit else next_tables,
            next_hit=next_tables.get("__HIT__", base),
            next_miss=next_tables.get("__MISS__", base),
            by_hit=by_hit,
            base_next=base,
            source=place,
            direct_meter=self.direct_meters[item["direct_meters"]] if item.get("direct_meters") else None,
        )

    def _action_ids(self, item: Json) -> Sequence[int]:
        if "action_ids" in item:
            return [int(number) for number in item["action_ids"]]
        ids = {action.info.name: number for number, action in self.actions.items()}
        return [ids[name] for name in item["actions"]]

    def _key_source(self, key: Json, place: Source | None) -> bmv2.KeySource:
        mask = key.get("mask")
        if key["match_type"] == "valid":
            return bmv2.KeySource(
                p4.Valid(self.syntax.header({"type": "header", "value": key["target"]}, place)), None
            )
        target = key["target"]
        if isinstance(target, Mapping):
            read = self.syntax.expression(target, place)
            if not isinstance(read, p4.Field):
                raise UnsupportedConstruct(f"{type(read).__name__} as a table key", place)
            field = read
        else:
            field = self.syntax.field(target, place)
        if self._is_varbit(field):
            raise UnsupportedConstruct("a varbit field as a table key", place)
        return bmv2.KeySource(field, None if mask is None else int(mask, 16))

    def _key_width(self, key: bmv2.KeySource) -> int:
        return 1 if isinstance(key.value, p4.Valid) else self._field_width(key.value)

    def _field_width(self, field: p4.Field) -> int:
        if field.field == p4.VALID:
            return 1
        return self._header_of(field.header).field(field.field).width

    def _header_of(self, header: p4.HeaderRef) -> bmv2.HeaderType:
        match header:
            case p4.Header(name):
                return self.instances[name].type
            case p4.StackElement(stack, _):
                return self.stacks[stack].type
            case p4.HeaderMux(_, left, _):
                return self._header_of(left)

    def _is_varbit(self, field: p4.Field) -> bool:
        return field.field != p4.VALID and self._header_of(field.header).field(field.field).varbit

    def _call(self, item: Json) -> ActionCall:
        action = self.actions[int(item["action_id"])].info
        # Numbers with a sign can be negative in the JSON; entries have their bits.
        values = [
            int(text, 16) & (1 << param.width) - 1 if text.startswith("-") else int(text, 16)
            for text, param in zip(item["action_data"], action.params, strict=True)
        ]
        return ActionCall(action.name, tuple(values))

    def _initial_entry(self, row: Json, fields: Sequence[KeyField], top: int) -> InitialEntry:
        match = tuple(_match(field, key) for field, key in zip(fields, row["match_key"], strict=True))
        # In BMv2 the smaller number wins, in P4Runtime the greater.
        return InitialEntry(match, top - int(row["priority"]), self._call(row["action_entry"]))

    # Calculations and checksums

    def _calculation(self, item: Json) -> bmv2.Calculation:
        place = read_source(item)
        inputs = tuple(self._calc_input(part, place) for part in item["input"])
        return bmv2.Calculation(item["name"], item["algo"], inputs, place)

    def _calc_input(self, part: Json, place: Source | None) -> bmv2.CalcInput:
        kind = part["type"]
        if kind == "payload":
            return bmv2.CalcInput(kind, None, 0)
        if kind == "hexstr":
            return bmv2.CalcInput(kind, p4.Const(int(part["value"], 16)), int(part["bitwidth"]))
        if kind == "field":
            field = self.syntax.field(part["value"], place)
            return bmv2.CalcInput(kind, field, self._field_width(field))
        if kind == "header":
            header = self.syntax.header(part, place)
            if isinstance(header, p4.Header):
                return bmv2.CalcInput(kind, header, self.instances[header.name].type.width)
        raise UnsupportedConstruct(f"calculation over {kind}", place)

    def _checksum(self, item: Json) -> bmv2.Checksum:
        place = read_source(item)
        if item["type"] != "generic":
            raise UnsupportedConstruct(f"checksum type {item['type']}", place)
        condition = item.get("if_cond")
        return bmv2.Checksum(
            name=item["name"],
            target=self.syntax.field(item["target"], place),
            calculation=item["calculation"],
            verify=bool(item.get("verify", True)),
            update=bool(item.get("update", True)),
            condition=None if condition is None else self.syntax.expression(condition, place),
        )


def _size(item: Json, key: str, most: int = MAX_SIZE) -> int:
    size = int(item[key])
    if not 0 <= size <= most:
        raise ProgramError(f"{item['name']} has a {key} of {size}, which is not within 0 and {most}")
    return size


def _value_set(item: Json) -> ValueSetInfo:
    """Return a value set with one field for the whole key; the select that uses it gives the real ones."""
    whole = KeyField("field0", "exact", int(item["compressed_bitwidth"]))
    return ValueSetInfo(item["name"], int(item.get("max_size", 0)), (whole,))


def _key_name(key: Json) -> str:
    if "name" in key:
        return str(key["name"])
    target: Any = key["target"]
    return target if isinstance(target, str) else ".".join(map(str, target))


def _match(field: KeyField, key: Json) -> Match:
    def number(name: str) -> int:
        value = int(key[name], 16)
        return value & (1 << field.width) - 1 if value < 0 else value

    if key["match_type"] == "range":
        return Range(number("start"), number("end"))
    if key["match_type"] == "valid":
        return Exact(int(bool(key["key"])))
    value = number("key")
    if key["match_type"] == "exact":
        return Exact(value)
    if key["match_type"] == "lpm":
        length = int(key["prefix_length"])
        shift = field.width - length
        return Lpm(value >> shift << shift, length)
    mask = number("mask")
    return Ternary(value & mask, mask)


def _error_codes(items: Sequence[Sequence[Any]]) -> Mapping[str, int]:
    """Return the errors' codes; core errors that the program lacks get the next free ones, as in BMv2."""
    codes = {str(name): int(code) for name, code in items}
    following = max(codes.values(), default=-1) + 1
    for name in bmv2.CORE_ERRORS:
        if name not in codes:
            codes[name] = following
            following += 1
    return codes
