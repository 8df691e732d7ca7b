// A worker's operations from post to completion, and what is reported about them.
#pragma once

#include <cstdint>
#include <deque>

#include "fault.h"
#include "p4r.h"
#include "work.h"

namespace p4r {

class Operations {
   public:
    explicit Operations(const p4r_config &config) : config_(config), works_(config.first_message) {}
    Operations(const Operations &) = delete;
    Operations &operator=(const Operations &) = delete;

    const char *check(const p4r_operation &op) const;  // null, or what is wrong with it

    uint64_t post(const p4r_operation &op);  // checked
    // Reports what is done by now; `received_op`: the last one whose result is in place.
    void report(uint64_t received_op);
    void fail(uint32_t code, uint32_t message, uint32_t psn, const char *text, const uint8_t *header);
    void fail(const Fault &fault, uint32_t message, uint32_t psn) {
        fail(fault.code, message, psn, fault.text, fault.has_header ? fault.header : nullptr);
    }
    void halt() { halted_ = true; }
    bool next_event(p4r_event *event);
    void describe(StateWriter &state) const {
        works_.describe(state);
        state.number(next_op_).number(received_op_).number(completed_op_).number(events_.size()).number(failed_).number(halted_);
    }

    WorkQueue &works() { return works_; }
    const WorkQueue &works() const { return works_; }
    bool failed() const { return failed_; }
    bool dead() const { return failed_ || halted_; }         // no buffer may be read or written any more
    uint64_t received_op() const { return received_op_; }    // the last one whose result is in place
    uint64_t completed_op() const { return completed_op_; }  // the last one that is acknowledged as well

   private:
    uint32_t data_messages(const p4r_operation &op) const;
    uint32_t messages_of(const p4r_operation &op) const;  // with those that only announce scales
    uint32_t message_elements(const p4r_operation &op) const;  // of every message but the last
    void add_event(uint32_t type, uint64_t id);

    const p4r_config config_;
    WorkQueue works_;
    std::deque<p4r_event> events_;
    uint64_t next_op_ = 1;
    uint64_t received_op_ = 0, completed_op_ = 0;
    bool failed_ = false, halted_ = false;
};

}  // namespace p4r
