// What an acknowledgement takes at least, of late.
#pragma once

#include <cstdint>

#include "p4r.h"

namespace p4r {

// The least of the last 16 to 32 samples. A mean would take every straggler for a slow network.
class RecentMinimum {
   public:
    void add(int64_t sample) {
        current_ = sample < current_ ? sample : current_;
        if (++count_ < 16) return;
        previous_ = current_;
        current_ = P4R_NEVER;
        count_ = 0;
    }
    int64_t get() const {  // 0: no sample yet
        const int64_t least = current_ < previous_ ? current_ : previous_;
        return least == P4R_NEVER ? 0 : least;
    }

   private:
    int64_t current_ = P4R_NEVER, previous_ = P4R_NEVER;
    int count_ = 0;
};

}  // namespace p4r
