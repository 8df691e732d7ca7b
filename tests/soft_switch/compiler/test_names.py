"""Fields that BMv2 finds by name: instances of the program's own, and aliases; here and on BMv2 itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from tests.conformance.bmv2 import BMV2, Bmv2, running_bmv2
from tests.soft_switch import bmv2_json
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.bmv2_json import Json, assign, call, const
from tests.soft_switch.bmv2_json import field as read

HEADER = {
    "value": 16, "rid": 16,
    "ingress_time": 48, "egress_time": 48, "enqueued": 48, "enq_depth": 24, "deq_depth": 24, "queue": 8,
}  # fmt: skip
TIME = -1  # any that is not zero
GROUP, REPLICAS = 1, [(2, 20), (3, 30)]
STANDARD, INTRINSIC, QUEUEING = "standard_metadata", "intrinsic_metadata", "queueing_metadata"
TO_4 = assign(read(STANDARD, "egress_spec"), const(4))
MULTICAST = {"mcast_grp": 16, "egress_rid": 16}
TIMES = {"ingress_global_timestamp": 48, "egress_global_timestamp": 48}
QUEUE = {"enq_timestamp": 48, "enq_qdepth": 24, "deq_timedelta": 32, "deq_qdepth": 24}
FLAGS = ("resubmit_flag", "recirculate_flag", "lf_field_list")
Seen = list[tuple[int, dict[str, int]]]


def see(to: str, instance: str, name: str) -> Json:
    """Write into the packet's header what egress sees."""
    return assign(read("h", to), read(instance, name))


@dataclass(frozen=True)
class Case:
    """A program with instances of its own, what its controls do, and what a packet makes leave."""

    name: str
    ingress: Sequence[Json]
    leaves: Seen
    egress: Sequence[Json] = ()
    instances: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    aliases: Sequence[tuple[str, str, str]] = ()
    in_packet: Sequence[str] = ()

    def program(self) -> bytes:
        """Return the BMv2 JSON. A packet's header that is an instance of `in_packet` goes before `h`."""

        def node(number: int) -> Json:
            name = f"n{number}"  # nodes of both pipelines have one name space in BMv2
            return {
                "init_table": name,
                "action_calls": [{"name": name, "id": number, "action_id": number, "next_node": None}],
            }

        root = json.loads(
            bmv2_json.program(
                header=HEADER,
                metadata={"group": 16, "rid": 16, "out": 9, "port": 9, "error": 32, "_padding": 6},
                actions=[self.ingress, self.egress],
                ingress=node(0),
                egress=node(1),
                field_aliases=[[alias, [instance, name]] for alias, instance, name in self.aliases],
                field_lists=[{"id": 1, "name": "nothing", "elements": []}],
                errors=[["NoError", 0], ["PacketTooShort", 1]],
            )
        )
        for number, (instance, fields) in enumerate(self.instances.items(), 3):
            kind = {"name": f"{instance}_t", "id": number, "fields": [[n, w] for n, w in fields.items()]}
            item = {"name": instance, "id": number, "header_type": kind["name"]}
            root["header_types"].append(kind)
            root["headers"].append({**item, "metadata": instance not in self.in_packet})
        extracts = root["parsers"][0]["parse_states"][0]["parser_ops"]
        for instance in self.in_packet:
            extracts.insert(0, {"op": "extract", "parameters": [{"type": "regular", "value": instance}]})
        for number, pipeline in enumerate(root["pipelines"]):
            pipeline["id"] = number
        return json.dumps(root).encode()

    def frame(self) -> bytes:
        """Return the packet that is sent."""
        own = b"".join(pack(dict(self.instances[name]), {"mcast_grp": GROUP}) for name in self.in_packet)
        return own + pack(HEADER, {"value": 7})


