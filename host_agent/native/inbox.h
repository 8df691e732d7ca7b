// What arrives, in order: checks of the aggregation header and of the message's shape, delivery straight into the
// posted buffers, PASS messages that come before their operation. Knows nothing of PSNs or of loss.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "fault.h"
#include "frame.h"
#include "p4r.h"
#include "work.h"

namespace p4r {

class Inbox {
   public:
    Inbox(const p4r_config &config, WorkQueue &works, p4r_counters &counters);

    enum class Begun { kYes, kNoRoom, kFault };  // kNoRoom: too many messages wait for their operation
    // `payload`: the next message's, at least its first packet's.
    Begun begin(const uint8_t *payload, uint32_t bytes);
    // The message's next packet; false: a fault. After the last one, end().
    bool add(const uint8_t *payload, uint32_t bytes, bool last);
    bool end();      // false: a fault
    bool on_post();  // messages that came before their operation are delivered now; false: a fault

    bool in_message() const { return in_message_; }
    bool in_result() const { return work_ != nullptr && is_aggregated(work_->op); }  // of the message under way
    bool has_room() const { return accepted_ - delivered_ < config_.window; }

    uint32_t accepted() const { return accepted_; }    // messages that have arrived
    uint32_t delivered() const { return delivered_; }  // of these, in the user's buffers
    uint64_t received_op() const { return received_op_; }  // the last operation received as a whole
    bool last_was_result() const { return last_was_result_; }
    Fault &fault() { return fault_; }
    void describe(StateWriter &state) const;

   private:
    // A PASS message that arrived before its operation was posted.
    struct Early {
        AggregationHeader header;
        std::vector<uint8_t> payload;
    };

    bool check_header(const AggregationHeader &header, const uint8_t *chunk);
    bool check_shape(const AggregationHeader &header, const Work &work, const uint8_t *chunk);
    bool check_length(uint32_t bytes, bool last);
    void deliver(Work &work, uint32_t message_index, uint32_t offset, const uint8_t *payload, uint32_t bytes);
    bool deliver_early();
    void end_message(Work &work);

    const p4r_config config_;
    WorkQueue &works_;
    p4r_counters &counters_;
    const uint32_t largest_bytes_;

    uint32_t accepted_;
    uint32_t delivered_;
    bool last_was_result_ = false;
    uint64_t received_op_ = 0;

    bool in_message_ = false;
    AggregationHeader header_;  // of the message under way
    Work *work_ = nullptr;      // its operation; null: it is early
    uint32_t offset_ = 0;       // its payload bytes so far
    std::deque<Early> early_;   // messages delivered_ .. ; the last may be under way
    Fault fault_;
};

}  // namespace p4r
