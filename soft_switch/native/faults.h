// Faults on purpose, at one port: which packets are lost, doubled, overtaken, delayed or damaged. Rules say it, and a
// seed in each decides all chance: the same frames in the same order always meet the same fate. Nothing here reads a
// clock; times are given.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "random.h"
#include "roce_frame.h"

namespace p4 {

enum FaultKind : uint32_t { FAULT_LOSS, FAULT_DUPLICATE, FAULT_REORDER, FAULT_DELAY, FAULT_CORRUPT, FAULT_KINDS };

// Which packets a rule means; soft_switch/faults.py has their names in the same order.
enum FaultPackets : uint32_t {
    PACKETS_ANY,
    PACKETS_ROCE,
    PACKETS_SEND,
    PACKETS_FIRST,
    PACKETS_MIDDLE,
    PACKETS_LAST,
    PACKETS_ONLY,
    PACKETS_ACK,
    PACKETS_NAK,
    PACKETS_RNR,
    PACKETS_RESULT,
    PACKETS_TREE,
    PACKETS_PARTIAL,
    PACKETS_TREE_RESULT,
    PACKETS_ASK,
    PACKETS_TCP,
    PACKETS_KINDS
};

// A rule as it is given; -1 is any. The first `skip` packets that it means pass, then at most `count` are struck.
struct FaultRule {
    uint64_t id, seed;
    double probability;
    int64_t message, psn, qpn;
    uint64_t skip, count, delay_us;
    uint32_t kind, packets, copies, bits;
};

struct FaultReport {
    uint64_t id, matched, struck;
};

// One direction of a port.
class Faults {
  public:
    static constexpr size_t MAX_HELD_BYTES = 64 << 20;  // what is held beyond that goes on at once
    static constexpr uint64_t PATIENCE_US = 20000;      // for a frame that is to overtake one held back without a time

    bool has_rules() const { return !rules_.empty(); }
    bool holds() const { return !held_.empty(); }
    bool asks_messages() const { return asks_messages_; }
    uint64_t struck(uint32_t kind) const { return struck_[kind]; }
    // When a held frame is due; only with `holds()`.
    uint64_t due_us() const { return held_.front().due_us; }

