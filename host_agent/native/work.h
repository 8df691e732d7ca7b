// Posted operations, and how each is cut into messages. Every worker cuts alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "blocks.h"
#include "frame.h"
#include "p4r.h"
#include "state.h"

namespace p4r {

constexpr uint64_t kMostAggregated = uint64_t{1} << 31;  // messages of a generation, as serial numbers compare

// Floats of a MAX travel as bit patterns that sort as integers; no scale is needed.
inline bool is_ordered(const p4r_operation &op) {
    return op.switch_op == P4R_MAX || op.switch_op == P4R_MAX_HALF;
}

inline uint32_t wire_element_bytes(const p4r_operation &op) {
    return is_aggregated(op) ? lane_bytes(op) : op.element_size;
}

// The size of one message.
struct MessageShape {
    uint32_t elements;
    uint32_t payload_bytes;  // header chunk, elements, padding to whole chunks
    uint32_t packets;

    uint32_t packet_bytes(uint32_t index, uint32_t path_mtu) const {
        return index + 1 < packets ? path_mtu : payload_bytes - index * path_mtu;
    }
};

inline MessageShape shape_message(uint32_t elements, uint32_t element_bytes, uint32_t path_mtu) {
    const uint32_t data = (elements * element_bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    // Never an Only packet without room beside the header: at path MTU 256 a message has two packets.
    const uint32_t least = path_mtu == kChunkBytes ? 2 * kChunkBytes : kChunkBytes;
    const uint32_t payload = std::max(kChunkBytes + data, least);
    return {elements, payload, (payload + path_mtu - 1) / path_mtu};
}

// How far message number a is ahead of b; they are 32-bit serial numbers.
inline int32_t message_diff(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

struct Work {
    p4r_operation op;
    uint64_t id = 0;
    uint32_t first_message = 0;
    uint32_t messages = 0;
    uint32_t message_elements = 0;  // of every message but the last
    uint32_t received = 0;          // messages
    uint32_t acked = 0;             // messages
    Blocks blocks;

    // Where message number `index` of this operation starts, in elements; the first may announce only (blocks.h).
    uint64_t offset(uint32_t index) const { return static_cast<uint64_t>(index - blocks.lead()) * message_elements; }

    uint32_t elements_of(uint32_t index, uint64_t total) const {
        if (index < blocks.lead()) return 0;
        const uint64_t start = offset(index);
        return start >= total ? 0 : static_cast<uint32_t>(std::min<uint64_t>(message_elements, total - start));
    }
    uint32_t send_elements(uint32_t index) const { return elements_of(index, op.send_elements); }
    uint32_t receive_elements(uint32_t index) const { return elements_of(index, op.receive_elements); }
};

// Operations that are not complete, oldest first; message numbers are contiguous over them.
class WorkQueue {
   public:
    explicit WorkQueue(uint32_t first_message) : numbered_(first_message) {}

    Work &push(const Work &work) {
        works_.push_back(work);
        numbered_ += work.messages;
        return works_.back();
    }
    // The operation that message `message` belongs to, or null if it is complete or not posted.
    Work *find(uint32_t message) {
        auto after = std::upper_bound(works_.begin(), works_.end(), message, [](uint32_t m, const Work &w) {
            return message_diff(m, w.first_message) < 0;
        });
        if (after == works_.begin()) return nullptr;
        Work &work = *--after;
        return message - work.first_message < work.messages ? &work : nullptr;
    }
    uint32_t next_message() const { return static_cast<uint32_t>(numbered_); }
    uint64_t numbered() const { return numbered_; }  // the same, not modulo 2^32
    bool empty() const { return works_.empty(); }
    size_t size() const { return works_.size(); }
    Work &front() { return works_.front(); }
    void describe(StateWriter &state) const {
        state.number(numbered_).number(works_.size());
        for (const Work &work : works_) state.number(work.id).number(work.received).number(work.acked);
    }
    void pop_front() { works_.pop_front(); }

   private:
    std::deque<Work> works_;  // references stay valid while others are pushed and popped at the ends
    uint64_t numbered_;
};

}  // namespace p4r
