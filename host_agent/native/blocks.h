// The scales of floats that a switch sums: one for each block of neighbours, agreed on while others travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "p4r.h"

namespace p4r {

inline bool is_aggregated(const p4r_operation &op) { return op.switch_op != P4R_PASS; }

// What has to be scaled for it.
inline bool is_scaled(const p4r_operation &op) {
    return (op.switch_op == P4R_SUM || op.switch_op == P4R_SUM_HALF) && op.element_type != P4R_INT32;
}

inline bool is_half_op(const p4r_operation &op) {
    return op.switch_op == P4R_SUM_HALF || op.switch_op == P4R_MAX_HALF;
}
inline uint32_t lane_bytes(const p4r_operation &op) { return is_half_op(op) ? 2 : 4; }

// Every message of such an operation announces, behind its header's fields, the exponents of the blocks that are `lead`
// messages further on, as its sender has them. The switch gives everybody the largest of all. So they are known when that
// message may be sent, a window later; the first `lead` messages have nothing but announcements.
class Blocks {
   public:
    Blocks() = default;
    Blocks(const p4r_operation &op, uint32_t message_elements, uint32_t data_messages, uint32_t window, uint32_t world_size);

    uint32_t lead() const { return lead_; }

    // `bytes` at `target` are those behind the fields of message `index`'s header.
    void announce(const p4r_operation &op, uint32_t index, uint8_t *target, size_t bytes);
    // What came back; false: less than what was announced here, which no switch that takes the largest gives.
    bool take(uint32_t index, const uint8_t *announced);

    // `count` elements from `start` on of message `index`, which are at `source` (`target`), to lanes (and back).
    void encode(const p4r_operation &op, uint32_t index, uint32_t start, uint32_t count, const uint8_t *source,
                uint8_t *lanes) const;
    // `first`: where the message starts in the tensor.
    void decode(const p4r_operation &op, uint32_t index, uint32_t start, uint32_t count, uint64_t first,
                const uint8_t *lanes, uint8_t *target) const;

   private:
    template <typename F>
    void each(uint32_t index, uint32_t start, uint32_t count, F f) const;
    int scale(uint8_t exponent) const;  // the power of two that numbers are multiplied by

    uint32_t lead_ = 0;
    uint32_t message_elements_ = 0, elements_ = 0;  // of a message, of a block
    uint32_t per_message_ = 0;
    int most_ = 0;  // numbers below 2^e become at most 2^most
    std::vector<uint8_t> own_, agreed_;  // by message that has elements, then by block
    std::vector<bool> known_;            // own_'s, by message
};

}  // namespace p4r
