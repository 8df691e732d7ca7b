"""The native hashes against Python's, for every length that a vector loop may treat on its own."""

from __future__ import annotations

import ctypes
import random
import zlib

import pytest

from soft_switch.build import OPTIMISED, QUICK, Tier, build_program

SOURCE = """
#include "hash.h"
#define API extern "C" __attribute__((visibility("default")))
template <class H> static uint64_t run(const uint8_t* p, size_t first, size_t n) {
    H h;
    h.add(p, first);
    h.add(p + first, n - first);
    return h.value();
}
API uint64_t crc32(const uint8_t* p, size_t first, size_t n) { return run<p4::Crc32>(p, first, n); }
API uint64_t csum16(const uint8_t* p, size_t first, size_t n) { return run<p4::Csum16>(p, first, n); }
"""
LENGTHS = [*range(800), 1023, 1072, 4144, 9000]


def internet_checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@pytest.mark.parametrize("tier", [QUICK, OPTIMISED], ids=lambda tier: tier.kind)
def test_every_length(tier: Tier) -> None:
    library = ctypes.CDLL(str(build_program(SOURCE, tier)))
    for name in ("crc32", "csum16"):
        getattr(library, name).restype = ctypes.c_uint64
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    chance = random.Random(32)
    for length in LENGTHS:
        data = chance.choice([chance.randbytes(length), b"\xff" * length, bytes(length)])
        first = chance.randrange(length + 1)
        assert library.crc32(data, first, length) == zlib.crc32(data), (length, first)
        assert library.csum16(data, first, length) == internet_checksum(data), (length, first)
