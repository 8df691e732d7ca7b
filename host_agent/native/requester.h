// RC requester on QP_out: the outbox's messages as packets, cumulative acknowledgement, go-back-N or selective
// retransmission, timeouts.
// Pure: the time is passed in.
#pragma once

#include <cstdint>
#include <deque>

#include "ack_delay.h"
#include "frame.h"
#include "outbox.h"
#include "p4r.h"
#include "psn.h"
#include "scoreboard.h"
#include "work.h"

namespace p4r {

class Requester {
   public:
    Requester(const p4r_config &config, WorkQueue &works, p4r_counters &counters);

    // From the successor.
    void on_ack(uint32_t psn, int64_t now);
    void on_sequence_nak(uint32_t psn, int64_t now);
    // All before `psn` has arrived, and `arrived` as well with the `run` packets right before it.
    void on_selective_nak(uint32_t psn, uint32_t arrived, uint32_t run, int64_t now);
    void on_rnr_nak(uint32_t psn, uint8_t timer_code, int64_t now);
    // A packet has arrived from the predecessor that was not there before.
    void on_arrival(int64_t now);
    // Messages below `received` have arrived from the predecessor. `result`: the last of them was aggregated.
    void on_received(uint32_t received, bool result, int64_t now);

    // Runs timers that are due; false: the retry limit is exceeded.
    bool on_time(int64_t now);
    int64_t next_timeout() const;
    // Writes the next data frame; 0: nothing may be sent now.
    size_t next_frame(uint8_t *frame, int64_t now, uint16_t identification);

    const Outbox &outbox() const { return outbox_; }
    uint32_t first_unacked_psn() const { return una_; }
    uint32_t next_psn() const { return next_psn_; }
    uint32_t timeouts_in_a_row() const { return timeouts_in_a_row_; }
    int64_t oldest_unacked_since() const { return unacked() ? progress_at_ : 0; }
    void describe(StateWriter &state) const;

   private:
    // A message of which a packet was sent and not all are acknowledged.
    struct Sent : Outgoing {
        uint32_t first_psn;
        uint32_t packets_sent;
        int64_t sent_at;   // its last packet, first time
        int64_t headed_at;  // its first packet, last time
        bool again = false;  // some packet was sent again, or it was refused for lack of room

        uint32_t end_psn() const { return psn_add(first_psn, shape.packets); }
    };

    // Packets to send again: [next, limit) now; up to `end` as acknowledgements show that they arrive.
    struct Resend {
        bool active = false;
        uint32_t next = 0, limit = 0, end = 0;
        uint32_t budget = 0;  // messages the limit moves by
    };

    bool unacked() const { return una_ != next_psn_; }
    bool advance(uint32_t psn, int64_t now);  // everything before psn is acknowledged; false: not news
    void pop_acked(int64_t now);
    void learn_delay(int64_t delay, bool once);
    void go_back(uint32_t psn, int64_t now);
    void resend_gently(uint32_t psn, int64_t now);
    uint32_t end_of_messages(uint32_t psn, uint32_t messages) const;
    bool start_message(int64_t now);
    bool find_lost(int64_t now);
    bool has_room() const;
    static uint32_t head_of(const Sent &sent, uint32_t psn);
    void probe(int64_t now);
    bool is_missing(uint32_t psn) const;  // sent, and not known to have arrived
    uint32_t next_again(int64_t now) const;
    size_t send_again(uint32_t psn, uint8_t *frame, int64_t now, uint16_t identification);
    size_t build(const Sent &sent, uint32_t index, uint8_t *frame, uint16_t identification) const;
    int64_t go_back_interval() const;
    int64_t again_interval() const;
    int64_t first_probe() const;
    void restart_timer(int64_t now) { timer_at_ = now + rto_; }
    void restart_probes(int64_t now);

    const p4r_config config_;
    p4r_counters &counters_;
    Outbox outbox_;
    FrameTemplate template_;

    std::deque<Sent> sent_;
    uint32_t una_;           // first unacknowledged PSN
    uint32_t next_psn_;      // first PSN never sent

    Resend resend_;
    Scoreboard board_;
    std::deque<uint32_t> probes_;  // PSNs to send again now
    int64_t probe_at_ = P4R_NEVER;
    int64_t probe_interval_ = 0;    // doubled by each
    uint32_t probes_in_a_row_ = 0;  // without an acknowledgement of what was sent once
    int64_t probed_at_ = P4R_NEVER;  // last, if nothing was acknowledged since
    AckDelay ack_delay_;       // from a message's last packet to its acknowledgement
    int64_t rto_;              // doubled by each timeout, reset by progress
    int64_t timer_at_ = 0;
    int64_t progress_at_ = 0;
    uint32_t timeouts_in_a_row_ = 0;
    int64_t rnr_until_ = 0;
    uint32_t rnrs_in_a_row_ = 0;
    bool went_back_ = false;  // go_back_psn_ and go_back_at_ are set
    uint32_t go_back_psn_ = 0;
    int64_t go_back_at_ = 0;
    uint32_t go_backs_in_a_row_ = 0;  // to one place, without any progress
    bool go_back_pending_ = false;  // a further NAK for go_back_psn_ came too soon after the last
};

}  // namespace p4r
