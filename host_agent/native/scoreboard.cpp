#include "scoreboard.h"

#include <algorithm>

namespace p4r {
namespace {

constexpr int kSteady = 3;  // random loss strikes again; only after that somebody may be away

}  // namespace

Scoreboard::Scoreboard(uint32_t packets) {
    if (packets != 0) cells_.resize(power_of_two(packets));
}

void Scoreboard::sent(uint32_t psn, int64_t now) {
    if (!cells_.empty()) cell(psn) = {now, 0, false, false};
}

void Scoreboard::sent_again(uint32_t psn, int64_t now) {
    if (cells_.empty()) return;
    Cell &packet = cell(psn);
    packet.sent_at = now;
    packet.again = static_cast<uint8_t>(std::min(packet.again + 1, 255));
    lost_ -= packet.lost;
    packet.lost = false;
}

void Scoreboard::clear(uint32_t psn) {
    Cell &packet = cell(psn);
    arrived_ -= packet.arrived;
    lost_ -= packet.lost;
    packet.arrived = packet.lost = false;
}

void Scoreboard::acknowledged(uint32_t begin, uint32_t end) {
    if (arrived_ == 0 && lost_ == 0) return;
    for (uint32_t psn = begin; psn != end; psn = psn_add(psn, 1)) clear(psn);
}

bool Scoreboard::arrived(uint32_t begin, uint32_t end, int64_t now) {
    if (const int64_t delay = delay_of(psn_add(end, kPsnMask), now); delay != 0) round_trip_.add(delay);
    if (arrived_ == 0 || psn_diff(end, beyond_) > 0) beyond_ = end;
    bool news = false;
    for (uint32_t psn = begin; psn != end; psn = psn_add(psn, 1)) {
        if (cell(psn).arrived) continue;
        clear(psn);
        cell(psn).arrived = news = true;
        arrived_++;
    }
    return news;
}

bool Scoreboard::find_lost(uint32_t una, int64_t interval, int64_t longest, int64_t now) {
    due_ = P4R_NEVER;
    if (arrived_ == 0) return false;
    bool news = false;
    for (uint32_t psn = una; psn_diff(psn, beyond_) < 0; psn = psn_add(psn, 1)) {
        Cell &packet = cell(psn);
        if (packet.arrived || packet.lost) continue;
        if (packet.again != 0) {
            const int64_t due = packet.sent_at + std::min(interval << std::clamp(packet.again - kSteady, 0, 20), longest);
            if (now < due) {
                due_ = std::min(due_, due);
                continue;
            }
        }
        packet.lost = news = true;
        lost_++;
    }
    return news;
}

uint32_t Scoreboard::first_lost(uint32_t una) const {
    while (!cell(una).lost) una = psn_add(una, 1);
    return una;
}

void Scoreboard::forget(uint32_t una, uint32_t next) {
    acknowledged(una, next);
    due_ = P4R_NEVER;
}

void Scoreboard::describe(StateWriter &state, uint32_t una, uint32_t next, int64_t longest) const {
    if (cells_.empty()) return;
    for (uint32_t psn = una; psn != next; psn = psn_add(psn, 1)) {
        const Cell &packet = cell(psn);
        state.age(packet.sent_at, longest).number(std::min<uint8_t>(packet.again, kSteady + 20));
        state.number(packet.arrived).number(packet.lost);
    }
    if (arrived_ != 0) state.number(beyond_);
    state.time(due_).number(static_cast<uint64_t>(round_trip_.get()));
}

}  // namespace p4r
