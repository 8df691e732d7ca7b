// How long an acknowledgement takes, and how long to wait for one (RFC 6298; here for probes, as in RFC 8985).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "p4r.h"
#include "recent_minimum.h"
#include "state.h"

namespace p4r {

// An acknowledgement comes when all ranks have contributed, so its delay is that of the slowest rank, and of what any rank
// lost. Three things are not as in the RFC for that:
// - The deviation rises as quickly as there, and falls four times more slowly: on a busy machine every few dozen messages
//   somebody is late, and whoever has forgotten that by then probes each time.
// - No wait is longer than kMostLeast times the least delay of late: a worker that computes for a second tells nothing of
//   the network.
// - Where most probes help, packets get lost, and most delays are those of repairs. Waiting for as long would make them
//   longer still, for all ranks in turn. There, twice the least delay is waited for.
class AckDelay {
   public:
    // From a message's last packet to its acknowledgement. `once`: none of its packets was sent again. Of others nobody
    // knows which sending was acknowledged (Karn), but that it took no longer.
    void add(int64_t delay, bool once) {
        least_.add(delay);
        if (!once) return;
        if (!known_) {
            smoothed_ = delay;
            deviation_ = delay / 2;
        } else {
            const int64_t off = std::abs(delay - smoothed_);
            deviation_ += (off - deviation_) / (off > deviation_ ? 4 : 16);
            smoothed_ += (delay - smoothed_) / 8;
        }
        known_ = true;
    }
    // A probe was sent `ago`, and now there is an acknowledgement: if at once, some rank's probe has helped.
    void answered(int64_t ago, int64_t at_once) {
        const bool helped = ago <= std::max(at_once, least() / 2);
        helped_ += ((helped ? kAll : 0) - helped_) / 4;
    }
    bool lossy() const { return helped_ >= kAll / 2; }
    int64_t least() const { return least_.get(); }  // of late; 0: no delay yet
    // What hardly one takes longer than; 0: no delay yet.
    int64_t usual() const {
        if (lossy()) return 2 * least();
        return known_ ? std::min(smoothed_ + 4 * deviation_, longest_wait()) : 3 * least();
    }
    int64_t longest_wait() const { return kMostLeast * least(); }

    void describe(StateWriter &state) const {
        state.number(known_).number(static_cast<uint64_t>(smoothed_)).number(static_cast<uint64_t>(deviation_));
        state.number(static_cast<uint64_t>(helped_));
    }

   private:
    static constexpr int64_t kMostLeast = 16;
    static constexpr int64_t kAll = 1 << 16;

    bool known_ = false;  // a message was acknowledged that was sent once
    int64_t smoothed_ = 0, deviation_ = 0;
    int64_t helped_ = 0;  // how many of the last few probes, of kAll
    RecentMinimum least_;
};

}  // namespace p4r
