#include "outbox.h"

#include <algorithm>
#include <cstring>

#include "quantise.h"

namespace p4r {

Outbox::Outbox(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      works_(works),
      counters_(counters),
      next_message_(config.first_message),
      acked_(config.first_message),
      received_(config.first_message) {}

bool Outbox::has_credit(const Work &work) const {
    const bool aggregated = is_aggregated(work.op);
    if (begun_ && aggregated != last_aggregated_)  // drain before changing the kind
        return message_diff(received_, next_message_) >= 0 && acked_ == next_message_;
    const uint32_t index = next_message_ - work.first_message, lead = work.blocks.lead();
    if (lead != 0 && index >= lead && message_diff(received_, work.first_message + index - lead) < 1)
        return false;  // its scales are not known yet
    const auto window = static_cast<int32_t>(config_.window);
    if (message_diff(next_message_, received_) >= window) return false;  // negative: theirs came before ours went
    return aggregated || message_diff(next_message_, acked_) < window;
}

bool Outbox::start(Outgoing *next) {
    Work *work = works_.find(next_message_);
    if (work == nullptr || !has_credit(*work)) return false;
    const uint32_t elements = work->send_elements(next_message_ - work->first_message);
    const MessageShape shape = shape_message(elements, wire_element_bytes(work->op), config_.path_mtu);
    *next = {next_message_, shape, work};
    begun_ = true;
    last_aggregated_ = is_aggregated(work->op);
    next_message_++;
    return true;
}

void Outbox::acknowledged(const Outgoing &oldest) {
    oldest.work->acked++;
    acked_ = oldest.message + 1;
    counters_.messages_sent++;
}

void Outbox::write(const Outgoing &sent, uint32_t offset, uint32_t bytes, uint8_t *target) const {
    const p4r_operation &op = sent.work->op;
    const uint32_t element_bytes = wire_element_bytes(op);
    uint32_t start = 0;  // in elements, in this message
    if (offset == 0) {
        AggregationHeader header;
        header.job_id = static_cast<uint16_t>(config_.job_id);
        header.generation = config_.generation;
        header.message = sent.message;
        header.rank = static_cast<uint8_t>(config_.rank);
        header.switch_op = op.switch_op;
        header.element_type = op.header_type;
        header.packets = static_cast<uint8_t>(sent.shape.packets);
        header.reduction = op.reduction;
        header.kind = op.kind;
        header.root = op.root;
        header.stage = op.stage;
        header.elements = sent.shape.elements;
        header.collective = op.collective;
        header.total_elements = op.total_elements;
        write_header(header, target);
        if (is_scaled(op))
            sent.work->blocks.announce(op, sent.message - sent.work->first_message, target + kFieldBytes,
                                       kChunkBytes - kFieldBytes);
        target += kChunkBytes;
        bytes -= kChunkBytes;
    } else {
        start = (offset - kChunkBytes) / element_bytes;
    }
    const uint32_t left = sent.shape.elements > start ? sent.shape.elements - start : 0;
    const uint32_t count = std::min(bytes / element_bytes, left);
    if (count != 0) {
        const uint64_t first = sent.work->offset(sent.message - sent.work->first_message) + start;
        const auto *source = static_cast<const uint8_t *>(op.send) + first * op.element_size;
        if (is_scaled(op))
            sent.work->blocks.encode(op, sent.message - sent.work->first_message, start, count, source, target);
        else if (op.switch_op == P4R_MAX_HALF)
            encode_ordered_half(op.element_type, source, count, target, op.invert != 0);
        else if (is_aggregated(op))
            p4r_encode_lanes(op.element_type, is_ordered(op), source, count, target, 0, op.invert != 0);
        else
            memcpy(target, source, size_t{count} * element_bytes);
    }
    memset(target + size_t{count} * element_bytes, 0, bytes - count * element_bytes);
}

}  // namespace p4r
