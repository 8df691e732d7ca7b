// RC responder on QP_in: in-order acceptance, checks of the aggregation header, delivery straight into the posted
// buffers, coalesced acknowledgements. Pure: the time is passed in.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "frame.h"
#include "p4r.h"
#include "psn.h"
#include "work.h"

namespace p4r {

// What contradicts what was posted; the endpoint makes it a fatal event.
struct Fault {
    uint32_t code = 0;  // P4R_NOT_A_RESULT, ...; 0: none
    char text[256] = "";
    bool has_header = false;
    uint8_t header[64] = {};
};

class Responder {
   public:
    Responder(const p4r_config &config, WorkQueue &works, p4r_counters &counters);

    // A SEND packet of the predecessor's QP_out. False: a fault, see fault().
    bool on_send(const Packet &packet, int64_t now);
    // Messages that came before their operation was posted are delivered now. False: a fault.
    bool on_post();
    void on_time(int64_t now);
    int64_t next_timeout() const;
    bool wants_to_answer() const { return answer_ != Answer::kNone; }
    size_t write_answer(uint8_t *frame, uint16_t identification);

    uint32_t received_messages() const { return delivered_; }
    uint64_t received_op() const { return received_op_; }  // the last operation received as a whole
    bool last_was_result() const { return last_was_result_; }
    uint32_t expected_psn() const { return expected_; }
    const Fault &fault() const { return fault_; }

   private:
    enum class Answer { kNone, kAck, kSequenceNak, kNotReady };

    // A PASS message that arrived before its operation was posted.
    struct Early {
        AggregationHeader header;
        std::vector<uint8_t> payload;
    };

    bool accept(const Packet &packet, int64_t now);
    bool begin_message(const Packet &packet, bool *ready);
    bool check_header(const AggregationHeader &header, const uint8_t *chunk);
    bool check_shape(const AggregationHeader &header, const Work &work, const uint8_t *chunk);
    bool check_length(const Packet &packet, bool last);
    void deliver(Work &work, uint32_t message_index, uint32_t offset, const uint8_t *payload, uint32_t bytes);
    bool deliver_early();
    void end_message(Work &work);
    void on_gap(uint32_t psn, int64_t now);
    __attribute__((format(printf, 4, 5))) bool fail(uint32_t code, const uint8_t *chunk, const char *format, ...);

    const p4r_config config_;
    WorkQueue &works_;
    p4r_counters &counters_;
    FrameTemplate template_;
    const uint32_t predecessor_rank_;
    const MessageShape largest_;

    uint32_t expected_;      // PSN
    uint32_t msn_ = 0;       // messages completed, modulo 2^24
    uint32_t accepted_ = 0;  // messages completed on the wire
    uint32_t delivered_ = 0; // of these, in the user's buffers
    bool last_was_result_ = false;
    uint64_t received_op_ = 0;

    bool in_message_ = false;
    AggregationHeader header_;  // of the message under way
    Work *work_ = nullptr;      // its operation; null: it is early
    uint32_t offset_ = 0;       // its payload bytes so far
    std::deque<Early> early_;   // messages delivered_ .. ; the last may be under way

    Answer answer_ = Answer::kNone;
    bool nak_sent_ = false;    // for expected_; no second one until the timer says so
    bool not_ready_ = false;   // the last answer to expected_ was RNR
    uint32_t highest_ = 0;     // with gap_: the highest PSN seen
    bool gap_ = false;         // a packet beyond expected_ was seen, so what is missing was sent
    int64_t nak_at_ = 0;
    int64_t gap_timer_at_ = 0;
    int64_t gap_interval_;     // doubles while NAKs do not help
    int64_t nak_delay_ = 0;    // smoothed time from a NAK to the packet
    Fault fault_;
};

}  // namespace p4r
