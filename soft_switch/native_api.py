"""The C interfaces of the engine and of compiled programs, for ctypes. Calls release the GIL."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Iterator
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from soft_switch.build import build_engine

NO_PORT = 0xFFFFFFFF
MAX_FRAME = 16384
EVENT_NONE, EVENT_PACKET_IN, EVENT_LOG, EVENT_CLOSED, EVENT_DIGEST = range(5)
LOG_ERROR = 1
TABLE_FULL, TABLE_DUPLICATE, TABLE_UNKNOWN, TABLE_NO_TARGET, TABLE_IN_USE = -1, -2, -3, -4, -5
TO_MEMBER, TO_GROUP = -2, -3  # what an entry of an indirect table has instead of an action

Words = POINTER(c_uint64)

ENGINE: dict[str, tuple[Any, list[Any]]] = {
    "engine_create": (c_void_p, [c_uint32, c_uint32, c_uint64, c_uint32]),
    "engine_destroy": (None, [c_void_p]),
    "engine_host": (c_void_p, [c_void_p]),
    "engine_set_program": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "engine_attach": (c_int, [c_void_p, c_uint32, c_char_p, c_char_p]),
    "engine_detach": (c_int, [c_void_p, c_uint32]),
    "engine_stats": (c_int, [c_void_p, c_uint32, Words]),
    "engine_fault_add": (c_int, [c_void_p, c_uint32, c_int, c_void_p]),
    "engine_fault_remove": (c_int, [c_void_p, c_uint32, c_int, c_uint64]),
    "engine_fault_report": (c_int, [c_void_p, c_uint32, c_int, c_void_p, c_size_t]),
    "engine_fault_struck": (c_int, [c_void_p, c_uint32, c_int, Words]),
    "engine_set_wires": (None, [c_void_p]),
    "faults_create": (c_void_p, []),
    "faults_destroy": (None, [c_void_p]),
    "faults_add": (c_int, [c_void_p, c_int, c_void_p]),
    "faults_remove": (c_int, [c_void_p, c_int, c_uint64]),
    "faults_report": (c_int, [c_void_p, c_int, c_void_p, c_size_t]),
    "faults_pass": (c_void_p, [c_void_p, c_int, c_char_p, c_uint32, c_uint64]),
    "faults_release": (c_void_p, [c_void_p, c_uint64]),
    "faults_due_us": (c_uint64, [c_void_p]),
    "faults_active": (c_int, [c_void_p]),
    "engine_multicast_set": (None, [c_void_p, c_uint32, POINTER(c_uint32), c_size_t]),
    "engine_multicast_delete": (c_int, [c_void_p, c_uint32]),
    "engine_clone_set": (None, [c_void_p, c_uint32, POINTER(c_uint32), c_size_t, c_uint32]),
    "engine_clone_delete": (c_int, [c_void_p, c_uint32]),
    "engine_inject": (None, [c_void_p, c_uint32, c_char_p, c_uint32]),
    "engine_process": (c_void_p, [c_void_p, c_uint32, c_char_p, c_uint32]),
    "engine_collected": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "engine_free": (None, [c_void_p]),
    "engine_globals": (None, [c_void_p, Words]),
    "engine_next_event": (
        c_uint32,
        [c_void_p, c_int, POINTER(c_uint8), POINTER(c_uint32), POINTER(c_uint32)],
    ),
    "engine_close_events": (None, [c_void_p]),
    "engine_start": (c_int, [c_void_p]),
    "engine_stop": (None, [c_void_p]),
}

PROGRAM: dict[str, tuple[Any, list[Any]]] = {
    "p4_create": (c_void_p, [c_void_p]),
    "p4_destroy": (None, [c_void_p]),
    "p4_process": (None, [c_void_p, c_char_p, c_uint32, c_uint32]),
    "p4_passes": (None, [c_void_p, c_int]),
    "p4_insert": (c_int64, [c_void_p, c_uint32, c_char_p, c_uint32, c_int32]),
    "p4_modify": (c_int64, [c_void_p, c_uint32, c_int64, c_int32, c_char_p]),
    "p4_delete": (c_int64, [c_void_p, c_uint32, c_int64]),
    "p4_set_default": (c_int64, [c_void_p, c_uint32, c_int32, c_char_p]),
    "p4_idle_us": (c_int64, [c_void_p, c_uint32, c_int64]),
    "p4_set_member": (c_int64, [c_void_p, c_uint32, c_int64, c_int32, c_char_p]),
    "p4_delete_member": (c_int64, [c_void_p, c_uint32, c_int64]),
    "p4_set_group": (c_int64, [c_void_p, c_uint32, c_int64, Words, c_uint64]),
    "p4_delete_group": (c_int64, [c_void_p, c_uint32, c_int64]),
    "p4_direct_counter": (c_int64, [c_void_p, c_uint32, c_int64, Words, c_int32]),
    "p4_counter": (None, [c_void_p, c_uint32, c_uint64, c_uint64, Words, c_int32]),
    "p4_value_set": (None, [c_void_p, c_uint32, Words, c_uint64]),
    "p4_register": (None, [c_void_p, c_uint32, c_uint64, Words, c_int32]),
    "p4_meter": (None, [c_void_p, c_uint32, c_uint64, Words, c_int32]),
    "p4_direct_meter": (c_int64, [c_void_p, c_uint32, c_int64, Words, c_int32]),
}


def load_library(path: Path, functions: dict[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    """Open a library and declare its functions."""
    library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@functools.cache
def engine_library() -> ctypes.CDLL:
    """Return the engine, compiled on first use."""
    return load_library(build_engine(), ENGINE)


def program_library(path: Path) -> ctypes.CDLL:
    """Open a compiled program. A program that was opened before is the same library again."""
    return load_library(path, PROGRAM)


def collected(library: ctypes.CDLL, collector: int) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a collector, each with the number in front of it, and free the collector."""
    try:
        size = c_size_t()
        start = library.engine_collected(collector, ctypes.byref(size))
        data = ctypes.string_at(start, size.value) if size.value else b""
    finally:
        library.engine_free(collector)
    at = 0
    while at < len(data):
        number, length = struct.unpack_from("=II", data, at)
        at += 8 + length
        yield number, data[at - length : at]


def to_words(values: list[int]) -> ctypes.Array[c_uint64]:
    """Return an array of 64-bit words; never of size 0, so that there is an address."""
    return (c_uint64 * max(1, len(values)))(*values)
