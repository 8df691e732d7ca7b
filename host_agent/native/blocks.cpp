#include "blocks.h"

#include <algorithm>
#include <cstring>

#include "frame.h"
#include "quantise.h"

namespace p4r {
namespace {

constexpr uint8_t kSpecial = 255;  // an Inf or NaN is there
constexpr uint32_t kMark = 64;     // elements of a byte of p4r_operation.special
constexpr int kHalfSumBits = 7;    // all ranks' numbers are below 2^this in sum, which a switch can add up
constexpr int kBias = 126;         // a block's numbers are below 2^(exponent - kBias)

int bit_length(uint32_t value) { return value == 0 ? 0 : 32 - __builtin_clz(value); }

// How many bits N summands can add: quantisation.headroom_bits.
int headroom(uint32_t world_size) {
    const int bits = bit_length(world_size - 1);
    return 31 - bits >= 24 ? bits : bit_length(world_size);
}

}  // namespace

Blocks::Blocks(const p4r_operation &op, uint32_t message_elements, uint32_t data_messages, uint32_t window,
               uint32_t world_size)
    : lead_(std::min(window, data_messages)), message_elements_(message_elements) {
    const uint32_t chunk = kChunkBytes / lane_bytes(op), room = kChunkBytes - kFieldBytes;
    const uint32_t chunks = (message_elements + chunk - 1) / chunk;
    elements_ = chunk * ((chunks + room - 1) / room);
    per_message_ = (message_elements + elements_ - 1) / elements_;
    most_ = op.switch_op == P4R_SUM_HALF ? kHalfSumBits - bit_length(world_size) : 31 - headroom(world_size);
    own_.resize(size_t{data_messages} * per_message_);
    agreed_.resize(own_.size());
    known_.resize(data_messages);
}

void Blocks::announce(const p4r_operation &op, uint32_t index, uint8_t *target, size_t bytes) {
    memset(target, 0, bytes);
    if (index >= known_.size()) return;  // nothing is that far on
    uint8_t *const own = own_.data() + size_t{index} * per_message_;
    if (!known_[index]) {
        const uint64_t first = uint64_t{index} * message_elements_;
        const uint64_t end = std::min<uint64_t>(first + message_elements_, op.send_elements);
        const auto *source = static_cast<const uint8_t *>(op.send);
        for (uint64_t at = first; at < end; at += elements_)
            own[(at - first) / elements_] =
                block_exponent(op.element_type, source + at * op.element_size, std::min<uint64_t>(elements_, end - at));
        known_[index] = true;
    }
    memcpy(target, own, per_message_);
}

bool Blocks::take(uint32_t index, const uint8_t *announced) {
    if (index >= known_.size()) return true;
    const size_t at = size_t{index} * per_message_;
    for (uint32_t block = 0; block < per_message_; block++)
        if (announced[block] < own_[at + block]) return false;
    memcpy(agreed_.data() + at, announced, per_message_);
    return true;
}

int Blocks::scale(uint8_t exponent) const { return most_ + kBias - exponent; }

// f(exponent, elements before them in what is asked for, their count)
template <typename F>
void Blocks::each(uint32_t index, uint32_t start, uint32_t count, F f) const {
    const uint8_t *const agreed = agreed_.data() + size_t{index - lead_} * per_message_;
    for (uint32_t done = 0; done < count;) {
        const uint32_t block = (start + done) / elements_;
        const uint32_t n = std::min(count - done, (block + 1) * elements_ - (start + done));
        f(agreed[block], done, n);
        done += n;
    }
}

void Blocks::encode(const p4r_operation &op, uint32_t index, uint32_t start, uint32_t count, const uint8_t *source,
                    uint8_t *lanes) const {
    const uint32_t width = lane_bytes(op);
    each(index, start, count, [&](uint8_t exponent, uint32_t at, uint32_t n) {
        const uint8_t *const from = source + size_t{at} * op.element_size;
        uint8_t *const to = lanes + size_t{at} * width;
        if (exponent == 0 || exponent == kSpecial)
            memset(to, 0, size_t{n} * width);
        else if (op.switch_op == P4R_SUM_HALF)
            p4r_encode_half(op.element_type, from, n, to, scale(exponent));
        else
            p4r_encode_lanes(op.element_type, false, from, n, to, scale(exponent), false);
    });
}

void Blocks::decode(const p4r_operation &op, uint32_t index, uint32_t start, uint32_t count, uint64_t first,
                    const uint8_t *lanes, uint8_t *target) const {
    each(index, start, count, [&](uint8_t exponent, uint32_t at, uint32_t n) {
        const uint8_t *const from = lanes + size_t{at} * lane_bytes(op);
        uint8_t *const to = target + size_t{at} * op.element_size;
        const uint64_t element = first + start + at;
        if (exponent == kSpecial)
            memset(op.special + element / kMark, 1, (element + n + kMark - 1) / kMark - element / kMark);
        else if (exponent == 0)
            memset(to, 0, size_t{n} * op.element_size);
        else if (op.switch_op == P4R_SUM_HALF)
            p4r_decode_half(op.element_type, from, n, to, scale(exponent), op.divisor);
        else
            p4r_decode_lanes(op.element_type, false, from, n, to, scale(exponent), op.divisor, false);
        // The sum is there, and so has everybody's contribution been: nothing has to be sent again from here.
        if (op.residual && exponent != 0 && exponent != kSpecial)
            p4r_leave_residual(static_cast<uint8_t *>(const_cast<void *>(op.send)) + element * op.element_size, n,
                               scale(exponent));
    });
}

}  // namespace p4r
