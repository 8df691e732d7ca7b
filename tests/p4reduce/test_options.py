"""Values with a syntax of their own."""

from __future__ import annotations

import pytest
import typer

from p4reduce.options import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64K", 65536),
        ("64KiB", 65536),
        ("32M", 32 * 2**20),
        ("32mb", 32 * 2**20),
        ("1 G", 2**30),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1T", "32 MBit"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no size: say 4096, 64K or 32M"):
        parse_bytes(text)
