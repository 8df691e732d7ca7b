"""Small BMv2 JSON programs made by hand, for what p4c would not write or would optimise away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

STANDARD = {
    "ingress_port": 9,
    "egress_spec": 9,
    "egress_port": 9,
    "instance_type": 32,
    "packet_length": 32,
    "mcast_grp": 16,
    "egress_rid": 16,
    "checksum_error": 1,
    "parser_error": 32,
    "_padding": 3,
}
# As p4c writes them; BMv2 finds both fields by these names only.
ALIASES = [
    [f"intrinsic_metadata.{name}", ["standard_metadata", name]] for name in ("mcast_grp", "egress_rid")
]


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def const(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def operation(op: str, left: Json | None, right: Json, **more: Json) -> Json:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right, **more}}


def call(op: str, *operands: Json, line: int = 1) -> Json:
    place = {"filename": "hand.p4", "line": line, "column": 0, "source_fragment": op}
    return {"op": op, "parameters": list(operands), "source_info": place}


def assign(target: Json, value: Json) -> Json:
    return call("assign", target, value)


def program(
    *,
    header: Mapping[str, int],
    metadata: Mapping[str, int | tuple[int, bool]],
    actions: Sequence[Sequence[Json]],
    ingress: Json | None = None,
    egress: Json | None = None,
    registers: Mapping[str, tuple[int, int]] | None = None,
    calculations: Sequence[Json] = (),
    **more: Any,
) -> bytes:
    """Return a program with header `h` and metadata `m`; without `ingress` all actions run in turn."""

    def fields(widths: Mapping[str, int | tuple[int, bool]]) -> list[list[Any]]:
        return [[n, *(w if isinstance(w, tuple) else (w, False))] for n, w in widths.items()]

    if ingress is None:
        last = len(actions) - 1
        ingress = {
            "init_table": "n0",
            "action_calls": [
                {"name": f"n{i}", "action_id": i, "next_node": None if i == last else f"n{i + 1}"}
                for i in range(len(actions))
            ],
        }
    empty: Json = {"init_table": None}
    pipeline: Json = {"tables": [], "conditionals": [], "action_calls": []}
    root: Json = {
        "header_types": [
            {"name": "h_t", "id": 0, "fields": fields(header)},
            {"name": "m_t", "id": 1, "fields": fields(metadata)},
            {"name": "standard_metadata", "id": 2, "fields": fields(STANDARD)},
        ],
        "headers": [
            {"name": "h", "id": 0, "header_type": "h_t", "metadata": False},
            {"name": "m", "id": 1, "header_type": "m_t", "metadata": True},
            {"name": "standard_metadata", "id": 2, "header_type": "standard_metadata", "metadata": True},
        ],
        "parsers": [
            {
                "name": "parser",
                "init_state": "start",
                "parse_states": [
                    {
                        "name": "start",
                        "parser_ops": [{"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}],
                        "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
                        "transition_key": [],
                    }
                ],
            }
        ],
        "deparsers": [{"name": "deparser", "order": ["h"]}],
        "actions": [
            {"name": f"action{number}", "id": number, "runtime_data": [], "primitives": list(primitives)}
            for number, primitives in enumerate(actions)
        ],
        "register_arrays": [
            {"name": name, "id": number, "bitwidth": width, "size": cells}
            for number, (name, (width, cells)) in enumerate((registers or {}).items())
        ],
        "calculations": list(calculations),
        "field_aliases": ALIASES,
        "pipelines": [
            {**pipeline, "name": "ingress", **ingress},
            {**pipeline, "name": "egress", **(egress or empty)},
        ],
        **more,
    }
    return json.dumps(root).encode()
