// 24-bit packet sequence numbers (InfiniBand specification, 9.7.2): all comparisons are circular.
#pragma once

#include <cstdint>

namespace p4r {

constexpr uint32_t kPsnMask = 0xffffff;

inline uint32_t psn_add(uint32_t psn, uint32_t n) { return (psn + n) & kPsnMask; }

// How far a is ahead of b, in -2^23 .. 2^23 - 1.
inline int32_t psn_diff(uint32_t a, uint32_t b) {
    return static_cast<int32_t>((a - b) << 8) >> 8;
}

// The least power of two that is not below n, which is at least 1. It divides the number of PSNs.
inline uint32_t power_of_two(uint32_t n) {
    uint32_t power = 1;
    while (power < n) power *= 2;
    return power;
}

}  // namespace p4r
