// A state machine's whole state as bytes, for whoever explores every state: two with the same bytes do the same from now on,
// whatever they are given. Times count from now, so that states are the same whenever they are reached. Counters and IP
// identifications decide nothing, and are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "p4r.h"

namespace p4r {

class StateWriter {
   public:
    explicit StateWriter(int64_t now) : now_(now) {}

    StateWriter &number(uint64_t value) {
        for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<uint8_t>(value >> shift));
        return *this;
    }
    StateWriter &time(int64_t at) { return number(at == P4R_NEVER ? UINT64_MAX : static_cast<uint64_t>(at - now_)); }
    // A time that is past: what is longer ago than `longest` is alike.
    StateWriter &age(int64_t since, int64_t longest) {
        return number(static_cast<uint64_t>(std::min(now_ - since, longest)));
    }
    StateWriter &data(const uint8_t *data, size_t length) {
        number(length);
        bytes_.insert(bytes_.end(), data, data + length);
        return *this;
    }
    int64_t now() const { return now_; }
    const std::vector<uint8_t> &bytes() const { return bytes_; }

   private:
    const int64_t now_;
    std::vector<uint8_t> bytes_;
};

}  // namespace p4r
