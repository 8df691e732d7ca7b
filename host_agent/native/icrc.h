// CRC-32 (zlib's polynomial) and RoCE v2's invariant CRC (InfiniBand specification, annex A17.3.3).
#pragma once

#include <cstddef>
#include <cstdint>

namespace p4r {

// Continues `crc`, as zlib's crc32() does; start with 0.
uint32_t crc32(uint32_t crc, const uint8_t *data, size_t length);

// The four ICRC bytes' value for a packet that starts at its IPv4 header (20 bytes) and ends before the ICRC.
// It goes on the wire least significant byte first.
uint32_t icrc(const uint8_t *ip, size_t length);

}  // namespace p4r
