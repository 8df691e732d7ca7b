// RC responder on QP_in: in-order acceptance of packets into the inbox, coalesced acknowledgements, NAKs. Selective:
// packets behind a gap are kept, and NAKs tell of them.
// Pure: the time is passed in.
#pragma once

#include <cstdint>
#include <deque>

#include "frame.h"
#include "inbox.h"
#include "p4r.h"
#include "psn.h"
#include "reorder.h"
#include "work.h"

namespace p4r {

class Responder {
   public:
    Responder(const p4r_config &config, WorkQueue &works, p4r_counters &counters);

    // A SEND packet of the predecessor's QP_out. False: a fault, see fault().
    bool on_send(const Packet &packet, int64_t now);
    // Messages that came before their operation was posted are delivered now. False: a fault.
    bool on_post(int64_t now);
    void on_time(int64_t now);
    int64_t next_timeout() const;
    bool wants_to_answer() const { return answer_ != Answer::kNone; }
    size_t write_answer(uint8_t *frame, uint16_t identification);

    const Inbox &inbox() const { return inbox_; }
    uint32_t expected_psn() const { return expected_; }
    uint64_t new_packets() const { return new_packets_; }  // that had not been there before
    Fault &fault() { return inbox_.fault(); }
    void describe(StateWriter &state) const;

   private:
    enum class Answer { kNone, kAck, kSequenceNak, kNotReady };

    // Packets behind a gap that came one after the other.
    struct Run {
        uint32_t first, last;
    };

    bool accept(const Packet &packet, int64_t now);
    bool accept_kept(int64_t now);
    void on_gap(uint32_t psn, int64_t now);
    void keep(const Packet &packet, int64_t now);
    void tell(uint32_t psn);
    void tell_all();
    size_t write_selective_nak(uint8_t *frame, uint16_t identification);

    const p4r_config config_;
    p4r_counters &counters_;
    FrameTemplate template_;
    Inbox inbox_;

    uint32_t expected_;  // PSN
    uint32_t msn_ = 0;   // messages completed, modulo 2^24

    Answer answer_ = Answer::kNone;
    bool nak_sent_ = false;    // for expected_; no second one until the timer says so
    bool not_ready_ = false;   // the last answer to expected_ was RNR
    uint32_t highest_ = 0;     // with gap_: the highest PSN seen
    bool gap_ = false;         // a packet beyond expected_ was seen, so what is missing was sent
    int64_t nak_at_ = 0;
    int64_t gap_timer_at_ = 0;
    int64_t gap_interval_;     // doubles while NAKs do not help
    int64_t nak_delay_ = 0;    // smoothed time from a NAK to the packet

    uint64_t new_packets_ = 0;
    ReorderBuffer kept_;    // selective: what is behind a gap
    std::deque<Run> runs_;  // of these, what the predecessor is to be told of
};

}  // namespace p4r
