#include "responder.h"

#include <algorithm>

namespace p4r {
namespace {

constexpr int64_t kFirstGapIntervalNs = 10'000'000;
constexpr int64_t kShortestGapIntervalNs = 1'000'000;
constexpr uint8_t kRnrTimerCode = 12;  // 0.64 ms
constexpr size_t kMostRuns = 16;       // told of at once
constexpr size_t kRankOffset = 16;     // in the aggregation header

}  // namespace

// A gap is answered with one NAK, as the specification asks. If the resent packet is lost as well, a standard requester
// notices only at its timeout; so while it is known that later packets were sent (`gap_`), a timer repeats the NAK.
//
// Selective: what is behind the gap is kept and accepted when the gap is filled. Every packet there is told of by a NAK,
// those that came one after the other by one. By the window rules no packet can be farther ahead than W messages:
// the predecessor sends m when it has the result of m - W, or when its own m - W is acknowledged, and either is behind us.

Responder::Responder(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      counters_(counters),
      template_(config.own_mac, config.own_ip, config.predecessor_mac, config.predecessor_ip,
                config.predecessor_qpn, source_port(config.predecessor_qpn)),
      inbox_(config, works, counters),
      expected_(config.predecessor_psn),
      gap_interval_(kFirstGapIntervalNs),
      kept_(config.selective ? config.window * config.message_packets : 0, config.path_mtu) {}

bool Responder::on_send(const Packet &packet, int64_t now) {
    counters_.data_packets_received++;
    counters_.data_bytes_received += packet.payload_bytes + kFrameOverhead;
    const int32_t ahead = psn_diff(packet.psn, expected_);
    if (ahead == 0) return accept(packet, now) && accept_kept(now);
    if (ahead < 0) {
        counters_.duplicates_received++;
        if (answer_ == Answer::kNone) answer_ = Answer::kAck;
        return true;
    }
    counters_.out_of_order_received++;
    if (config_.selective) {
        if (static_cast<uint32_t>(ahead) < kept_.packets()) keep(packet, now);
        return true;
    }
    // The predecessor has at most 2W messages unacknowledged: what is farther ahead was not sent by it.
    if (static_cast<uint32_t>(ahead) <= 2 * config_.window * config_.message_packets) on_gap(packet.psn, now);
    return true;
}

void Responder::on_gap(uint32_t psn, int64_t now) {
    if (not_ready_ && !config_.selective) return;  // it will come back by itself
    if (!gap_ || psn_diff(psn, highest_) > 0) highest_ = psn;
    if (!gap_) gap_timer_at_ = now + gap_interval_;
    gap_ = true;
    if (not_ready_ || nak_sent_) return;
    nak_sent_ = true;
    nak_at_ = now;
    gap_timer_at_ = now + gap_interval_;
    answer_ = Answer::kSequenceNak;
}

void Responder::keep(const Packet &packet, int64_t now) {
    if (!kept_.has(packet.psn)) {
        if (!kept_.keep(packet)) {
            counters_.malformed++;
            return;
        }
        counters_.kept_packets++;
        new_packets_++;
    }
    on_gap(packet.psn, now);
    if (not_ready_) return;
    tell(packet.psn);  // also once more: what it was told of may be lost
    answer_ = Answer::kSequenceNak;
}

void Responder::tell(uint32_t psn) {
    if (!runs_.empty() && psn == psn_add(runs_.back().last, 1) &&
        psn_diff(psn, runs_.back().first) <= static_cast<int32_t>(kLongestRun)) {
        runs_.back().last = psn;
        return;
    }
    if (runs_.size() == kMostRuns) runs_.pop_front();
    runs_.push_back({psn, psn});
}

void Responder::tell_all() {
    runs_.clear();
    for (uint32_t psn = expected_; psn_diff(psn, highest_) <= 0; psn = psn_add(psn, 1))
        if (kept_.has(psn)) tell(psn);
}

void Responder::on_time(int64_t now) {
    if (!gap_ || not_ready_ || now < gap_timer_at_) return;
    gap_interval_ = std::min(2 * gap_interval_, config_.rto_max_ns);
    gap_timer_at_ = now + gap_interval_;
    if (!nak_sent_) nak_at_ = now;
    nak_sent_ = true;
    answer_ = Answer::kSequenceNak;
    if (config_.selective) tell_all();
}

int64_t Responder::next_timeout() const { return gap_ && !not_ready_ ? gap_timer_at_ : P4R_NEVER; }

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
                nak_sent_ = false;
                if (config_.selective) {
                    kept_.keep(packet);
                } else {
                    gap_ = false;
                }
                return true;
        }
    }
    if (inbox_.in_result() && !packet.summed)
        return fault().set(P4R_NOT_A_RESULT, nullptr,
                           "PSN %u of message %u has not been summed: no switch on the path aggregated it (was it "
                           "restarted, or is the P4 program no longer loaded?)",
                           packet.psn, inbox_.accepted());
    if (!inbox_.add(packet.payload, packet.payload_bytes, last)) return false;

    if (kept_.has(expected_)) kept_.drop(expected_);
    if (nak_sent_) {
        const int64_t delay = std::min(now - nak_at_, config_.rto_max_ns);  // longer is no other answer
        nak_delay_ = nak_delay_ == 0 ? delay : nak_delay_ + (delay - nak_delay_) / 8;
    }
    expected_ = psn_add(expected_, 1);
    new_packets_++;
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

