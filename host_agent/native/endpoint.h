// One worker's two queue pairs and its operations: frames and the time in, frames and events out.
#pragma once

#include <cstdint>

#include "operations.h"
#include "p4r.h"
#include "requester.h"
#include "responder.h"

namespace p4r {

class Endpoint {
   public:
    explicit Endpoint(const p4r_config &config);
    Endpoint(const Endpoint &) = delete;
    Endpoint &operator=(const Endpoint &) = delete;

    // Null, or what is wrong with it.
    static const char *check(const p4r_config &config);

    uint64_t post(const p4r_operation &op, int64_t now);  // checked
    void receive(const uint8_t *frame, size_t length, int64_t now);
    size_t poll(int64_t now, uint8_t *buffer, size_t stride, uint32_t *lengths, size_t max_frames);
    int64_t next_timeout() const;

    size_t frame_bytes() const { return kFrameOverhead + config_.path_mtu; }
    const p4r_counters &counters() const { return counters_; }
    p4r_progress progress() const;
    void describe(StateWriter &state) const;
    Operations &operations() { return operations_; }

   private:
    void on_acknowledge(const Packet &packet, int64_t now);
    void after_receiving(int64_t now);
    void fail_responder();

    const p4r_config config_;
    p4r_counters counters_{};
    Operations operations_;
    Requester requester_;
    Responder responder_;
    uint16_t identification_ = 0;
};

}  // namespace p4r
