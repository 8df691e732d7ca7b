#include "messages.h"

#include <algorithm>

#include "frame.h"
#include "psn.h"

namespace p4r {

Messages::Messages(const p4r_config &config)
    : config_(config),
      operations_(config),
      outbox_(config, operations_.works(), counters_),
      inbox_(config, operations_.works(), counters_),
      unacked_psn_(config.psn_out),
      next_psn_(config.psn_out),
      expected_psn_(config.predecessor_psn) {}

uint64_t Messages::post(const p4r_operation &op) {
    const uint64_t id = operations_.post(op);
    if (!operations_.dead() && !inbox_.on_post()) operations_.fail(inbox_.fault(), inbox_.delivered(), expected_psn_);
    after_receiving();
    return id;
}

void Messages::after_receiving() {
    outbox_.on_received(inbox_.delivered());
    operations_.report(inbox_.received_op());
}

uint64_t Messages::frame_bytes(uint64_t payload_bytes, uint32_t packets) const {
    return payload_bytes + uint64_t{packets} * kFrameOverhead;
}

size_t Messages::next_send(uint8_t *buffer, size_t capacity, int64_t now) {
    Outgoing next;
    if (operations_.dead() || capacity < message_bytes() || !outbox_.start(&next)) return 0;
    outbox_.write(next, 0, next.shape.payload_bytes, buffer);
    sent_.push_back(next);
    next_psn_ = psn_add(next_psn_, next.shape.packets);
    counters_.data_packets_sent += next.shape.packets;
    counters_.data_bytes_sent += frame_bytes(next.shape.payload_bytes, next.shape.packets);
    if (counters_.first_sent_ns == 0) counters_.first_sent_ns = now;
    counters_.last_sent_ns = now;
    return next.shape.payload_bytes;
}

void Messages::acknowledged() {
    if (operations_.dead() || sent_.empty()) return;
    unacked_psn_ = psn_add(unacked_psn_, sent_.front().shape.packets);
    outbox_.acknowledged(sent_.front());
    sent_.pop_front();
    operations_.report(inbox_.received_op());
}

Messages::Taken Messages::receive(const uint8_t *payload, size_t bytes, int64_t now) {
    if (operations_.dead()) return Taken::kDead;
    const auto fault = [this] {
        operations_.fail(inbox_.fault(), inbox_.delivered(), expected_psn_);
        return Taken::kDead;
    };
    const auto length = static_cast<uint32_t>(std::min<size_t>(bytes, UINT32_MAX));
    switch (inbox_.begin(payload, length)) {
        case Inbox::Begun::kYes:
            break;
        case Inbox::Begun::kNoRoom:
            return Taken::kNotReady;
        case Inbox::Begun::kFault:
            return fault();
    }
    uint32_t packets = 0;
    for (uint32_t offset = 0; offset < length; packets++) {
        const uint32_t part = std::min(config_.path_mtu, length - offset);
        if (!inbox_.add(payload + offset, part, offset + part == length)) return fault();
        offset += part;
    }
    expected_psn_ = psn_add(expected_psn_, packets);
    counters_.data_packets_received += packets;
    counters_.data_bytes_received += frame_bytes(length, packets);
    if (counters_.first_received_ns == 0) counters_.first_received_ns = now;
    counters_.last_received_ns = now;
    if (!inbox_.end()) return fault();
    after_receiving();
    return Taken::kYes;
}

void Messages::fail(uint32_t code, const char *text) {
    operations_.fail(code, outbox_.acked_messages(), unacked_psn_, text, nullptr);
}

p4r_progress Messages::progress() const {
    p4r_progress p{};
    p.posted_messages = operations_.works().next_message();
    p.sent_messages = outbox_.next_message();
    p.acked_messages = outbox_.acked_messages();
    p.received_messages = inbox_.delivered();
    p.first_unacked_psn = unacked_psn_;
    p.next_psn = next_psn_;
    p.expected_psn = expected_psn_;
    p.operations = static_cast<uint32_t>(operations_.works().size());
    p.failed = operations_.failed() ? 1 : 0;
    p.numbered = operations_.works().numbered();
    return p;
}

void Messages::describe(StateWriter &state) const {
    operations_.describe(state);
    outbox_.describe(state);
    inbox_.describe(state);
    state.number(unacked_psn_).number(next_psn_).number(expected_psn_).number(sent_.size());
}

}  // namespace p4r