    int add(const FaultRule& rule) {
        if (rule.kind >= FAULT_KINDS || rule.packets >= PACKETS_KINDS) return -EINVAL;
        for (const Rule& other : rules_)
            if (other.rule.id == rule.id) return -EEXIST;
        rules_.emplace_back(rule);
        look();
        return 0;
    }
    int remove(uint64_t id) {
        const auto found = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& r) { return r.rule.id == id; });
        if (found == rules_.end()) return -ENOENT;
        rules_.erase(found);
        look();
        return 0;
    }
    size_t report(FaultReport* to, size_t room) const {
        for (size_t i = 0; i < rules_.size() && i < room; i++) to[i] = {rules_[i].rule.id, rules_[i].matched, rules_[i].struck};
        return rules_.size();
    }

    // Calls on(frame, length) for whatever goes on now: the frame itself, which may be changed in place, copies of it,
    // frames that waited to be overtaken. False: it was lost.
    template <class F>
    bool pass(uint8_t* frame, uint32_t length, const FrameInfo& info, int64_t message, uint64_t now_us, F on) {
        uint64_t due_us = 0;
        bool overtaken = false, until_next = false;
        copies_.clear();
        for (Rule& one : rules_) {
            if (!one.means(info, message) || !one.strikes()) continue;
            const FaultRule& rule = one.rule;
            struck_[rule.kind]++;
            if (rule.kind == FAULT_LOSS) return send_copies(frame, length, now_us, on), false;
            if (rule.kind == FAULT_DUPLICATE)
                for (uint32_t i = 1; i <= rule.copies; i++) copies_.push_back(i * rule.delay_us);
            if (rule.kind == FAULT_CORRUPT) one.flip(frame, length);
            if (rule.kind == FAULT_DELAY) due_us = std::max(due_us, now_us + rule.delay_us);
            if (rule.kind == FAULT_REORDER) {
                overtaken = true;
                due_us = std::max(due_us, now_us + (rule.delay_us ? rule.delay_us : PATIENCE_US));
                until_next |= rule.delay_us == 0;
            }
        }
        if (overtaken) {
            hold(frame, length, due_us, until_next ? UNTIL_NEXT : OVERTAKEN, on);
            send_copies(frame, length, now_us, on);
            return true;
        }
        // Who is delayed keeps its place: what comes behind it waits as long.
        if (in_order_ > 0) due_us = std::max(due_us, last_due_us_);
        if (due_us > now_us || in_order_ > 0) {
            last_due_us_ = due_us;
            hold(frame, length, due_us, IN_ORDER, on);
            send_copies(frame, length, now_us, on);
            return true;
        }
        on(frame, length);
        send_copies(frame, length, now_us, on);
        release_overtaken(on);
        return true;
    }

    // Calls on(frame, length) for the held frames that are due.
    template <class F>
    void release(uint64_t now_us, F on) {
        while (!held_.empty() && held_.front().due_us <= now_us) release_first(on);
    }

  private:
    enum Why : uint32_t { IN_ORDER, OVERTAKEN, UNTIL_NEXT, COPY };
    struct Held {
        uint64_t due_us, number;
        Why why;
        std::vector<uint8_t> bytes;
    };
    struct Rule {
        FaultRule rule;
        Random random;
        uint64_t matched = 0, struck = 0;

        explicit Rule(const FaultRule& given) : rule(given), random(given.seed) {}

        bool means(const FrameInfo& info, int64_t message) const {
            if (!of_kind(info)) return false;
            if (rule.message >= 0 && rule.message != message) return false;
            if (rule.psn >= 0 && (!(info.is_roce() || info.is_tree()) || rule.psn != int64_t(info.psn))) return false;
            return rule.qpn < 0 || (info.is_roce() && rule.qpn == int64_t(info.qpn));
        }

        bool of_kind(const FrameInfo& info) const {
            switch (rule.packets) {
                case PACKETS_ANY: return true;
                case PACKETS_ROCE: return info.is_roce();
                case PACKETS_SEND: return info.is_send();
                case PACKETS_FIRST: return info.kind == FrameInfo::SEND_FIRST;
                case PACKETS_MIDDLE: return info.kind == FrameInfo::SEND_MIDDLE;
                case PACKETS_LAST: return info.kind == FrameInfo::SEND_LAST;
                case PACKETS_ONLY: return info.kind == FrameInfo::SEND_ONLY;
                case PACKETS_ACK: return info.kind == FrameInfo::ACK;
                case PACKETS_NAK: return info.kind == FrameInfo::NAK;
                case PACKETS_RNR: return info.kind == FrameInfo::RNR;
                case PACKETS_RESULT: return info.is_send() && info.summed;
                case PACKETS_TREE: return info.is_tree();
                case PACKETS_PARTIAL: return info.kind == FrameInfo::PARTIAL;
                case PACKETS_TREE_RESULT: return info.kind == FrameInfo::TREE_RESULT;
                case PACKETS_ASK: return info.kind == FrameInfo::ASK;
                default: return info.kind == FrameInfo::TCP;
            }
        }

        bool strikes() {
            if (matched++ < rule.skip || struck >= rule.count) return false;
            if (rule.probability < 1 && random.next() >= uint64_t(rule.probability * 18446744073709551616.0)) return false;
            struck++;
            return true;
        }

        // Different bits, anywhere behind the Ethernet header.
        void flip(uint8_t* frame, uint32_t length) {
            if (length <= ETHERNET) return;
            const uint64_t bits = uint64_t(length - ETHERNET) * 8;
            std::vector<uint64_t> flipped;
            while (flipped.size() < std::min<uint64_t>(rule.bits, bits)) {
                const uint64_t bit = random.between(0, bits - 1);
                if (std::find(flipped.begin(), flipped.end(), bit) != flipped.end()) continue;
                flipped.push_back(bit);
                frame[ETHERNET + bit / 8] ^= uint8_t(0x80 >> bit % 8);
            }
        }
    };

    static constexpr uint32_t ETHERNET = 14;
    std::vector<Rule> rules_;
    std::vector<Held> held_;  // a heap, the next that is due in front
    std::vector<uint64_t> copies_;
    uint64_t struck_[FAULT_KINDS] = {}, number_ = 0, last_due_us_ = 0;
    size_t in_order_ = 0, waiting_for_next_ = 0, held_bytes_ = 0;
    bool asks_messages_ = false;

    static bool later(const Held& a, const Held& b) {
        return a.due_us != b.due_us ? a.due_us > b.due_us : a.number > b.number;
    }

    void look() {
        asks_messages_ = std::any_of(rules_.begin(), rules_.end(), [](const Rule& r) { return r.rule.message >= 0; });
    }

    template <class F>
    void hold(const uint8_t* frame, uint32_t length, uint64_t due_us, Why why, F on) {
        if (held_bytes_ + length > MAX_HELD_BYTES) release_first(on);
        held_.push_back({due_us, number_++, why, std::vector<uint8_t>(frame, frame + length)});
        std::push_heap(held_.begin(), held_.end(), later);
        held_bytes_ += length, in_order_ += why == IN_ORDER, waiting_for_next_ += why == UNTIL_NEXT;
    }

    template <class F>
    void release_first(F on) {
        std::pop_heap(held_.begin(), held_.end(), later);
        go_on(held_.back(), on);
        held_.pop_back();
    }

    template <class F>
    void go_on(Held& held, F on) {
        held_bytes_ -= held.bytes.size(), in_order_ -= held.why == IN_ORDER, waiting_for_next_ -= held.why == UNTIL_NEXT;
        on(held.bytes.data(), uint32_t(held.bytes.size()));
    }

    // A later frame has passed: those that waited for one follow it.
    template <class F>
    void release_overtaken(F on) {
        if (waiting_for_next_ == 0) return;
        std::vector<Held> free;
        for (Held& held : held_)
            if (held.why == UNTIL_NEXT) free.push_back(std::move(held));
        held_.erase(std::remove_if(held_.begin(), held_.end(), [](const Held& held) { return held.why == UNTIL_NEXT; }), held_.end());
        std::make_heap(held_.begin(), held_.end(), later);
        std::sort(free.begin(), free.end(), [](const Held& a, const Held& b) { return a.number < b.number; });
        for (Held& held : free) go_on(held, on);
    }

    template <class F>
    void send_copies(const uint8_t* frame, uint32_t length, uint64_t now_us, F on) {
        for (const uint64_t after_us : copies_) {
            if (after_us) {
                hold(frame, length, now_us + after_us, COPY, on);
            } else {
                std::vector<uint8_t> copy(frame, frame + length);  // who takes a frame may write into it
                on(copy.data(), length);
            }
        }
    }
};

