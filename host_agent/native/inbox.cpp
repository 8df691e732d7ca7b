#include "inbox.h"

#include <algorithm>
#include <cstring>

#include "quantise.h"

namespace p4r {
namespace {

struct Field {
    const char *name;
    uint32_t received, posted;
};

}  // namespace

Inbox::Inbox(const p4r_config &config, WorkQueue &works, p4r_counters &counters)
    : config_(config),
      works_(works),
      counters_(counters),
      largest_bytes_(config.path_mtu * config.message_packets),
      accepted_(config.first_message),
      delivered_(config.first_message) {}

Inbox::Begun Inbox::begin(const uint8_t *payload, uint32_t bytes) {
    if (bytes < kChunkBytes) {
        fault_.set(P4R_BAD_SEQUENCE, nullptr, "the first packet of message %u holds %u bytes, less than its header",
                   accepted_, bytes);
        return Begun::kFault;
    }
    const AggregationHeader header = read_header(payload);
    if (!check_header(header, payload)) return Begun::kFault;
    Work *work = early_.empty() ? works_.find(accepted_) : nullptr;
    if (work != nullptr) {
        if (!check_shape(header, *work, payload)) return Begun::kFault;
        if (is_scaled(work->op) && !work->blocks.take(accepted_ - work->first_message, payload + kFieldBytes)) {
            fault_.set(P4R_BAD_HEADER, payload,
                       "message %u brings a smaller scale than this worker announced: a switch on its path runs another "
                       "version of the P4 program",
                       accepted_);
            return Begun::kFault;
        }
    } else {
        if (header.switch_op != P4R_PASS) {
            fault_.set(P4R_WRONG_MESSAGE, payload,
                       "an aggregated message %u arrived that this worker has not contributed to", accepted_);
            return Begun::kFault;
        }
        if (!has_room()) return Begun::kNoRoom;
        early_.push_back({header, {}});
        early_.back().payload.reserve(largest_bytes_);
        counters_.early_messages++;
    }
    header_ = header;
    work_ = work;
    offset_ = 0;
    in_message_ = true;
    return Begun::kYes;
}

bool Inbox::add(const uint8_t *payload, uint32_t bytes, bool last) {
    if (!check_length(bytes, last)) return false;
    if (work_ != nullptr) {
        deliver(*work_, accepted_ - work_->first_message, offset_, payload, bytes);
    } else {
        std::vector<uint8_t> &early = early_.back().payload;
        early.insert(early.end(), payload, payload + bytes);
    }
    offset_ += bytes;
    return true;
}

bool Inbox::end() {
    in_message_ = false;
    accepted_++;
    if (work_ == nullptr) return deliver_early();
    end_message(*work_);
    return true;
}

bool Inbox::on_post() { return deliver_early(); }

bool Inbox::check_header(const AggregationHeader &header, const uint8_t *chunk) {
    if (header.magic != kMagic || header.version != kVersion)
        return fault_.set(P4R_BAD_HEADER, chunk,
                    "message %u has no aggregation header of version %u (magic 0x%08x, version %u): the predecessor "
                    "runs another version, or something else sends to this QP",
                    accepted_, kVersion, header.magic, header.version);
    if (header.job_id != config_.job_id || header.generation != config_.generation ||
        header.rank != config_.predecessor_rank)
        return fault_.set(P4R_FOREIGN, chunk,
                    "message %u is of job %u, generation %u, rank %u; expected job %u, generation %u, rank %u",
                    accepted_, header.job_id, header.generation, header.rank, config_.job_id, config_.generation,
                    config_.predecessor_rank);
    if (header.message != accepted_)
        return fault_.set(P4R_WRONG_MESSAGE, chunk, "message %u arrived where message %u was expected", header.message,
                    accepted_);
    if (header.flags & kFlagMismatch)
        return fault_.set(P4R_MISMATCH, chunk,
                    "the workers do not agree on message %u: they called different collectives, or one with different "
                    "roots, sizes, types, reductions or strategies",
                    accepted_);
    if (header.switch_op != P4R_PASS && !(header.flags & kFlagResult))
        return fault_.set(P4R_NOT_A_RESULT, chunk,
                    "message %u is rank %u's own contribution, not a result: no switch on the path aggregated it "
                    "(is the P4 program loaded and the job's flow installed?)",
                    accepted_, header.rank);
    return true;
}

bool Inbox::check_shape(const AggregationHeader &header, const Work &work, const uint8_t *chunk) {
    const uint32_t elements = work.receive_elements(header.message - work.first_message);
    const MessageShape shape = shape_message(elements, wire_element_bytes(work.op), config_.path_mtu);
    const Field fields[] = {
        {"kind of collective", header.kind, work.op.kind},
        {"root", header.root, work.op.root},
        {"stage", header.stage, work.op.stage},
        {"operation", header.switch_op, work.op.switch_op},
        {"element type", header.element_type, work.op.header_type},
        {"reduction", header.reduction, work.op.reduction},
        {"collective number", header.collective, work.op.collective},
        {"tensor size", header.total_elements, work.op.total_elements},
        {"element count", header.elements, elements},
        {"packet count", header.packets, shape.packets},
    };
    for (const Field &field : fields)
        if (field.received != field.posted)
            return fault_.set(P4R_WRONG_SHAPE, chunk, "message %u has %s %u where this worker expects %u", header.message,
                        field.name, field.received, field.posted);
    return true;
}

bool Inbox::check_length(uint32_t bytes, bool last) {
    const uint32_t index = offset_ / config_.path_mtu;
    bool right = last ? bytes != 0 && bytes % kChunkBytes == 0 && bytes <= config_.path_mtu : bytes == config_.path_mtu;
    right = right && offset_ + bytes <= largest_bytes_;
    right = right && (index + 1 == header_.packets) == last;
    if (right && work_ != nullptr) {
        const uint32_t elements = work_->receive_elements(accepted_ - work_->first_message);
        const MessageShape shape = shape_message(elements, wire_element_bytes(work_->op), config_.path_mtu);
        right = bytes == shape.packet_bytes(index, config_.path_mtu);
    }
    if (right) return true;
    return fault_.set(P4R_BAD_SEQUENCE, nullptr,
                      "packet %u of %u of message %u (the last one: %s) holds %u bytes: not what path MTU %u gives",
                      index, header_.packets, accepted_, last ? "yes" : "no", bytes, config_.path_mtu);
}

void Inbox::deliver(Work &work, uint32_t message_index, uint32_t offset, const uint8_t *payload,
                        uint32_t bytes) {
    const p4r_operation &op = work.op;
    const uint32_t element_bytes = wire_element_bytes(op);
    uint32_t start = 0;
    if (offset == 0) {
        payload += kChunkBytes;
        bytes -= kChunkBytes;
    } else {
        start = (offset - kChunkBytes) / element_bytes;
    }
    const uint32_t elements = work.receive_elements(message_index);
    const uint32_t count = std::min(bytes / element_bytes, elements > start ? elements - start : 0);
    if (count == 0 || op.receive == nullptr) return;
    uint8_t *target = static_cast<uint8_t *>(op.receive) + (work.offset(message_index) + start) * op.element_size;
    if (is_scaled(op))
        work.blocks.decode(op, message_index, start, count, work.offset(message_index), payload, target);
    else if (op.switch_op == P4R_MAX_HALF)
        decode_ordered_half(op.element_type, payload, count, target, op.invert != 0);
    else if (is_aggregated(op))
        p4r_decode_lanes(op.element_type, is_ordered(op), payload, count, target, 0, op.divisor, op.invert != 0);
    else if (op.arrival == P4R_STORE)
        memcpy(target, payload, size_t{count} * element_bytes);
    else
        p4r_fold(op.arrival, op.element_type, target, payload, count);
}

bool Inbox::deliver_early() {
    while (delivered_ != accepted_) {
        Work *work = works_.find(delivered_);
        if (work == nullptr) return true;
        const Early &early = early_.front();
        const uint32_t index = delivered_ - work->first_message;
        if (!check_shape(early.header, *work, early.payload.data())) return false;
        const MessageShape shape =
            shape_message(work->receive_elements(index), wire_element_bytes(work->op), config_.path_mtu);
        const uint32_t bytes = static_cast<uint32_t>(early.payload.size());
        if (bytes != shape.payload_bytes)
            return fault_.set(P4R_BAD_SEQUENCE, early.payload.data(), "message %u holds %u bytes where %u were expected",
                        delivered_, bytes, shape.payload_bytes);
        deliver(*work, index, 0, early.payload.data(), bytes);
        early_.pop_front();
        end_message(*work);
    }
    return true;
}

void Inbox::end_message(Work &work) {
    work.received++;
    delivered_++;
    counters_.messages_received++;
    last_was_result_ = is_aggregated(work.op);
    if (last_was_result_) counters_.results_received++;
    if (work.received == work.messages) received_op_ = work.id;
}

void Inbox::describe(StateWriter &state) const {
    state.number(accepted_).number(delivered_).number(last_was_result_).number(received_op_).number(in_message_);
    if (in_message_) state.number(work_ == nullptr ? 0 : work_->id).number(offset_);
    state.number(early_.size());
    for (const Early &early : early_) state.data(early.payload.data(), early.payload.size());
}

}  // namespace p4r
