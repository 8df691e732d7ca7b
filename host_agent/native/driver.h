// An endpoint run by a thread of its own on a network interface. Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "endpoint.h"
#include "link.h"
#include "monitor.h"
#include "p4r.h"
#include "raw_socket.h"

namespace p4r {

int64_t monotonic_ns();

class Driver : public p4r_link {
   public:
    Driver(const p4r_config &config, const std::string &interface);  // throws std::runtime_error
    ~Driver() override;
    Driver(const Driver &) = delete;
    Driver &operator=(const Driver &) = delete;

    uint64_t post(const p4r_operation &op, const char **wrong) override;
    void stop();  // aborts, ends the thread, closes the sockets
    Monitor &monitor() override { return monitor_; }
    p4r_counters counters() override;
    p4r_progress progress() override;

   private:
    void run();
    size_t receive_batch(int64_t now);
    bool send_at_once();
    bool fill_batch(int64_t now);
    RawSocket::Sent send_batch();
    void account(RawSocket::Sent sent);
    void set_alarm(int64_t deadline);
    void sleep(int64_t deadline, bool blocked);
    void wake();

    const p4r_config config_;
    const int64_t longest_sleep_ns_;
    std::mutex stopping_;  // taken before the monitor's
    std::unique_ptr<RawSocket> socket_;  // the thread's own while it runs
    int wakeup_;                         // eventfd, the same
    int alarm_;                          // timerfd, set by who posts while the thread is asleep

    // Guarded by the monitor's mutex, up to the blank line.
    Endpoint endpoint_;
    Monitor monitor_{endpoint_.operations()};
    uint64_t frames_blocked_ = 0, send_errors_ = 0, ring_drops_ = 0;
    bool asleep_ = false;  // the thread, with nothing on its way

    std::atomic<bool> stop_{false};
    // The thread's own unless it is asleep: a batch of frames on its way to the interface.
    std::vector<uint8_t> frames_;
    std::vector<uint32_t> lengths_;
    std::vector<iovec> vectors_;
    std::vector<mmsghdr> messages_;
    size_t batch_ = 0, batch_sent_ = 0;
    bool blocked_ = false, queue_full_ = false;
    std::thread thread_;
};

}  // namespace p4r
