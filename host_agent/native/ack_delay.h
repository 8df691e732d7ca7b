// How long an acknowledgement takes, and how long to wait for one (RFC 6298; here for probes, as in RFC 8985).
#pragma once

#include <algorithm>
#include <array>
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
// - No wait is longer than kMostLeast times the least delay of late, or kMostQuartile times what a quarter takes less than:
//   a worker that computes for a second tells nothing of the network. The least alone would not do: among messages that wait
//   in the queue of a link, one of a single packet is acknowledged a hundred times sooner.
// - Where most probes help, packets get lost, and most delays are those of repairs. Waiting for as long would make them
//   longer still, for all ranks in turn. There, twice the least delay is waited for.
class AckDelay {
   public:
    // From a message's last packet to its acknowledgement. `once`: none of its packets was sent again. Of others nobody
    // knows which sending was acknowledged (Karn), but that it took no longer.
    void add(int64_t delay, bool once) {
        least_.add(delay);
        recent_[count_++ % recent_.size()] = delay;
        quartile_ = quartile_of_recent();
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
    int64_t longest_wait() const { return std::max(kMostLeast * least(), kMostQuartile * quartile_); }

    void describe(StateWriter &state) const {
        state.number(known_).number(static_cast<uint64_t>(smoothed_)).number(static_cast<uint64_t>(deviation_));
        state.number(static_cast<uint64_t>(helped_)).number(static_cast<uint64_t>(quartile_));
    }

   private:
    static constexpr int64_t kMostLeast = 16, kMostQuartile = 4;
    static constexpr int64_t kAll = 1 << 16;

    int64_t quartile_of_recent() const {
        std::array<int64_t, 16> delays = recent_;
        const auto end = delays.begin() + std::min<size_t>(count_, delays.size());
        const auto place = delays.begin() + (end - delays.begin()) / 4;
        std::nth_element(delays.begin(), place, end);
        return *place;
    }

    bool known_ = false;  // a message was acknowledged that was sent once
    int64_t smoothed_ = 0, deviation_ = 0;
    int64_t helped_ = 0;  // how many of the last few probes, of kAll
    RecentMinimum least_;
    std::array<int64_t, 16> recent_{};
    size_t count_ = 0;
    int64_t quartile_ = 0;  // of them, a quarter took less; every packet asks for it
};

}  // namespace p4r
