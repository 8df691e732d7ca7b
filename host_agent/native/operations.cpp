#include "operations.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace p4r {

const char *Operations::check(const p4r_operation &op) const {
    if (op.switch_op > P4R_LAST_OP) return "switch_op is none of those that switches know";
    if (op.switch_op == P4R_SUM_HALF && !is_scaled(op)) return "integers cannot be summed in half precision";
    if (op.switch_op == P4R_MAX_HALF && op.element_type != P4R_FLOAT16 && op.element_type != P4R_BFLOAT16)
        return "only types of 16 bits are compared in lanes of 16 bits";
    if (is_scaled(op) && op.invert) return "only a MAX can be inverted";
    if (is_scaled(op) && (op.special == nullptr || op.receive == nullptr))
        return "floats are summed into a buffer, and what was not is marked in another one";
    if (op.residual && (op.switch_op != P4R_SUM_HALF || op.element_type != P4R_FLOAT32 || op.send == op.receive))
        return "a residual is what half precision leaves of float32, in a buffer that is not the result's";
    const bool is_wide = op.element_type == P4R_INT64 || op.element_type == P4R_FLOAT64;
    if (op.element_type > P4R_BFLOAT16 && !is_wide) return "the element type is unknown";
    if (is_wide && is_aggregated(op)) return "no switch adds numbers of 64 bits";
    if (op.arrival > P4R_LAST_FOLD) return "arrival is neither STORE nor a fold";
    if (op.divisor == 0) return "the divisor is 0";
    static constexpr uint8_t kSizes[] = {0, 4, 4, 2, 2};
    if (op.element_type == P4R_RAW) {
        if (is_aggregated(op)) return "raw bytes cannot be aggregated: the element type is missing";
        if (op.arrival != P4R_STORE) return "raw bytes cannot be folded: the element type is missing";
        if (op.element_size != 1 && op.element_size != 2 && op.element_size != 4 && op.element_size != 8)
            return "the element size is not 1, 2, 4 or 8 bytes";
    } else if (op.element_size != (is_wide ? 8 : kSizes[op.element_type])) {
        return "the element size is not that of the element type";
    }
    if (op.cut_elements < op.send_elements || op.cut_elements < op.receive_elements)
        return "cut_elements is less than what is sent or received";
    if (is_aggregated(op) && (op.send_elements != op.cut_elements || op.receive_elements != op.cut_elements))
        return "an aggregated tensor is sent and received whole";
    if (op.cut_elements > 0xffffffff) return "more than 2^32 - 1 elements";
    if (op.send_elements != 0 && op.send == nullptr) return "there is no send buffer";
    // Slots compare numbers of messages, and would take a later one for an older one. Who posts sees to it long before.
    if (is_aggregated(op) && works_.numbered() - config_.first_message + messages_of(op) > kMostAggregated)
        return "a switch sums no message of a generation after the first 2^31";
    return nullptr;
}

uint32_t Operations::message_elements(const p4r_operation &op) const {
    return (config_.path_mtu * config_.message_packets - kChunkBytes) / wire_element_bytes(op);
}

uint32_t Operations::data_messages(const p4r_operation &op) const {
    const uint64_t elements = message_elements(op);
    return std::max<uint32_t>(1, static_cast<uint32_t>((op.cut_elements + elements - 1) / elements));
}

uint32_t Operations::messages_of(const p4r_operation &op) const {
    const uint32_t data = data_messages(op);
    return is_scaled(op) ? data + std::min(config_.window, data) : data;
}

uint64_t Operations::post(const p4r_operation &op) {
    Work work;
    work.op = op;
    work.id = next_op_++;
    work.first_message = works_.next_message();
    work.message_elements = message_elements(op);
    work.messages = messages_of(op);
    if (is_scaled(op))
        work.blocks = Blocks(op, work.message_elements, data_messages(op), config_.window, config_.world_size);
    works_.push(work);
    return work.id;
}

void Operations::report(uint64_t received_op) {
    while (received_op_ < received_op) add_event(P4R_EVENT_RECEIVED, ++received_op_);
    while (!works_.empty()) {
        const Work &work = works_.front();
        if (work.acked != work.messages || work.received != work.messages) break;
        completed_op_ = work.id;
        add_event(P4R_EVENT_COMPLETED, work.id);
        works_.pop_front();
    }
}

void Operations::add_event(uint32_t type, uint64_t id) {
    p4r_event event{};
    event.type = type;
    event.op_id = id;
    events_.push_back(event);
}

bool Operations::next_event(p4r_event *event) {
    if (events_.empty()) return false;
    *event = events_.front();
    events_.pop_front();
    return true;
}

void Operations::fail(uint32_t code, uint32_t message, uint32_t psn, const char *text, const uint8_t *header) {
    if (failed_) return;
    failed_ = true;
    p4r_event event{};
    event.type = P4R_EVENT_FAILED;
    event.code = code;
    event.message = message;
    event.psn = psn;
    snprintf(event.text, sizeof event.text, "%s", text);
    if (header != nullptr) {
        event.header_bytes = sizeof event.header;
        memcpy(event.header, header, sizeof event.header);
    }
    events_.push_back(event);
}

}  // namespace p4r
