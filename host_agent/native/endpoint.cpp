#include "endpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace p4r {

Endpoint::Endpoint(const p4r_config &config)
    : config_(config), requester_(config, works_, counters_), responder_(config, works_, counters_) {}

const char *Endpoint::check(const p4r_config &c) {
    if (c.path_mtu < 256 || c.path_mtu > 4096 || (c.path_mtu & (c.path_mtu - 1)))
        return "the path MTU is not 256, 512, 1024, 2048 or 4096";
    if (c.message_packets == 0 || c.message_packets > 64) return "message_packets is not between 1 and 64";
    if (c.path_mtu == kChunkBytes && c.message_packets < 2)
        return "path MTU 256 needs messages of at least 2 packets: the first one is all header";
    if (c.window == 0 || c.window > 8) return "the window is not between 1 and 8 messages";
    if (c.world_size == 0 || c.world_size > 256 || c.rank >= c.world_size) return "the rank is not below world_size";
    if (c.job_id > 0xffff) return "the job id does not fit 16 bits";
    if (c.qpn_in > kPsnMask || c.qpn_out > kPsnMask || c.successor_qpn > kPsnMask || c.predecessor_qpn > kPsnMask)
        return "a queue pair number does not fit 24 bits";
    if (c.psn_out > kPsnMask || c.predecessor_psn > kPsnMask) return "a PSN does not fit 24 bits";
    if (c.qpn_in == c.qpn_out) return "qpn_in and qpn_out are the same";
    if (c.rto_ns <= 0 || c.rto_max_ns < c.rto_ns) return "the retransmission timeout is not between 0 and its maximum";
    if (c.max_burst == 0 || c.max_burst > 256) return "max_burst is not between 1 and 256";
    return nullptr;
}

const char *Endpoint::check(const p4r_operation &op) const {
    if (op.switch_op > P4R_MAX) return "switch_op is not PASS, SUM or MAX";
    if (op.element_type > P4R_BFLOAT16) return "the element type is unknown";
    if (op.arrival > P4R_FOLD_MIN) return "arrival is not STORE, SUM, MAX or MIN";
    if (op.divisor == 0) return "the divisor is 0";
    static constexpr uint8_t kSizes[] = {0, 4, 4, 2, 2};
    if (op.element_type == P4R_RAW) {
        if (is_aggregated(op)) return "raw bytes cannot be aggregated: the element type is missing";
        if (op.arrival != P4R_STORE) return "raw bytes cannot be folded: the element type is missing";
        if (op.element_size != 1 && op.element_size != 2 && op.element_size != 4 && op.element_size != 8)
            return "the element size is not 1, 2, 4 or 8 bytes";
    } else if (op.element_size != kSizes[op.element_type]) {
        return "the element size is not that of the element type";
    }
    if (op.cut_elements < op.send_elements || op.cut_elements < op.receive_elements)
        return "cut_elements is less than what is sent or received";
    if (is_aggregated(op) && (op.send_elements != op.cut_elements || op.receive_elements != op.cut_elements))
        return "an aggregated tensor is sent and received whole";
    if (op.cut_elements > 0xffffffff) return "more than 2^32 - 1 elements";
    if (op.send_elements != 0 && op.send == nullptr) return "there is no send buffer";
    return nullptr;
}

uint64_t Endpoint::post(const p4r_operation &op, int64_t now) {
    Work work;
    work.op = op;
    work.id = next_op_++;
    work.first_message = works_.next_message();
    const uint32_t data_bytes = config_.path_mtu * config_.message_packets - kChunkBytes;
    work.message_elements = data_bytes / wire_element_bytes(op);
    const uint64_t messages = (op.cut_elements + work.message_elements - 1) / work.message_elements;
    work.messages = std::max<uint32_t>(1, static_cast<uint32_t>(messages));
    works_.push(work);
    if (!dead() && !responder_.on_post()) fail_responder();
    after_receiving(now);
    return work.id;
}

void Endpoint::receive(const uint8_t *frame, size_t length, int64_t now) {
    if (dead()) return;
    Packet packet;
    switch (parse_frame(frame, length, config_.check_icrc != 0, &packet)) {
        case Parsed::kOk:
            break;
        case Parsed::kMalformed:
            counters_.malformed++;
            return;
        case Parsed::kForeign:
            counters_.foreign++;
            return;
        case Parsed::kBadIcrc:
            counters_.icrc_errors++;
            return;
    }
    const bool acknowledge = packet.opcode == kAcknowledge;
    const uint32_t peer = acknowledge ? config_.successor_ip : config_.predecessor_ip;
    const uint32_t qpn = acknowledge ? config_.qpn_out : config_.qpn_in;
    if (packet.destination_ip != config_.own_ip || packet.source_ip != peer || packet.destination_qpn != qpn) {
        counters_.foreign++;
        return;
    }
    if (counters_.first_received_ns == 0) counters_.first_received_ns = now;
    counters_.last_received_ns = now;
    if (acknowledge) {
        on_acknowledge(packet, now);
        return;
    }
    if (!responder_.on_send(packet, now)) fail_responder();
    after_receiving(now);
}

