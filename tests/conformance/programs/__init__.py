"""Programs for `test_against_bmv2`, as p4c compiled them. After a change, in this folder:

p4c-bm2-ss --std p4-16 NAME.p4 -o NAME.json --p4runtime-files NAME.p4info.txtpb
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("matching", "parsing", "passes", "state", "values")


def program(name: str) -> tuple[bytes, str]:
    """Return the BMv2 JSON and the P4Info text of a program."""
    return (HERE / f"{name}.json").read_bytes(), (HERE / f"{name}.p4info.txtpb").read_text()