// Both directions of a port, and what both tell about messages.
class PortFaults {
  public:
    // Whether any frame has to be looked at: what a port without faults pays for is this one branch.
    bool active() const { return active_; }
    bool holds() const { return in.holds() || out.holds(); }
    uint64_t due_us() const {
        const uint64_t never = ~uint64_t(0);
        return std::min(in.holds() ? in.due_us() : never, out.holds() ? out.due_us() : never);
    }
    Faults& of(bool outward) { return outward ? out : in; }

    // After rules came or went, and after held frames went on.
    void look() {
        active_ = in.has_rules() || out.has_rules() || holds();
        const bool asks = in.asks_messages() || out.asks_messages();
        if (asks_messages_ && !asks) tracker_.forget();
        asks_messages_ = asks;
    }

    template <class F>
    bool pass(bool outward, uint8_t* frame, uint32_t length, uint64_t now_us, F on) {
        const FrameInfo info = FrameReader::read(frame, length);
        const int64_t message = asks_messages_ ? tracker_.message_of(info) : -1;
        const bool held = holds();
        const bool passed = of(outward).pass(frame, length, info, message, now_us, on);
        if (held && !holds()) look();  // it has let go of the last one, whose rule may be gone
        return passed;
    }

    Faults in, out;

  private:
    bool active_ = false, asks_messages_ = false;
    MessageTracker tracker_;
};

}  // namespace p4