void Endpoint::on_acknowledge(const Packet &packet, int64_t now) {
    if ((packet.syndrome & 0xe0) == 0) {
        requester_.on_ack(packet.psn, now);
    } else if ((packet.syndrome & 0xe0) == kSyndromeRnr) {
        requester_.on_rnr_nak(packet.psn, packet.syndrome & 0x1f, now);
    } else if (packet.syndrome == kNakSequenceError) {
        requester_.on_sequence_nak(packet.psn, now);
    } else if ((packet.syndrome & 0xe0) == kSyndromeNak) {
        char text[160];
        snprintf(text, sizeof text,
                 "the successor refused PSN %u with NAK code %u (1 invalid request, 2 remote access error, 3 remote "
                 "operational error)",
                 packet.psn, packet.syndrome & 0x1f);
        fail(P4R_REMOTE_ERROR, requester_.acked_messages(), packet.psn, text, nullptr);
    } else {
        counters_.malformed++;
    }
    complete_works();
}

void Endpoint::after_receiving(int64_t now) {
    requester_.on_received(responder_.received_messages(), responder_.last_was_result(), now);
    complete_works();
}

void Endpoint::complete_works() {
    const auto report = [this](uint32_t type, uint64_t id) {
        p4r_event event{};
        event.type = type;
        event.op_id = id;
        events_.push_back(event);
    };
    while (received_op_ < responder_.received_op()) report(P4R_EVENT_RECEIVED, ++received_op_);
    while (!works_.empty()) {
        const Work &work = works_.front();
        if (work.acked != work.messages || work.received != work.messages) break;
        completed_op_ = work.id;
        report(P4R_EVENT_COMPLETED, work.id);
        works_.pop_front();
    }
}

size_t Endpoint::poll(int64_t now, uint8_t *buffer, size_t stride, uint32_t *lengths, size_t max_frames) {
    if (dead()) return 0;
    responder_.on_time(now);
    if (!requester_.on_time(now)) {
        char text[200];
        const uint32_t ip = config_.successor_ip;
        snprintf(text, sizeof text,
                 "no acknowledgement from the successor %u.%u.%u.%u (QP 0x%06x) for message %u, PSN %u after %u "
                 "retransmissions in a row",
                 ip >> 24, ip >> 16 & 255, ip >> 8 & 255, ip & 255, config_.successor_qpn,
                 requester_.acked_messages(), requester_.first_unacked_psn(), config_.retry_limit);
        fail(P4R_RETRY_LIMIT, requester_.acked_messages(), requester_.first_unacked_psn(), text, nullptr);
        return 0;
    }
    size_t frames = 0;
    if (frames < max_frames && responder_.wants_to_answer()) {
        lengths[frames++] = static_cast<uint32_t>(responder_.write_answer(buffer, identification_++));
    }
    for (; frames < max_frames; frames++) {
        const size_t length = requester_.next_frame(buffer + frames * stride, now, identification_);
        if (length == 0) break;
        identification_++;
        lengths[frames] = static_cast<uint32_t>(length);
    }
    if (frames != 0) {
        if (counters_.first_sent_ns == 0) counters_.first_sent_ns = now;
        counters_.last_sent_ns = now;
    }
    return frames;
}

int64_t Endpoint::next_timeout() const {
    if (dead()) return P4R_NEVER;
    return std::min(requester_.next_timeout(), responder_.next_timeout());
}

bool Endpoint::next_event(p4r_event *event) {
    if (events_.empty()) return false;
    *event = events_.front();
    events_.pop_front();
    return true;
}

p4r_progress Endpoint::progress() const {
    p4r_progress p{};
    p.posted_messages = works_.next_message();
    p.sent_messages = requester_.next_message();
    p.acked_messages = requester_.acked_messages();
    p.received_messages = responder_.received_messages();
    p.first_unacked_psn = requester_.first_unacked_psn();
    p.next_psn = requester_.next_psn();
    p.expected_psn = responder_.expected_psn();
    p.timeouts_in_a_row = requester_.timeouts_in_a_row();
    p.oldest_unacked_since_ns = requester_.oldest_unacked_since();
    p.operations = static_cast<uint32_t>(works_.size());
    p.failed = failed_ ? 1 : 0;
    return p;
}

void Endpoint::fail_responder() {
    const Fault &fault = responder_.fault();
    fail(fault.code, responder_.received_messages(), responder_.expected_psn(), fault.text,
         fault.has_header ? fault.header : nullptr);
}

void Endpoint::fail(uint32_t code, uint32_t message, uint32_t psn, const char *text, const uint8_t *header) {
    if (failed_) return;
    failed_ = true;
    p4r_event event{};
    event.type = P4R_EVENT_FAILED;
    event.code = code;
    event.message = message;
    event.psn = psn;
    snprintf(event.text, sizeof event.text, "%s", text);
    if (header != nullptr) {
        event.header_bytes = sizeof event.header;
        memcpy(event.header, header, sizeof event.header);
    }
    events_.push_back(event);
}

}  // namespace p4r