ALIAS = "intrinsic_metadata."
MULTICAST_ALIASES = [(f"{ALIAS}{name}", STANDARD, name) for name in MULTICAST]
REPLICATED: Seen = [(port, {"value": 7, "rid": rid}) for port, rid in REPLICAS]
UNICAST: Seen = [(4, {"value": 7})]
CASES = [
    Case(
        "multicast by an instance of the program's own",
        [TO_4, assign(read(INTRINSIC, "mcast_grp"), const(GROUP))],
        REPLICATED,
        [see("rid", INTRINSIC, "egress_rid")],
        {INTRINSIC: MULTICAST},
    ),
    Case(
        "multicast by a header of the packet",
        [TO_4],
        REPLICATED,
        [see("rid", INTRINSIC, "egress_rid")],
        {INTRINSIC: MULTICAST},
        in_packet=[INTRINSIC],
    ),
    Case(
        "multicast by aliases to the program's metadata",
        [TO_4, assign(read("m", "group"), const(GROUP))],
        REPLICATED,
        [see("rid", "m", "rid")],
        aliases=[(f"{ALIAS}mcast_grp", "m", "group"), (f"{ALIAS}egress_rid", "m", "rid")],
    ),
    Case(
        "an alias goes before an instance of that name",
        [TO_4, assign(read(INTRINSIC, "mcast_grp"), const(GROUP))],
        UNICAST,
        instances={INTRINSIC: MULTICAST},
        aliases=MULTICAST_ALIASES,
    ),
    Case(
        "an alias of an alias before it in the alphabet",
        [TO_4, assign(read("m", "group"), const(GROUP))],
        REPLICATED,
        [see("rid", "m", "rid")],
        aliases=[
            ("first.group", "m", "group"),
            (f"{ALIAS}mcast_grp", "first", "group"),
            (f"{ALIAS}egress_rid", "m", "rid"),
        ],
    ),
    Case(
        "standard_metadata.mcast_grp without an alias",
        [TO_4, assign(read(STANDARD, "mcast_grp"), const(GROUP))],
        UNICAST,
    ),
    Case(
        "mark_to_drop clears the group of the header that it marks",
        [
            assign(read(INTRINSIC, "mcast_grp"), const(GROUP)),
            call("mark_to_drop", {"type": "header", "value": STANDARD}),
        ],
        REPLICATED,
        [see("rid", INTRINSIC, "egress_rid")],
        {INTRINSIC: MULTICAST},
    ),
    Case(
        "drop clears the group that it finds by name",
        [TO_4, assign(read(INTRINSIC, "mcast_grp"), const(GROUP)), call("drop")],
        [],
        instances={INTRINSIC: MULTICAST},
    ),
    Case(
        "mark_to_drop on what has no egress_spec",
        [TO_4, call("mark_to_drop", {"type": "header", "value": INTRINSIC})],
        UNICAST,
        instances={INTRINSIC: MULTICAST},
    ),
    Case(
        "time stamps and the queue",
        [
            TO_4,
            see("ingress_time", INTRINSIC, "ingress_global_timestamp"),
            # The switch writes them all before egress.
            *(assign(read(QUEUEING, name), const(9)) for name in (*QUEUE, "qid")),
        ],
        [(4, {"value": 7, "ingress_time": TIME, "egress_time": TIME, "enqueued": TIME})],
        [
            see("egress_time", INTRINSIC, "egress_global_timestamp"),
            see("enqueued", QUEUEING, "enq_timestamp"),
            see("enq_depth", QUEUEING, "enq_qdepth"),
            see("deq_depth", QUEUEING, "deq_qdepth"),
            see("queue", QUEUEING, "qid"),
        ],
        {INTRINSIC: TIMES, QUEUEING: {**QUEUE, "qid": 8}},
    ),
    Case(
        "a part of the queue's fields",
        [TO_4, *(assign(read(QUEUEING, name), const(9)) for name in (*list(QUEUE)[:3], "qid"))],
        [(4, {"value": 7, "enqueued": 9, "enq_depth": 9, "queue": 9})],
        [
            see("enqueued", QUEUEING, "enq_timestamp"),
            see("enq_depth", QUEUEING, "enq_qdepth"),
            see("queue", QUEUEING, "qid"),
        ],
        {QUEUEING: {name: QUEUE.get(name, 8) for name in [*list(QUEUE)[:3], "qid"]}},
    ),
    Case(
        "a priority without a queue",
        [TO_4, assign(read(INTRINSIC, "priority"), const(1))],
        [],
        instances={INTRINSIC: {"priority": 8}},
    ),
    Case(
        "the port that the packet came in by as its priority",
        [TO_4],
        [],
        aliases=[(f"{ALIAS}priority", STANDARD, "ingress_port")],
    ),
    Case(
        "fields of standard_metadata by aliases",
        [TO_4, assign(read("m", "out"), const(5)), see("enqueued", "m", "error")],
        [(5, {"value": 7, "queue": 5})],
        [see("queue", "m", "port")],
        aliases=[
            ("standard_metadata.egress_spec", "m", "out"),
            ("standard_metadata.egress_port", "m", "port"),
            ("standard_metadata.parser_error", "m", "error"),
        ],
    ),
    Case(
        "arithmetic of P4_14",
        [
            TO_4,
            call("add_to_field", read("h", "value"), const(0xFFFE)),  # 5
            call("subtract_from_field", read("h", "enq_depth"), const(0xFFFFFE)),  # 2
            call("add", read("h", "rid"), read("h", "value"), const(6)),  # 11
            call("subtract", read("h", "deq_depth"), read("h", "rid"), const(8)),  # 3
            call("bit_or", read("h", "queue"), read("h", "rid"), const(0x34)),  # 63
            call("bit_and", read("h", "queue"), read("h", "queue"), const(0x1E)),  # 30
            call("bit_xor", read("h", "queue"), read("h", "queue"), const(0x11)),  # 15
            call("shift_left", read("m", "group"), read("h", "queue"), const(2)),  # 60
            call("shift_right", read("h", "enqueued"), read("m", "group"), const(1)),  # 30
        ],
        [(4, {"value": 5, "rid": 11, "enqueued": 30, "enq_depth": 2, "deq_depth": 3, "queue": 15})],
    ),
    Case(
        "flags that were found by name before 2019",
        [
            TO_4,
            *(assign(read(INTRINSIC, name), const(1)) for name in FLAGS),
        ],
        [(4, {"value": 7, "queue": 1})],
        [see("queue", INTRINSIC, "resubmit_flag")],
        {INTRINSIC: dict.fromkeys(FLAGS, 8)},
    ),
]


