#include "requester.h"

#include <algorithm>

namespace p4r {
namespace {

constexpr int64_t kShortestGoBackNs = 1'000'000;
constexpr int64_t kShortestAgainNs = 500'000;
constexpr uint32_t kAckEvery = 64;  // packets
constexpr uint32_t kInVain = 2;     // so often without progress, and the switch may have forgotten the message
constexpr uint32_t kMostDoublings = 6;  // of the wait before a probe, by probes before
constexpr uint32_t kFirstProbes = 2;  // while no delay is known: the others may not have begun

}  // namespace

// How sending works.
//
//        una_            resend_.next  .limit       .end   next_psn_
//   ------+------------------+-----------+------------+--------+------------>  PSN
//   acked | sent, unacked    | to resend | perhaps    |  sent  | never sent
//
// A NAK allows all of [psn, next_psn_) to be sent again. A timeout allows one message only: an acknowledgement
// comes after the slowest worker has contributed, so a straggler looks like a loss, and resending the window again
// and again would only load the fabric. When an acknowledgement shows that resending helps, the allowance doubles.
//
// Selective: a NAK says what has arrived behind a gap, the board remembers it, and what is missing before the last such
// packet is sent again, once an interval. One lost packet of any rank leaves a gap in everybody's results, so that all
// ranks send that packet again: the one that was missing completes its slot, and the others' are duplicates there. A lost
// First takes its message along, as the switch cannot place the rest; all of that is one gap, and is sent again in order.
//
// Loss at the end of what was sent leaves no gap, and nobody notices. After some silence, the first packet that is not
// acknowledged and the ends of the last message are sent again: at worst duplicates, else they arrive or make a gap.
// How long a silence is one, ack_delay.h says.
//
// What is sent again in vain a second time begins at its message's First packet, as a switch that was restarted has not
// seen that, and drops the others. Not so in aggregated messages: whose slots are gone, nobody can add up again.

Requester::Requester(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      counters_(counters),
      outbox_(config, works, counters),
      template_(config.own_mac, config.own_ip, config.successor_mac, config.successor_ip, config.successor_qpn,
                source_port(config.qpn_out)),
      una_(config.psn_out),
      next_psn_(config.psn_out),
      board_(config.selective ? 2 * config.window * config.message_packets : 0),
      rto_(config.rto_ns) {}

bool Requester::advance(uint32_t psn, int64_t now) {
    if (psn_diff(psn, una_) <= 0) return false;
    board_.acknowledged(una_, psn);
    una_ = psn;
    if (probed_at_ != P4R_NEVER) ack_delay_.answered(now - probed_at_, config_.rto_low_ns);
    probed_at_ = P4R_NEVER;
    pop_acked(now);
    timeouts_in_a_row_ = 0;
    rnrs_in_a_row_ = 0;
    go_backs_in_a_row_ = 0;
    go_back_pending_ = false;
    progress_at_ = now;
    // A link so slow that messages take longer than the configured timeout is not a lossy one.
    rto_ = std::clamp(std::max(2 * first_probe(), 4 * ack_delay_.least()), config_.rto_ns, config_.rto_max_ns);
    restart_timer(now);
    restart_probes(now);

    if (!resend_.active) return true;
    if (psn_diff(una_, resend_.next) > 0) resend_.next = una_;
    if (psn_diff(resend_.next, resend_.limit) >= 0) {  // what was allowed is sent or was not needed
        resend_.budget = std::min(resend_.budget * 2, 2 * config_.window);
        resend_.limit = end_of_messages(resend_.next, resend_.budget);
    }
    if (psn_diff(resend_.next, resend_.end) >= 0) {
        resend_.active = false;
    } else if (psn_diff(resend_.limit, resend_.end) > 0) {
        resend_.limit = resend_.end;
    }
    return true;
}

// Of messages that one acknowledgement covers, the last has caused it; unless it waited for one that was sent again.
void Requester::pop_acked(int64_t now) {
    int64_t delay = 0;
    bool any = false, once = true;
    while (!sent_.empty()) {
        Sent &oldest = sent_.front();
        if (oldest.packets_sent < oldest.shape.packets || psn_diff(una_, oldest.end_psn()) < 0) break;
        delay = now - oldest.sent_at;
        any = true;
        once = once && !oldest.again;
        outbox_.acknowledged(oldest);
        sent_.pop_front();
    }
    if (any) learn_delay(delay, once);
}

void Requester::learn_delay(int64_t delay, bool once) {
    ack_delay_.add(delay, once);
    if (once) probes_in_a_row_ = 0;
}

void Requester::on_ack(uint32_t psn, int64_t now) {
    counters_.acks_received++;
    const uint32_t acked = psn_add(psn, 1);
    if (psn_diff(acked, next_psn_) <= 0 && advance(acked, now)) {
        if (rnr_until_ != 0) rnr_until_ = now;  // what was refused has been taken
        return;
    }
    if (acked == una_ && rnr_until_ != 0)
        rnr_until_ = now;  // our responder's way to say that it is ready now
    else
        counters_.stale_acks++;
}

void Requester::on_sequence_nak(uint32_t psn, int64_t now) {
    counters_.naks_received++;
    if (psn_diff(psn, una_) < 0 || psn_diff(psn, next_psn_) > 0) {
        counters_.stale_acks++;
        return;
    }
    advance(psn, now);
    if (psn == next_psn_) return;  // it lacks what was never sent
    if (resend_.active && resend_.next == psn) {  // about to be sent
        resend_.limit = resend_.end = next_psn_;
        return;
    }
    if (went_back_ && go_back_psn_ == psn && now < go_back_at_ + go_back_interval()) {
        go_back_pending_ = true;  // its resent packets may still be under way
        return;
    }
    go_back(psn, now);
}

void Requester::on_selective_nak(uint32_t psn, uint32_t arrived, uint32_t run, int64_t now) {
    counters_.naks_received++;
    const int32_t behind = psn_diff(arrived, psn);
    if (psn_diff(psn, una_) < 0 || behind <= 0 || psn_diff(arrived, next_psn_) >= 0) {
        counters_.stale_acks++;
        return;
    }
    advance(psn, now);
    if (const int64_t delay = board_.delay_of(arrived, now); delay != 0) learn_delay(delay, true);
    run = std::min(run, static_cast<uint32_t>(behind - 1));
    const bool moved = board_.arrived(psn_add(arrived, kPsnMask + 1 - run), psn_add(arrived, 1), now);
    if (!find_lost(now) && !moved) return;
    restart_timer(now);
    restart_probes(now);
}

int64_t Requester::again_interval() const {
    return std::clamp(2 * board_.round_trip(), kShortestAgainNs, std::max(kShortestAgainNs, config_.rto_ns));
}

bool Requester::find_lost(int64_t now) {
    const bool news = board_.find_lost(una_, again_interval(), config_.rto_max_ns, now);
    if (news) counters_.go_backs++;
    return news;
}

void Requester::on_rnr_nak(uint32_t psn, uint8_t timer_code, int64_t now) {
    counters_.rnr_naks_received++;
    if (psn_diff(psn, una_) < 0 || psn_diff(psn, next_psn_) >= 0) {
        counters_.stale_acks++;
        return;
    }
    advance(psn, now);
    const int64_t wait = rnr_timer_ns(timer_code);
    const int64_t longer = std::min(wait << std::min(rnrs_in_a_row_, 20u), config_.rto_max_ns);
    rnr_until_ = now + std::max(wait, longer);
    rnrs_in_a_row_++;
    for (Sent &sent : sent_) sent.again = true;  // how long it waits tells nothing of the network
    timeouts_in_a_row_ = 0;  // it is there, only not ready
    resend_gently(psn, now);
    timer_at_ = rnr_until_ + rto_;
    probe_at_ = P4R_NEVER;
}

// What arrives shows that the fabric moves. A sum holds our own contribution. And where a link is slow, the
// successor's acknowledgements wait behind a whole window of its data: that is no loss. The timer runs from when
// nothing arrives any more, which is soon where something is lost: the window allows only so much.
void Requester::on_arrival(int64_t now) {
    if (!unacked() || rnr_until_ != 0) return;
    restart_timer(now);
    restart_probes(now);
}

void Requester::on_received(uint32_t received, bool result, int64_t now) {
    outbox_.on_received(received);
    if (!result || received < config_.window + 1) return;
    // The result of message k holds the successor's contribution, which it sent after the result of k - W:
    // it has everything up to k - W, also when its acknowledgements were lost.
    const uint32_t known = received - 1 - config_.window;
    while (!sent_.empty() && message_diff(sent_.front().message, known) <= 0) {
        counters_.implied_acks++;
        if (!advance(sent_.front().end_psn(), now)) break;
    }
}

int64_t Requester::go_back_interval() const {
    return std::clamp(ack_delay_.least(), kShortestGoBackNs, std::max(kShortestGoBackNs, config_.rto_ns));
}

// Longer than an acknowledgement should take. Twice as long for each probe before, until one has come for what was sent once:
// else whoever probes too early would never learn it.
int64_t Requester::first_probe() const {
    const int64_t usual = std::max(ack_delay_.usual(), config_.rto_low_ns);
    if (ack_delay_.lossy()) return usual;
    const int64_t longest = std::clamp(ack_delay_.longest_wait(), config_.rto_low_ns,
                                       std::max(config_.rto_ns, 2 * ack_delay_.least()));
    return std::min(usual << std::min(probes_in_a_row_, kMostDoublings), longest);
}

void Requester::restart_probes(int64_t now) {
    probe_interval_ = first_probe();
    probe_at_ = config_.rto_low_ns == 0 ? P4R_NEVER : now + probe_interval_;
}

void Requester::go_back(uint32_t psn, int64_t now) {
    counters_.go_backs++;
    go_backs_in_a_row_ = went_back_ && go_back_psn_ == psn ? go_backs_in_a_row_ + 1 : 0;
    went_back_ = true;
    go_back_psn_ = psn;
    if (go_backs_in_a_row_ >= kInVain) psn = head_of(sent_.front(), psn);
    resend_ = {true, psn, next_psn_, next_psn_, 2 * config_.window};
    go_back_at_ = now;
    go_back_pending_ = false;
    restart_timer(now);
    restart_probes(now);
}

// Where to begin with a packet of this message that was sent again in vain.
uint32_t Requester::head_of(const Sent &sent, uint32_t psn) {
    return is_aggregated(sent.work->op) ? psn : sent.first_psn;
}

void Requester::resend_gently(uint32_t psn, int64_t now) {
    resend_ = {true, psn, end_of_messages(psn, 1), next_psn_, 1};
    go_back_pending_ = false;
    restart_timer(now);
}

// The end of the messages-th message from the one that holds psn; of what was sent.
uint32_t Requester::end_of_messages(uint32_t psn, uint32_t messages) const {
    for (const Sent &sent : sent_)
        if (psn_diff(sent.end_psn(), psn) > 0 && --messages == 0)
            return psn_add(sent.first_psn, sent.packets_sent);
    return next_psn_;
}

bool Requester::is_missing(uint32_t psn) const {
    return psn_diff(psn, una_) >= 0 && psn_diff(psn, next_psn_) < 0 && !board_.has_arrived(psn);
}

void Requester::probe(int64_t now) {
    if (rnr_until_ != 0 || board_.any_lost() || (resend_.active && psn_diff(resend_.limit, resend_.next) > 0)) {
        probe_at_ = now + probe_interval_;  // there is enough to be sent
        return;
    }
    counters_.tail_probes++;
    probes_in_a_row_++;
    probed_at_ = now;
    probe_interval_ *= 2;
    const bool enough = ack_delay_.usual() == 0 && probes_in_a_row_ >= kFirstProbes;
    probe_at_ = !enough && now + probe_interval_ < timer_at_ ? now + probe_interval_ : P4R_NEVER;
    const uint32_t last = psn_add(next_psn_, kPsnMask);
    probes_ = {una_};
    for (const uint32_t psn : {sent_.back().first_psn, last})
        if (psn_diff(psn, probes_.back()) > 0 && is_missing(psn)) probes_.push_back(psn);
}

bool Requester::on_time(int64_t now) {
    if (go_back_pending_ && now >= go_back_at_ + go_back_interval()) go_back(go_back_psn_, now);
    if (now >= board_.due()) find_lost(now);
    if (unacked() && now >= probe_at_ && now < timer_at_) probe(now);
    if (!unacked() || now < timer_at_) return true;
    if (resend_.active && psn_diff(resend_.limit, resend_.next) > 0 && now >= rnr_until_) {
        restart_timer(now);  // the interface has not taken the last resend yet
        return true;
    }
    probe_at_ = P4R_NEVER;
    counters_.timeouts++;
    timeouts_in_a_row_++;
    if (config_.retry_limit != 0 && timeouts_in_a_row_ > config_.retry_limit) return false;
    rto_ = std::min(2 * rto_, config_.rto_max_ns);
    if (timeouts_in_a_row_ >= kInVain) {
        board_.forget(una_, next_psn_);
        resend_gently(head_of(sent_.front(), una_), now);
    } else {
        resend_gently(una_, now);
    }
    return true;
}

int64_t Requester::next_timeout() const {
    int64_t next = P4R_NEVER;
    if (unacked()) next = std::min(timer_at_, probe_at_);
    next = std::min(next, board_.due());
    if (go_back_pending_) next = std::min(next, go_back_at_ + go_back_interval());
    if (rnr_until_ != 0) next = std::min(next, rnr_until_);
    return next;
}

bool Requester::start_message(int64_t now) {
    Outgoing next;
    if (!outbox_.start(&next)) return false;
    sent_.push_back({next, next_psn_, 0, now, now});
    return true;
}

// A message is acknowledged as a whole, so the last one that is under way never waits for room.
bool Requester::has_room() const {
    if (config_.in_flight_bytes == 0 || !unacked()) return true;
    const uint32_t packets = static_cast<uint32_t>(psn_diff(next_psn_, una_)) - board_.arrived_packets();
    return uint64_t{packets + config_.message_packets} * config_.path_mtu <= config_.in_flight_bytes;
}

size_t Requester::next_frame(uint8_t *frame, int64_t now, uint16_t identification) {
    if (rnr_until_ != 0) {
        if (now < rnr_until_) return 0;
        rnr_until_ = 0;
    }
    while (!probes_.empty()) {
        const uint32_t psn = probes_.front();
        probes_.pop_front();
        if (is_missing(psn)) return send_again(psn, frame, now, identification);
    }
    if (board_.any_lost()) return send_again(next_again(now), frame, now, identification);
    while (resend_.active && psn_diff(resend_.limit, resend_.next) > 0) {
        const uint32_t psn = resend_.next;
        resend_.next = psn_add(psn, 1);
        if (resend_.next == resend_.end) resend_.active = false;
        if (resend_.next == resend_.limit) restart_timer(now);
        if (psn_diff(psn, una_) < 0 || !board_.has_arrived(psn)) return send_again(psn, frame, now, identification);
    }
    if ((sent_.empty() || sent_.back().packets_sent == sent_.back().shape.packets) &&
        !(has_room() && start_message(now)))
        return 0;
    if (!unacked()) {
        progress_at_ = now;
        restart_timer(now);
    }
    restart_probes(now);
    Sent &sent = sent_.back();
    board_.sent(next_psn_, now);
    const size_t length = build(sent, sent.packets_sent, frame, identification);
    sent.packets_sent++;
    sent.sent_at = now;
    next_psn_ = psn_add(next_psn_, 1);
    return length;
}

// The first packet that is lost; or, where that was sent again in vain, its message's first one before it.
uint32_t Requester::next_again(int64_t now) const {
    const uint32_t psn = board_.first_lost(una_);
    if (board_.times_sent_again(psn) < kInVain) return psn;
    for (const Sent &sent : sent_) {
        if (psn_diff(sent.end_psn(), psn) <= 0) continue;
        return now - sent.headed_at < again_interval() ? psn : head_of(sent, psn);
    }
    return psn;
}

size_t Requester::send_again(uint32_t psn, uint8_t *frame, int64_t now, uint16_t identification) {
    for (Sent &sent : sent_) {
        if (psn_diff(sent.end_psn(), psn) <= 0) continue;
        sent.again = true;
        if (psn == sent.first_psn) sent.headed_at = now;
        if (psn_diff(psn, una_) >= 0) board_.sent_again(psn, now);
        const size_t length = build(sent, static_cast<uint32_t>(psn_diff(psn, sent.first_psn)), frame, identification);
        counters_.retransmitted_packets++;
        counters_.retransmitted_bytes += length;
        return length;
    }
    return 0;
}

size_t Requester::build(const Sent &sent, uint32_t index, uint8_t *frame, uint16_t identification) const {
    const uint32_t bytes = sent.shape.packet_bytes(index, config_.path_mtu);
    outbox_.write(sent, index * config_.path_mtu, bytes, frame + kHeaderBytes);
    const bool last = index + 1 == sent.shape.packets;
    const Opcode opcode = index == 0 ? (last ? kSendOnly : kSendFirst) : (last ? kSendLast : kSendMiddle);
    const bool ack_request = last || (index + 1) % kAckEvery == 0;
    const size_t length =
        template_.finish_send(frame, opcode, ack_request, psn_add(sent.first_psn, index), bytes, identification);
    counters_.data_packets_sent++;
    counters_.data_bytes_sent += length;
    return length;
}

void Requester::describe(StateWriter &state) const {
    outbox_.describe(state);
    state.number(una_).number(next_psn_).number(sent_.size());
    for (const Sent &sent : sent_) {
        state.number(sent.message).number(sent.first_psn).number(sent.packets_sent);
        state.age(sent.sent_at, config_.rto_max_ns).age(sent.headed_at, config_.rto_max_ns);
    }
    state.number(resend_.active);
    if (resend_.active) state.number(resend_.next).number(resend_.limit).number(resend_.end).number(resend_.budget);
    state.number(probes_.size());
    for (const uint32_t psn : probes_) state.number(psn);
    state.time(unacked() ? timer_at_ : P4R_NEVER).time(unacked() ? probe_at_ : P4R_NEVER);
    state.number(static_cast<uint64_t>(rto_));
    if (config_.rto_low_ns != 0 || config_.rto_max_ns != config_.rto_ns) {  // else the rest of it decides nothing
        for (const Sent &sent : sent_) state.number(sent.again);
        state.number(static_cast<uint64_t>(probe_interval_)).number(std::min(probes_in_a_row_, kMostDoublings));
        state.number(probed_at_ != P4R_NEVER);
        if (probed_at_ != P4R_NEVER) state.age(probed_at_, config_.rto_max_ns);
        ack_delay_.describe(state);
    }
    // Of a few messages, the least delay alone; without a limit, timeouts count until they are in vain.
    state.number(static_cast<uint64_t>(ack_delay_.least()));
    state.number(config_.retry_limit == 0 ? std::min(timeouts_in_a_row_, kInVain) : timeouts_in_a_row_);
    state.time(rnr_until_ == 0 ? P4R_NEVER : rnr_until_).number(std::min(rnrs_in_a_row_, 20u)).number(went_back_);
    if (went_back_) {
        state.number(go_back_psn_).age(go_back_at_, std::max(kShortestGoBackNs, config_.rto_ns));
        state.number(std::min(go_backs_in_a_row_, kInVain)).number(go_back_pending_);
    }
    board_.describe(state, una_, next_psn_, config_.rto_max_ns);
}

}  // namespace p4r
