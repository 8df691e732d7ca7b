// Two-rate three-color meters, computed as BMv2 does (src/bm_sim/meters.cpp): color-blind, tokens since a common start.
#pragma once
#include <algorithm>
#include <cstdint>

namespace p4 {

enum Color : uint32_t { GREEN = 0, YELLOW = 1, RED = 2 };

class Meter {
  public:
    // {is configured, committed rate and burst, peak rate and burst}: units (packets or bytes) a second, units.
    static constexpr int WORDS = 5;

    void read(uint64_t* to) const {
        to[0] = configured_;
        to[1] = committed_.rate, to[2] = committed_.burst;
        to[3] = peak_.rate, to[4] = peak_.burst;
    }
    void write(const uint64_t* from) {
        configured_ = from[0] != 0;
        committed_.set(from[1], from[2]);
        peak_.set(from[3], from[4]);
    }

    uint32_t execute(uint64_t now_us, uint64_t units) {
        if (!configured_) return GREEN;
        if (!peak_.take(now_us, units)) return RED;
        return committed_.take(now_us, units) ? GREEN : YELLOW;
    }

  private:
    struct Bucket {
        uint64_t rate, burst, tokens;
        double seen;  // tokens made so far: whole numbers, of great rates more than 64 bits

        void set(uint64_t new_rate, uint64_t new_burst) { *this = {new_rate, new_burst, new_burst, 0}; }
        bool take(uint64_t now_us, uint64_t units) {
            const double made = __builtin_floor(double(now_us) * (double(rate) / 1000000.)), fresh = made - seen;
            const uint64_t room = burst - tokens;
            tokens += fresh < double(room) ? std::min(uint64_t(fresh), room) : room;
            seen = made;
            if (tokens < units) return false;
            tokens -= units;
            return true;
        }
    };
    uint64_t configured_;
    Bucket committed_, peak_;
};

}  // namespace p4
