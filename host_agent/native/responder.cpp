#include "responder.h"

#include <algorithm>

namespace p4r {
namespace {

constexpr int64_t kFirstGapIntervalNs = 10'000'000;
constexpr int64_t kShortestGapIntervalNs = 1'000'000;
constexpr uint8_t kRnrTimerCode = 12;  // 0.64 ms

}  // namespace

// A gap is answered with one NAK, as the specification asks. If the resent packet is lost as well, a standard requester
// notices only at its timeout; so while it is known that later packets were sent (`gap_`), a timer repeats the NAK.

Responder::Responder(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      counters_(counters),
      template_(config.own_mac, config.own_ip, config.predecessor_mac, config.predecessor_ip,
                config.predecessor_qpn, source_port(config.predecessor_qpn)),
      inbox_(config, works, counters),
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
    if (first == inbox_.in_message())
        return fault().set(P4R_BAD_SEQUENCE, nullptr, "the predecessor %s (PSN %u, opcode 0x%02x)",
                           first ? "began a message inside another" : "continued a message that it had not begun",
                           packet.psn, packet.opcode);
    if (first) {
        switch (inbox_.begin(packet.payload, packet.payload_bytes)) {
            case Inbox::Begun::kYes:
                break;
            case Inbox::Begun::kFault:
                return false;
            case Inbox::Begun::kNoRoom:
                answer_ = Answer::kNotReady;
                not_ready_ = true;
                nak_sent_ = gap_ = false;
                return true;
        }
    }
    if (inbox_.in_result() && !packet.summed)
        return fault().set(P4R_NOT_A_RESULT, nullptr,
                           "PSN %u of message %u has not been summed: no switch on the path aggregated it (was it "
                           "restarted, or is the P4 program no longer loaded?)",
                           packet.psn, inbox_.accepted());
    if (!inbox_.add(packet.payload, packet.payload_bytes, last)) return false;

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

    msn_ = psn_add(msn_, 1);
    return inbox_.end();
}

bool Responder::on_post() {
    if (!inbox_.on_post()) return false;
    // Room for what was turned away. An acknowledgement of the past means nothing to an ordinary requester;
    // ours ends its wait.
    if (not_ready_ && inbox_.has_room() && answer_ == Answer::kNone) answer_ = Answer::kAck;
    return true;
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

}  // namespace p4r
