#include "responder.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "quantise.h"

namespace p4r {
namespace {

constexpr int64_t kFirstGapIntervalNs = 10'000'000;
constexpr int64_t kShortestGapIntervalNs = 1'000'000;
constexpr uint8_t kRnrTimerCode = 12;  // 0.64 ms

struct Field {
    const char *name;
    uint32_t received, posted;
};

}  // namespace

// A gap is answered with one NAK, as the specification asks. If the resent packet is lost as well, a standard requester
// notices only at its timeout; so while it is known that later packets were sent (`gap_`), a timer repeats the NAK.

Responder::Responder(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      works_(works),
      counters_(counters),
      template_(config.own_mac, config.own_ip, config.predecessor_mac, config.predecessor_ip,
                config.predecessor_qpn, source_port(config.predecessor_qpn)),
      predecessor_rank_((config.rank + config.world_size - 1) % config.world_size),
      largest_{0, config.path_mtu * config.message_packets, config.message_packets},
      expected_(config.predecessor_psn),
      gap_interval_(kFirstGapIntervalNs) {}

bool Responder::on_send(const Packet &packet, int64_t now) {
    counters_.data_packets_received++;
    counters_.data_bytes_received += packet.payload_bytes + kFrameOverhead;
    const int32_t ahead = psn_diff(packet.psn, expected_);
    if (ahead == 0) return accept(packet, now);
    if (ahead < 0) {
        counters_.duplicates_received++;
        if (answer_ == Answer::kNone) answer_ = Answer::kAck;
        return true;
    }
    counters_.out_of_order_received++;
    // The predecessor has at most 2W messages unacknowledged: what is farther ahead was not sent by it.
    if (static_cast<uint32_t>(ahead) <= 2 * config_.window * config_.message_packets) on_gap(packet.psn, now);
    return true;
}

void Responder::on_gap(uint32_t psn, int64_t now) {
    if (not_ready_) return;  // it will come back by itself
    if (!gap_ || psn_diff(psn, highest_) > 0) highest_ = psn;
    if (!gap_) gap_timer_at_ = now + gap_interval_;
    gap_ = true;
    if (nak_sent_) return;
    nak_sent_ = true;
    nak_at_ = now;
    gap_timer_at_ = now + gap_interval_;
    answer_ = Answer::kSequenceNak;
}

void Responder::on_time(int64_t now) {
    if (!gap_ || now < gap_timer_at_) return;
    gap_interval_ = std::min(2 * gap_interval_, config_.rto_max_ns);
    gap_timer_at_ = now + gap_interval_;
    if (!nak_sent_) nak_at_ = now;
    nak_sent_ = true;
    answer_ = Answer::kSequenceNak;
}

int64_t Responder::next_timeout() const { return gap_ ? gap_timer_at_ : P4R_NEVER; }

bool Responder::accept(const Packet &packet, int64_t now) {
    const bool first = packet.opcode == kSendFirst || packet.opcode == kSendOnly;
    const bool last = packet.opcode == kSendLast || packet.opcode == kSendOnly;
    if (first == in_message_)
        return fail(P4R_BAD_SEQUENCE, nullptr, "the predecessor %s (PSN %u, opcode 0x%02x)",
                    first ? "began a message inside another" : "continued a message that it had not begun",
                    packet.psn, packet.opcode);
    if (first) {
        bool ready = true;
        if (!begin_message(packet, &ready)) return false;
        if (!ready) {
            answer_ = Answer::kNotReady;
            not_ready_ = true;
            nak_sent_ = gap_ = false;
            return true;
        }
    }
    if (work_ != nullptr && is_aggregated(work_->op) && !packet.summed)
        return fail(P4R_NOT_A_RESULT, nullptr,
                    "PSN %u of message %u has not been summed: no switch on the path aggregated it (was it restarted, "
                    "or is the P4 program no longer loaded?)",
                    packet.psn, accepted_);
    if (!check_length(packet, last)) return false;
    if (work_ != nullptr) {
        deliver(*work_, accepted_ - work_->first_message, offset_, packet.payload, packet.payload_bytes);
    } else {
        std::vector<uint8_t> &payload = early_.back().payload;
        payload.insert(payload.end(), packet.payload, packet.payload + packet.payload_bytes);
    }
    offset_ += packet.payload_bytes;

    if (nak_sent_) nak_delay_ = nak_delay_ == 0 ? now - nak_at_ : nak_delay_ + (now - nak_at_ - nak_delay_) / 8;
    expected_ = psn_add(expected_, 1);
    nak_sent_ = not_ready_ = false;
    gap_ = gap_ && psn_diff(highest_, expected_) >= 0;
    gap_interval_ = nak_delay_ == 0 ? kFirstGapIntervalNs
                                    : std::clamp(4 * nak_delay_, kShortestGapIntervalNs,
                                                 std::max(kShortestGapIntervalNs, config_.rto_max_ns));
    gap_timer_at_ = now + gap_interval_;
    if (last || packet.ack_request || answer_ != Answer::kNone) answer_ = Answer::kAck;
    if (!last) return true;

    in_message_ = false;
    accepted_++;
    msn_ = psn_add(msn_, 1);
    if (work_ == nullptr) return deliver_early();
    end_message(*work_);
    return true;
}

bool Responder::begin_message(const Packet &packet, bool *ready) {
    if (packet.payload_bytes < kChunkBytes)
        return fail(P4R_BAD_SEQUENCE, nullptr, "the first packet of message %u holds %u bytes, less than its header",
                    accepted_, packet.payload_bytes);
    const AggregationHeader header = read_header(packet.payload);
    if (!check_header(header, packet.payload)) return false;
    Work *work = early_.empty() ? works_.find(accepted_) : nullptr;
    if (work != nullptr) {
        if (!check_shape(header, *work, packet.payload)) return false;
    } else {
        if (header.switch_op != P4R_PASS)
            return fail(P4R_WRONG_MESSAGE, packet.payload,
                        "an aggregated message %u arrived that this worker has not contributed to", accepted_);
        if (accepted_ - delivered_ >= config_.window) {
            *ready = false;
            return true;
        }
        early_.push_back({header, {}});
        early_.back().payload.reserve(largest_.payload_bytes);
        counters_.early_messages++;
    }
    header_ = header;
    work_ = work;
    offset_ = 0;
    in_message_ = true;
    return true;
}

bool Responder::check_header(const AggregationHeader &header, const uint8_t *chunk) {
    if (header.magic != kMagic || header.version != kVersion)
        return fail(P4R_BAD_HEADER, chunk,
                    "message %u has no aggregation header of version %u (magic 0x%08x, version %u): the predecessor "
                    "runs another version, or something else sends to this QP",
                    accepted_, kVersion, header.magic, header.version);
    if (header.job_id != config_.job_id || header.generation != config_.generation ||
        header.rank != predecessor_rank_)
        return fail(P4R_FOREIGN, chunk,
                    "message %u is of job %u, generation %u, rank %u; expected job %u, generation %u, rank %u",
                    accepted_, header.job_id, header.generation, header.rank, config_.job_id, config_.generation,
                    predecessor_rank_);
    if (header.message != accepted_)
        return fail(P4R_WRONG_MESSAGE, chunk, "message %u arrived where message %u was expected", header.message,
                    accepted_);
    if (header.flags & kFlagMismatch)
        return fail(P4R_MISMATCH, chunk,
                    "the workers do not agree on message %u (operation, element type, reduction, element count or "
                    "collective): they called different collectives, or with different sizes or types",
                    accepted_);
    if (header.switch_op != P4R_PASS && !(header.flags & kFlagResult))
        return fail(P4R_NOT_A_RESULT, chunk,
                    "message %u is rank %u's own contribution, not a result: no switch on the path aggregated it "
                    "(is the P4 program loaded and the job's flow installed?)",
                    accepted_, header.rank);
    return true;
}

bool Responder::check_shape(const AggregationHeader &header, const Work &work, const uint8_t *chunk) {
    const uint32_t elements = work.receive_elements(header.message - work.first_message);
    const MessageShape shape = shape_message(elements, wire_element_bytes(work.op), config_.path_mtu);
    const Field fields[] = {
        {"operation", header.switch_op, work.op.switch_op},
        {"element type", header.element_type, work.op.element_type},
        {"reduction", header.reduction, work.op.reduction},
        {"collective number", header.collective, work.op.collective},
        {"tensor size", header.total_elements, work.op.total_elements},
        {"element count", header.elements, elements},
        {"packet count", header.packets, shape.packets},
    };
    for (const Field &field : fields)
        if (field.received != field.posted)
            return fail(P4R_WRONG_SHAPE, chunk, "message %u has %s %u where this worker expects %u", header.message,
                        field.name, field.received, field.posted);
    return true;
}

bool Responder::check_length(const Packet &packet, bool last) {
    const uint32_t index = offset_ / config_.path_mtu;
    bool right = last ? packet.payload_bytes != 0 && packet.payload_bytes % kChunkBytes == 0 &&
                            packet.payload_bytes <= config_.path_mtu
                      : packet.payload_bytes == config_.path_mtu;
    right = right && offset_ + packet.payload_bytes <= largest_.payload_bytes;
    right = right && (index + 1 == header_.packets) == last;
    if (right && work_ != nullptr) {
        const uint32_t elements = work_->receive_elements(accepted_ - work_->first_message);
        const MessageShape shape = shape_message(elements, wire_element_bytes(work_->op), config_.path_mtu);
        right = packet.payload_bytes == shape.packet_bytes(index, config_.path_mtu);
    }
    if (right) return true;
    return fail(P4R_BAD_SEQUENCE, nullptr,
                "packet %u of %u of message %u (PSN %u, opcode 0x%02x) holds %u bytes: not what path MTU %u gives",
                index, header_.packets, accepted_, packet.psn, packet.opcode, packet.payload_bytes, config_.path_mtu);
}

void Responder::deliver(Work &work, uint32_t message_index, uint32_t offset, const uint8_t *payload,
                        uint32_t bytes) {
    const p4r_operation &op = work.op;
    const uint32_t element_bytes = wire_element_bytes(op);
    uint32_t start = 0;
    if (offset == 0) {
        payload += kChunkBytes;
        bytes -= kChunkBytes;
    } else {
        start = (offset - kChunkBytes) / element_bytes;
    }
    const uint32_t elements = work.receive_elements(message_index);
    const uint32_t count = std::min(bytes / element_bytes, elements > start ? elements - start : 0);
    if (count == 0 || op.receive == nullptr) return;
    uint8_t *target = static_cast<uint8_t *>(op.receive) + (work.offset(message_index) + start) * op.element_size;
    if (is_aggregated(op))
        decode_lanes(op.element_type, is_ordered(op), payload, count, target, op.exponent, op.divisor, op.invert != 0);
    else if (op.arrival == P4R_STORE)
        memcpy(target, payload, size_t{count} * element_bytes);
    else
        fold(op.arrival, op.element_type, target, payload, count);
}

bool Responder::on_post() {
    if (!deliver_early()) return false;
    // Room for what was turned away. An acknowledgement of the past means nothing to an ordinary requester;
    // ours ends its wait.
    if (not_ready_ && accepted_ - delivered_ < config_.window && answer_ == Answer::kNone) answer_ = Answer::kAck;
    return true;
}

bool Responder::deliver_early() {
    while (delivered_ != accepted_) {
        Work *work = works_.find(delivered_);
        if (work == nullptr) return true;
        const Early &early = early_.front();
        const uint32_t index = delivered_ - work->first_message;
        if (!check_shape(early.header, *work, early.payload.data())) return false;
        const MessageShape shape =
            shape_message(work->receive_elements(index), wire_element_bytes(work->op), config_.path_mtu);
        const uint32_t bytes = static_cast<uint32_t>(early.payload.size());
        if (bytes != shape.payload_bytes)
            return fail(P4R_BAD_SEQUENCE, early.payload.data(), "message %u holds %u bytes where %u were expected",
                        delivered_, bytes, shape.payload_bytes);
        deliver(*work, index, 0, early.payload.data(), bytes);
        early_.pop_front();
        end_message(*work);
    }
    return true;
}

void Responder::end_message(Work &work) {
    work.received++;
    delivered_++;
    counters_.messages_received++;
    last_was_result_ = is_aggregated(work.op);
    if (last_was_result_) counters_.results_received++;
    if (work.received == work.messages) received_op_ = work.id;
}

size_t Responder::write_answer(uint8_t *frame, uint16_t identification) {
    const Answer answer = answer_;
    answer_ = Answer::kNone;
    switch (answer) {
        case Answer::kAck:
            counters_.acks_sent++;
            return template_.write_acknowledge(frame, kSyndromeAck, psn_add(expected_, kPsnMask), msn_, identification);
        case Answer::kSequenceNak:
            counters_.naks_sent++;
            return template_.write_acknowledge(frame, kNakSequenceError, expected_, msn_, identification);
        case Answer::kNotReady:
            counters_.rnr_naks_sent++;
            return template_.write_acknowledge(frame, kSyndromeRnr | kRnrTimerCode, expected_, msn_, identification);
        case Answer::kNone:
            break;
    }
    return 0;
}

bool Responder::fail(uint32_t code, const uint8_t *chunk, const char *format, ...) {
    fault_.code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault_.text, sizeof fault_.text, format, arguments);
    va_end(arguments);
    fault_.has_header = chunk != nullptr;
    if (chunk != nullptr) memcpy(fault_.header, chunk, sizeof fault_.header);
    return false;
}

}  // namespace p4r
