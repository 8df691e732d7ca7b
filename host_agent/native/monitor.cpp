#include "monitor.h"

#include <chrono>

namespace p4r {

int Monitor::wait(uint64_t op_id, bool completed, int64_t timeout_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    int result = P4R_WAIT_TIMEOUT;
    const auto decided = [&] {
        if ((completed ? operations_.completed_op() : operations_.received_op()) >= op_id)
            result = P4R_WAIT_OK;
        else if (operations_.failed())
            result = P4R_WAIT_FAILED;
        else if (aborted_)
            result = P4R_WAIT_CLOSED;
        return result != P4R_WAIT_TIMEOUT;
    };
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), decided);
    return result;
}

uint64_t Monitor::done(bool completed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return completed ? operations_.completed_op() : operations_.received_op();
}

void Monitor::abort() {
    const std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    operations_.halt();
    changed_.notify_all();
}

bool Monitor::failure(p4r_event *event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.type != P4R_EVENT_FAILED) return false;
    *event = failure_;
    return true;
}

void Monitor::take_events() {
    p4r_event event;
    bool any = false;
    while (operations_.next_event(&event)) {
        any = true;
        if (event.type == P4R_EVENT_FAILED) failure_ = event;
    }
    if (any) changed_.notify_all();
}

}  // namespace p4r
