// One worker's two queue pairs and its operations: frames and the time in, frames and events out.
#pragma once

#include <cstdint>
#include <deque>

#include "p4r.h"
#include "requester.h"
#include "responder.h"
#include "work.h"

namespace p4r {

class Endpoint {
   public:
    explicit Endpoint(const p4r_config &config);
    Endpoint(const Endpoint &) = delete;
    Endpoint &operator=(const Endpoint &) = delete;

    // Null, or what is wrong with it.
    static const char *check(const p4r_config &config);
    const char *check(const p4r_operation &op) const;

    uint64_t post(const p4r_operation &op, int64_t now);  // checked
    void receive(const uint8_t *frame, size_t length, int64_t now);
    size_t poll(int64_t now, uint8_t *buffer, size_t stride, uint32_t *lengths, size_t max_frames);
    int64_t next_timeout() const;
    void halt() { halted_ = true; }  // from now on nothing is sent, and no buffer is read or written
    bool next_event(p4r_event *event);

    size_t frame_bytes() const { return kFrameOverhead + config_.path_mtu; }
    const p4r_counters &counters() const { return counters_; }
    p4r_progress progress() const;
    bool failed() const { return failed_; }
    uint64_t received_op() const { return received_op_; }    // the last one whose result is in place
    uint64_t completed_op() const { return completed_op_; }  // the last one that is acknowledged as well

   private:
    bool dead() const { return failed_ || halted_; }
    void on_acknowledge(const Packet &packet, int64_t now);
    void after_receiving(int64_t now);
    void complete_works();
    void fail(uint32_t code, uint32_t message, uint32_t psn, const char *text, const uint8_t *header);
    void fail_responder();

    const p4r_config config_;
    p4r_counters counters_{};
    WorkQueue works_;
    Requester requester_;
    Responder responder_;
    std::deque<p4r_event> events_;
    uint64_t next_op_ = 1;
    uint64_t received_op_ = 0, completed_op_ = 0;
    uint16_t identification_ = 0;
    bool failed_ = false, halted_ = false;
};

}  // namespace p4r
