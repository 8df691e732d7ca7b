"""The machine on which figures were measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from p4reduce.workloads.errors import WorkloadError


def machine() -> dict[str, Any]:
    """Return processor, cores, memory in GiB, kernel and Python's version."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def describe() -> str:
    """Describe the machine in a line."""
    found = machine()
    return (
        f"{found['processor']}, {found['cores']} cores, {found['memory_gib']:g} GiB, Linux {found['kernel']}"
    )


def free_bytes() -> int:
    """Return the bytes of memory that programs can still have."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise WorkloadError("/proc/meminfo does not say how much memory is available")


def require_free(needed: int, *, who: str, remedy: str) -> None:
    """Raise WorkloadError if fewer than `needed` bytes of memory are free for `who`."""
    free = free_bytes()
    if needed > free:
        raise WorkloadError(
            f"{who} need about {needed / 2**30:.1f} GiB of this machine's memory, "
            f"{free / 2**30:.1f} GiB are free: {remedy}"
        )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
