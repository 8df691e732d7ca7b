// Pseudo-random numbers that a seed determines.
#pragma once
#include <cstdint>

namespace p4 {

// xoshiro256** (D. Blackman, S. Vigna), seeded by splitmix64.
class Random {
  public:
    explicit Random(uint64_t seed) {
        for (uint64_t& word : state_) {
            uint64_t z = seed += 0x9E3779B97F4A7C15u;
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
            z = (z ^ z >> 27) * 0x94D049BB133111EBu;
            word = z ^ z >> 31;
        }
    }
    uint64_t next() {
        const uint64_t result = rotate(state_[1] * 5, 7) * 9, t = state_[1] << 17;
        state_[2] ^= state_[0], state_[3] ^= state_[1], state_[1] ^= state_[2], state_[0] ^= state_[3];
        state_[2] ^= t;
        state_[3] = rotate(state_[3], 45);
        return result;
    }
    uint64_t between(uint64_t low, uint64_t high) {
        const uint64_t count = high - low + 1;  // 0 means all
        if (count == 0) return next();
        return low + uint64_t((unsigned __int128)next() * count >> 64);
    }

  private:
    uint64_t state_[4];
    static uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }
};

}  // namespace p4
