#include "endpoint.h"

#include <algorithm>
#include <cstdio>

namespace p4r {

Endpoint::Endpoint(const p4r_config &config)
    : config_(config),
      operations_(config),
      requester_(config, operations_.works(), counters_),
      responder_(config, operations_.works(), counters_) {}

const char *Endpoint::check(const p4r_config &c) {
    if (c.path_mtu < 256 || c.path_mtu > 4096 || (c.path_mtu & (c.path_mtu - 1)))
        return "the path MTU is not 256, 512, 1024, 2048 or 4096";
    if (c.message_packets == 0 || c.message_packets > 64) return "message_packets is not between 1 and 64";
    if (c.path_mtu == kChunkBytes && c.message_packets < 2)
        return "path MTU 256 needs messages of at least 2 packets: the first one is all header";
    if (c.window == 0 || c.window > 8) return "the window is not between 1 and 8 messages";
    if (c.world_size == 0 || c.world_size > 256 || c.rank >= c.world_size) return "the rank is not below world_size";
    if (c.predecessor_rank >= c.world_size) return "the predecessor's rank is not below world_size";
    if (c.job_id > 0xffff) return "the job id does not fit 16 bits";
    if (c.qpn_in > kPsnMask || c.qpn_out > kPsnMask || c.successor_qpn > kPsnMask || c.predecessor_qpn > kPsnMask)
        return "a queue pair number does not fit 24 bits";
    if (c.psn_out > kPsnMask || c.predecessor_psn > kPsnMask) return "a PSN does not fit 24 bits";
    if (c.qpn_in == c.qpn_out) return "qpn_in and qpn_out are the same";
    if (c.rto_ns <= 0 || c.rto_max_ns < c.rto_ns) return "the retransmission timeout is not between 0 and its maximum";
    if (c.rto_low_ns < 0 || c.rto_low_ns > c.rto_ns) return "the low retransmission timeout is not between 0 and the other";
    if (c.max_burst == 0 || c.max_burst > 256) return "max_burst is not between 1 and 256";
    return nullptr;
}

uint64_t Endpoint::post(const p4r_operation &op, int64_t now) {
    const uint64_t id = operations_.post(op);
    if (!operations_.dead() && !responder_.on_post(now)) fail_responder();
    after_receiving(now);
    return id;
}

void Endpoint::receive(const uint8_t *frame, size_t length, int64_t now) {
    if (operations_.dead()) return;
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
    const uint64_t before = responder_.new_packets();
    if (!responder_.on_send(packet, now)) fail_responder();
    if (responder_.new_packets() != before) requester_.on_arrival(now);
    after_receiving(now);
}

void Endpoint::on_acknowledge(const Packet &packet, int64_t now) {
    if ((packet.syndrome & 0xe0) == 0) {
        requester_.on_ack(packet.psn, now);
    } else if ((packet.syndrome & 0xe0) == kSyndromeRnr) {
        requester_.on_rnr_nak(packet.psn, packet.syndrome & 0x1f, now);
    } else if (packet.syndrome == kNakSequenceError) {
        if (config_.selective)
            requester_.on_selective_nak(packet.psn, packet.msn, packet.run, now);
        else
            requester_.on_sequence_nak(packet.psn, now);
    } else if ((packet.syndrome & 0xe0) == kSyndromeNak) {
        char text[160];
        snprintf(text, sizeof text,
                 "the successor refused PSN %u with NAK code %u (1 invalid request, 2 remote access error, 3 remote "
                 "operational error)",
                 packet.psn, packet.syndrome & 0x1f);
        operations_.fail(P4R_REMOTE_ERROR, requester_.outbox().acked_messages(), packet.psn, text, nullptr);
    } else {
        counters_.malformed++;
    }
    operations_.report(responder_.inbox().received_op());
}

void Endpoint::after_receiving(int64_t now) {
    const Inbox &inbox = responder_.inbox();
    requester_.on_received(inbox.delivered(), inbox.last_was_result(), now);
    operations_.report(inbox.received_op());
}

size_t Endpoint::poll(int64_t now, uint8_t *buffer, size_t stride, uint32_t *lengths, size_t max_frames) {
    if (operations_.dead()) return 0;
    responder_.on_time(now);
    if (!requester_.on_time(now)) {
        char text[200];
        const uint32_t ip = config_.successor_ip;
        snprintf(text, sizeof text,
                 "no acknowledgement from the successor %u.%u.%u.%u (QP 0x%06x) for message %u, PSN %u after %u "
                 "retransmissions in a row",
                 ip >> 24, ip >> 16 & 255, ip >> 8 & 255, ip & 255, config_.successor_qpn,
                 requester_.outbox().acked_messages(), requester_.first_unacked_psn(), config_.retry_limit);
        operations_.fail(P4R_RETRY_LIMIT, requester_.outbox().acked_messages(), requester_.first_unacked_psn(), text, nullptr);
        return 0;
    }
    size_t frames = 0;
    while (frames < max_frames && responder_.wants_to_answer()) {
        const size_t length = responder_.write_answer(buffer + frames * stride, identification_++);
        lengths[frames++] = static_cast<uint32_t>(length);
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
    if (operations_.dead()) return P4R_NEVER;
    return std::min(requester_.next_timeout(), responder_.next_timeout());
}

p4r_progress Endpoint::progress() const {
    p4r_progress p{};
    p.posted_messages = operations_.works().next_message();
    p.sent_messages = requester_.outbox().next_message();
    p.acked_messages = requester_.outbox().acked_messages();
    p.received_messages = responder_.inbox().delivered();
    p.first_unacked_psn = requester_.first_unacked_psn();
    p.next_psn = requester_.next_psn();
    p.expected_psn = responder_.expected_psn();
    p.timeouts_in_a_row = requester_.timeouts_in_a_row();
    p.oldest_unacked_since_ns = requester_.oldest_unacked_since();
    p.operations = static_cast<uint32_t>(operations_.works().size());
    p.failed = operations_.failed() ? 1 : 0;
    p.numbered = operations_.works().numbered();
    return p;
}

void Endpoint::describe(StateWriter &state) const {
    operations_.describe(state);
    requester_.describe(state);
    responder_.describe(state);
}

void Endpoint::fail_responder() {
    operations_.fail(responder_.fault(), responder_.inbox().delivered(), responder_.expected_psn());
}

}  // namespace p4r
