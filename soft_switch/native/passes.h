// Packets that are not done when they leave a pipeline: clones that egress made wait for their turn in egress,
// resubmitted and recirculated packets for the parser. They wait in queues, so that no packet ever runs inside
// another one's turn, and a packet that goes round for ever only takes its share.
#pragma once
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runtime.h"

namespace p4 {

template <class Phv>
class Passes {
  public:
    static constexpr size_t CAPACITY = 1024;  // of each queue; as BMv2's for resubmitted and recirculated packets
    static constexpr int COPIES_IN_A_ROW = 64;

    // A packet for the parser; `kept` holds the fields of the list.
    struct Round {
        std::vector<uint8_t> bytes;
        std::unique_ptr<Phv> kept;
        uint32_t port, instance_type, list;
    };
    // A packet for egress.
    struct Copy {
        std::vector<uint8_t> payload;
        std::unique_ptr<Phv> phv;
        Context context;
        uint32_t port;
    };

    std::deque<Round> rounds;
    std::deque<Copy> copies;

    // Copies come first, as they are further on, but not for ever.
    bool copy_is_next() {
        if (copies.empty() || rounds.empty()) return !copies.empty();
        in_a_row_ = in_a_row_ < COPIES_IN_A_ROW ? in_a_row_ + 1 : 0;
        return in_a_row_ != 0;
    }

    bool empty() const { return rounds.empty() && copies.empty(); }
    // Gives up what waits; how many packets that were.
    size_t clear() {
        const size_t count = rounds.size() + copies.size();
        rounds.clear();
        copies.clear();
        return count;
    }

    // Headers and metadata to keep with a packet; what they hold is undefined.
    std::unique_ptr<Phv> take_phv() {
        if (spare_.empty()) return std::unique_ptr<Phv>(new Phv);
        auto phv = std::move(spare_.back());
        spare_.pop_back();
        return phv;
    }
    void give_back(std::unique_ptr<Phv> phv) { spare_.push_back(std::move(phv)); }

    // Where a packet that is recirculated is put together; null if it got too long.
    uint8_t* room(uint32_t length) {
        fits_ = length <= MAX_FRAME - 4;
        if (!fits_) return nullptr;
        together_.resize(length + 1);  // never empty, so that there is an address
        return together_.data();
    }
    bool fits() const { return fits_; }
    const std::vector<uint8_t>& together() const { return together_; }

  private:
    std::vector<std::unique_ptr<Phv>> spare_;
    std::vector<uint8_t> together_;
    bool fits_ = false;
    int in_a_row_ = 0;
};

}  // namespace p4
