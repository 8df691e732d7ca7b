"""The P4 program's compiled form, its limits, and the hash of the sources it was made from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
JSON_PATH = BUILD / "p4reduce.json"
P4INFO_PATH = BUILD / "p4reduce.p4info.txtpb"
SOURCES_PATH = BUILD / "sources.json"

# Limits of the program: include/sizes.p4 is the origin, tests/p4src/test_build.py holds the two together.
CHUNK_BYTES = 256
MAX_CHUNKS = 16
MAX_RANKS = 32
MAX_JOBS = 32
MAX_FLOWS = 1024
MAX_SLOTS = 8192
HISTORY_MESSAGES = 16
ROUTE_ENTRIES = 4096
MAX_PORTS = 512
BUCKETS = 16
AGAIN_GROUP = 64
RID_UP = 100
RID_BACK = 101

# Fixed by the program and by how the switch is started.
CPU_PORT = 255
DROP_PORT = 511
PATH_MTUS = (256, 512, 1024, 2048, 4096)
MAX_WINDOW = HISTORY_MESSAGES // 2
MAX_MESSAGE_PACKETS = 64


def source_files() -> list[Path]:
    """Return every P4 file of the program, in a fixed order."""
    return sorted(ROOT.glob("*.p4")) + sorted((ROOT / "include").glob("*.p4"))


def sources_hash() -> str:
    """Return the SHA-256 over names and contents of the P4 files, in hexadecimal."""
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def built_from() -> dict[str, str]:
    """Return what build/ was made from: `sources_sha256` and `p4c_version`."""
    record: dict[str, str] = json.loads(SOURCES_PATH.read_text())
    return record


__all__ = [
    "AGAIN_GROUP",
    "BUCKETS",
    "BUILD",
    "CHUNK_BYTES",
    "CPU_PORT",
    "DROP_PORT",
    "HISTORY_MESSAGES",
    "JSON_PATH",
    "MAX_CHUNKS",
    "MAX_FLOWS",
    "MAX_JOBS",
    "MAX_MESSAGE_PACKETS",
    "MAX_PORTS",
    "MAX_RANKS",
    "MAX_SLOTS",
    "MAX_WINDOW",
    "P4INFO_PATH",
    "PATH_MTUS",
    "RID_BACK",
    "RID_UP",
    "ROOT",
    "ROUTE_ENTRIES",
    "SOURCES_PATH",
    "built_from",
    "source_files",
    "sources_hash",
]
