// One worker's operations as whole messages, for an adapter that cuts them into packets and repeats what is lost by
// itself (RDMA SEND and receive). Pure: whole messages and the time in, whole messages and events out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "inbox.h"
#include "operations.h"
#include "outbox.h"
#include "p4r.h"

namespace p4r {

// The bit that says of each packet that a switch summed it is among BTH's reserved ones, which an adapter does not
// show. What can be checked here is the RESULT flag of the header, so of a message's first packet.
class Messages {
   public:
    explicit Messages(const p4r_config &config);

    uint64_t post(const p4r_operation &op);  // checked
    // The next message, to be sent in the order of the calls; 0: nothing may be sent now, or it does not fit.
    size_t next_send(uint8_t *buffer, size_t capacity, int64_t now);
    void acknowledged();  // the oldest message that is not
    enum class Taken { kYes, kNotReady, kDead };
    // kNotReady: give it again after the next post, and nothing else before.
    Taken receive(const uint8_t *payload, size_t bytes, int64_t now);

    size_t message_bytes() const { return size_t{config_.path_mtu} * config_.message_packets; }  // of the largest
    Operations &operations() { return operations_; }
    const p4r_counters &counters() const { return counters_; }
    p4r_progress progress() const;
    void describe(StateWriter &state) const;
    void fail(uint32_t code, const char *text);  // the adapter's

   private:
    void after_receiving();
    uint64_t frame_bytes(uint64_t payload_bytes, uint32_t packets) const;

    const p4r_config config_;
    p4r_counters counters_{};
    Operations operations_;
    Outbox outbox_;
    Inbox inbox_;
    std::deque<Outgoing> sent_;  // not acknowledged
    uint32_t unacked_psn_, next_psn_, expected_psn_;  // of the messages; every packet has one
};

}  // namespace p4r
