"""P4 programs as p4c compiled them, so that the tests need no p4c.

After a change, in this folder:
    p4c-bm2-ss --std p4-16 NAME.p4 -o NAME.json --p4runtime-files NAME.p4info.txtpb
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.p4")))


def program(name: str) -> bytes:
    """Return the BMv2 JSON of a program."""
    return (HERE / f"{name}.json").read_bytes()


def p4info(name: str) -> str:
    """Return the P4Info of a program, as text."""
    return (HERE / f"{name}.p4info.txtpb").read_text()