def by_names(leaves: Sequence[tuple[int, bytes]]) -> Seen:
    """Return what left, by port: the header's fields that are not zero, great numbers as `TIME`."""
    seen: Seen = []
    for port, frame in leaves:
        fields = {name: value for name, value in unpack(HEADER, frame).items() if value}
        seen.append((port, {n: TIME if v > 99 else v for n, v in fields.items()}))
    return sorted(seen, key=lambda item: item[0])


@pytest.fixture(scope="module")
def bmv2() -> Iterator[Bmv2]:
    """Yield BMv2 with its groups, made once: it keeps their replicas when it gets another program."""
    with running_bmv2() as switch:
        switch.controller.push(CASES[0].program(), "")
        switch.controller.multicast_set(GROUP, REPLICAS)
        yield switch


def case_name(value: object) -> str | None:
    return value.name.replace(" ", "-") if isinstance(value, Case) else None


@pytest.mark.parametrize(
    ("case", "optimise"),
    [
        (CASES[0], True),
        *(pytest.param(case, True, marks=pytest.mark.slow) for case in CASES[1:]),
        *(pytest.param(case, False, marks=pytest.mark.slow) for case in CASES[:2]),
    ],
    ids=case_name,
)
def test_as_bmv2_finds_them(case: Case, optimise: bool) -> None:
    with DataPlane() as plane:
        plane.load(case.program(), optimise=optimise)
        plane.multicast_set(GROUP, REPLICAS)
        assert by_names(plane.process(1, case.frame())) == case.leaves


@pytest.mark.slow
@pytest.mark.bmv2
@pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH")
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_bmv2_itself(case: Case, bmv2: Bmv2) -> None:
    """BMv2 makes the same leave; these programs have no tables, so that an empty P4Info will do."""
    bmv2.controller.push(case.program(), "")
    [left] = bmv2.process([(1, case.frame())])
    assert by_names(left) == case.leaves


@pytest.mark.slow
def test_multicast_without_an_instance_number() -> None:
    """BMv2 ends here."""
    case = Case(
        "no egress_rid",
        [TO_4, assign(read(INTRINSIC, "mcast_grp"), const(GROUP))],
        [(port, {"value": 7}) for port, _ in REPLICAS],
        instances={INTRINSIC: {"mcast_grp": 16}},
    )
    with DataPlane() as plane:
        plane.load(case.program())
        plane.multicast_set(GROUP, REPLICAS)
        assert by_names(plane.process(1, case.frame())) == case.leaves


def refusal(case: Case) -> str:
    """Return why a program is refused."""
    with pytest.raises(ProgramError) as error:
        compile_program(read_program(case.program()))
    return str(error.value)


def test_an_alias_of_what_is_not_there() -> None:
    """Check also an alias behind it in the alphabet: BMv2 takes them in that order."""
    for aliases in (
        [("intrinsic_metadata.mcast_grp", "m", "nothing")],
        [("intrinsic_metadata.mcast_grp", "m", "nothing"), ("m.nothing", "m", "group")],
    ):
        told = refusal(Case("", [], [], aliases=aliases))
        assert "field alias intrinsic_metadata.mcast_grp leads to m.nothing" in told
        assert "correct 'field_aliases'" in told


def test_fields_of_other_types() -> None:
    told = refusal(Case("", [], [], instances={INTRINSIC: {"priority": 72}}))
    assert told.startswith("intrinsic_metadata.priority is 72 bits wide, and the switch finds it by its name")
    assert "declare it as bit<N>" in told
    root = json.loads(Case("", [], [], aliases=[("intrinsic_metadata.mcast_grp", "m", "group")]).program())
    kinds = {kind["name"]: kind for kind in root["header_types"]}
    kinds["m_t"]["fields"][0][2] = True
    with pytest.raises(
        ProgramError, match=r"m\.group, to which the alias intrinsic_metadata\.mcast_grp leads, is s"
    ):
        compile_program(read_program(json.dumps(root).encode()))


def test_a_required_field_by_an_alias() -> None:
    root = json.loads(Case("", [], []).program())
    kinds = {kind["name"]: kind for kind in root["header_types"]}
    kinds[STANDARD]["fields"] = [item for item in kinds[STANDARD]["fields"] if item[0] != "egress_spec"]
    with pytest.raises(
        ProgramError, match=r"has no standard_metadata\.egress_spec: is it for another target"
    ):
        compile_program(read_program(json.dumps(root).encode()))
    root["field_aliases"] = [["standard_metadata.egress_spec", ["m", "out"]]]
    compile_program(read_program(json.dumps(root).encode()))
