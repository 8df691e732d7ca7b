// What a worker's threads wait for: operations that are done, a failure, an abort. Thread safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "operations.h"
#include "p4r.h"

namespace p4r {

// Watches the operations of a state machine, all calls into which hold mutex().
class Monitor {
   public:
    explicit Monitor(Operations &operations) : operations_(operations) {}

    std::mutex &mutex() { return mutex_; }
    void take_events();  // with the mutex held: whoever waits for what happened is woken

    int wait(uint64_t op_id, bool completed, int64_t timeout_ns);  // P4R_WAIT_*
    uint64_t done(bool completed);
    void abort();  // once it returns, the operations' buffers are neither read nor written
    bool aborted() const { return aborted_; }  // with the mutex held
    bool failure(p4r_event *event);

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Operations &operations_;
    p4r_event failure_{};
    bool aborted_ = false;
};

}  // namespace p4r
