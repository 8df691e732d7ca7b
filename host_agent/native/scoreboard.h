// Selective retransmission, the requester's side: which unacknowledged packets have arrived behind a gap, and which of
// the others are lost. Knows nothing of messages. Pure: the time is passed in.
#pragma once

#include <cstdint>
#include <vector>

#include "p4r.h"
#include "psn.h"
#include "recent_minimum.h"
#include "state.h"

namespace p4r {

class Scoreboard {
   public:
    // For up to `packets` unacknowledged PSNs; 0: nothing is written down.
    explicit Scoreboard(uint32_t packets);

    void sent(uint32_t psn, int64_t now);        // for the first time
    void sent_again(uint32_t psn, int64_t now);
    void acknowledged(uint32_t begin, uint32_t end);
    // Those of [begin, end) have arrived; whether that is news.
    bool arrived(uint32_t begin, uint32_t end, int64_t now);
    // From when a packet was sent until `now`; 0 if it is known to have arrived, or was sent again.
    int64_t delay_of(uint32_t psn, int64_t now) const {
        return cell(psn).arrived || cell(psn).again != 0 ? 0 : now - cell(psn).sent_at;
    }
    // The least recent time from a packet to word of its arrival; 0: not known yet.
    int64_t round_trip() const { return round_trip_.get(); }
    // What is lost of [una, the last that has arrived): all that has not been sent again, and what has been longer than
    // `interval` ago, which is doubled with each time after the third, up to `longest`. Whether there is anything new.
    bool find_lost(uint32_t una, int64_t interval, int64_t longest, int64_t now);
    int64_t due() const { return due_; }  // when to look again; P4R_NEVER: not before something has arrived
    void forget(uint32_t una, uint32_t next);  // what has arrived, and what is lost

    bool has_arrived(uint32_t psn) const { return !cells_.empty() && cell(psn).arrived; }
    uint32_t arrived_packets() const { return arrived_; }
    bool any_lost() const { return lost_ != 0; }
    uint32_t first_lost(uint32_t una) const;  // with any_lost()
    uint32_t times_sent_again(uint32_t psn) const { return cell(psn).again; }
    void describe(StateWriter &state, uint32_t una, uint32_t next, int64_t longest) const;

   private:
    struct Cell {
        int64_t sent_at;
        uint8_t again;  // how often, up to 255
        bool arrived, lost;
    };

    Cell &cell(uint32_t psn) { return cells_[psn & (cells_.size() - 1)]; }
    const Cell &cell(uint32_t psn) const { return cells_[psn & (cells_.size() - 1)]; }
    void clear(uint32_t psn);

    std::vector<Cell> cells_;  // a power of two of them, by PSN
    uint32_t arrived_ = 0, lost_ = 0;
    uint32_t beyond_ = 0;  // with arrived_: the PSN after the last that has arrived
    int64_t due_ = P4R_NEVER;
    RecentMinimum round_trip_;
};

}  // namespace p4r