// After the packet that was awaited, or after a post: the kept ones that follow.
bool Responder::accept_kept(int64_t now) {
    if (!config_.selective) return true;
    const bool gap = gap_ || !runs_.empty();
    while (const Packet *packet = kept_.find(expected_)) {
        if (!accept(*packet, now)) return false;
        if (not_ready_) {
            runs_.clear();
            return true;
        }
    }
    const auto is_told = [this](const Run &run) { return psn_diff(run.last, expected_) < 0; };  // by what is awaited now
    runs_.erase(std::remove_if(runs_.begin(), runs_.end(), is_told), runs_.end());
    if (!runs_.empty())
        answer_ = Answer::kSequenceNak;  // it acknowledges as well
    else if (gap)
        answer_ = Answer::kAck;
    return true;
}

bool Responder::on_post(int64_t now) {
    if (!inbox_.on_post()) return false;
    if (not_ready_ && inbox_.has_room() && !accept_kept(now)) return false;
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
            if (config_.selective) return write_selective_nak(frame, identification);
            return template_.write_acknowledge(frame, kNakSequenceError, expected_, msn_, identification);
        case Answer::kNotReady:
            counters_.rnr_naks_sent++;
            return template_.write_acknowledge(frame, kSyndromeRnr | kRnrTimerCode, expected_, msn_, identification);
        case Answer::kNone:
            break;
    }
    return 0;
}

// One for each run. The packets before it that are there as well make up for a NAK that was lost.
size_t Responder::write_selective_nak(uint8_t *frame, uint16_t identification) {
    const uint32_t last = runs_.front().last;
    runs_.pop_front();
    if (!runs_.empty()) answer_ = Answer::kSequenceNak;
    uint32_t run = 0;
    while (run < kLongestRun && kept_.has(psn_add(last, kPsnMask - run))) run++;
    return template_.write_acknowledge(frame, kNakSequenceError, expected_, last, identification, run);
}

void Responder::describe(StateWriter &state) const {
    inbox_.describe(state);
    state.number(expected_).number(msn_).number(static_cast<uint64_t>(answer_)).number(nak_sent_).number(not_ready_);
    if (nak_sent_) state.age(nak_at_, config_.rto_max_ns);
    state.number(static_cast<uint64_t>(gap_interval_)).number(static_cast<uint64_t>(nak_delay_)).number(gap_);
    if (gap_) state.number(highest_).time(gap_timer_at_);
    for (uint32_t ahead = 0; ahead < kept_.packets(); ahead++) {
        const Packet *packet = kept_.find(psn_add(expected_, ahead));
        state.number(packet != nullptr);
        if (packet == nullptr) continue;
        state.number(packet->opcode).number(packet->summed).number(packet->ack_request);
        std::vector<uint8_t> payload(packet->payload, packet->payload + packet->payload_bytes);
        const bool headed = packet->opcode == kSendFirst || packet->opcode == kSendOnly;
        if (headed && payload.size() > kRankOffset) payload[kRankOffset] = 0;  // every flow's own
        state.data(payload.data(), payload.size());
    }
    state.number(runs_.size());
    for (const Run &run : runs_) state.number(run.first).number(run.last);
}

}  // namespace p4r
