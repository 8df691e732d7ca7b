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

}  // namespace p4r
