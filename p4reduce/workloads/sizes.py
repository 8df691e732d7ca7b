"""Sizes as users write them."""

from __future__ import annotations

import re
from typing import Final

from p4reduce.workloads.errors import WorkloadError

_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_bytes(text: str) -> int:
    """Parse `4096`, `64K`, `32M`, `1G`, also with B or iB behind; the units are powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise WorkloadError(f"{text!r} is no size: say 4096, 64K or 32M")
    return int(match[1]) * _UNITS[match[2]]
