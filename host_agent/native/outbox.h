// Which message may be sent next, and its bytes: credits, the aggregation header, conversion to the wire.
// Knows nothing of packets' numbers or of loss: a requester or an adapter sees to those.
#pragma once

#include <cstdint>

#include "p4r.h"
#include "work.h"

namespace p4r {

// A message that was started and is not acknowledged.
struct Outgoing {
    uint32_t message;
    MessageShape shape;
    Work *work;
};

class Outbox {
   public:
    Outbox(const p4r_config &config, WorkQueue &works, p4r_counters &counters);

    // Messages below `received` have arrived from the predecessor: the credits.
    void on_received(uint32_t received) { received_ = received; }
    // The next message; false: nothing is posted, or it may not be sent yet.
    bool start(Outgoing *next);
    // `bytes` of its payload from `offset` on, which is 0 or a multiple of the path MTU.
    void write(const Outgoing &sent, uint32_t offset, uint32_t bytes, uint8_t *target) const;
    void acknowledged(const Outgoing &oldest);

    uint32_t next_message() const { return next_message_; }    // first message never started
    uint32_t acked_messages() const { return acked_; }         // those below are acknowledged as a whole
    void describe(StateWriter &state) const {
        state.number(next_message_).number(acked_).number(received_).number(begun_).number(last_aggregated_);
    }

   private:
    bool has_credit(const Work &work) const;

    const p4r_config config_;
    WorkQueue &works_;
    p4r_counters &counters_;
    uint32_t next_message_;
    uint32_t acked_;
    uint32_t received_;
    bool begun_ = false;  // a message was started: the number says nothing, as it comes round
    bool last_aggregated_ = false;  // the kind of message next_message_ - 1
};

}  // namespace p4r
