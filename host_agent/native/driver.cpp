#include "driver.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace p4r {
namespace {

constexpr size_t kReceiveBatch = 64;               // frames between two looks at what there is to send
constexpr int64_t kQueueFullWaitNs = 200'000;      // the queueing discipline does not say when it has room
constexpr int64_t kLongestSleepNs = 1'000'000'000;

size_t ring_slots(const p4r_config &config) {
    return std::max<size_t>(256, size_t{4} * config.window * config.message_packets);
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Driver::Driver(const p4r_config &config, const std::string &interface)
    : config_(config),
      longest_sleep_ns_(std::min(config.rto_ns, kLongestSleepNs)),
      socket_(std::make_unique<RawSocket>(config, interface, ring_slots(config))),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      alarm_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      endpoint_(config) {
    if (wakeup_ < 0 || alarm_ < 0) {
        const int reason = errno;
        if (wakeup_ >= 0) close(wakeup_);
        if (alarm_ >= 0) close(alarm_);
        throw std::runtime_error(std::string("cannot make an eventfd and a timerfd: ") + strerror(reason));
    }
    const size_t stride = aligned(endpoint_.frame_bytes());
    frames_.resize(stride * config.max_burst);
    lengths_.resize(config.max_burst);
    vectors_.resize(config.max_burst);
    messages_.resize(config.max_burst);
    for (size_t i = 0; i < config.max_burst; i++) {
        vectors_[i].iov_base = frames_.data() + i * stride;
        messages_[i] = {};
        messages_[i].msg_hdr.msg_iov = &vectors_[i];
        messages_[i].msg_hdr.msg_iovlen = 1;
    }
    // Signals are the interpreter's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "p4r-driver");
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Driver::~Driver() { stop(); }

void Driver::stop() {
    const std::lock_guard<std::mutex> stopping(stopping_);
    if (!thread_.joinable()) return;
    monitor_.abort();
    stop_ = true;
    wake();
    thread_.join();
    const std::lock_guard<std::mutex> lock(monitor_.mutex());
    ring_drops_ += socket_->take_ring_drops();
    socket_.reset();
    close(wakeup_);
    close(alarm_);
    wakeup_ = alarm_ = -1;
}

void Driver::wake() {
    const uint64_t one = 1;
    if (write(wakeup_, &one, sizeof one) < 0 && errno != EAGAIN) return;  // EAGAIN: it is awake already
}

uint64_t Driver::post(const p4r_operation &op, const char **wrong) {
    const std::lock_guard<std::mutex> lock(monitor_.mutex());
    *wrong = endpoint_.operations().check(op);
    if (*wrong != nullptr) return 0;
    const uint64_t id = endpoint_.post(op, monotonic_ns());
    monitor_.take_events();
    if (!monitor_.aborted() && !send_at_once()) wake();
    return id;
}

// While the thread sleeps, whoever posts sends what may go now: a small tensor is on its way without waiting for
// the thread. Whether that was all; else the thread has to go on with it. What it sleeps for is not changed, but an
// alarm is set, which costs the caller much less than to wake it.
bool Driver::send_at_once() {
    if (!asleep_) return false;
    const bool more = fill_batch(monotonic_ns());
    monitor_.take_events();
    account(send_batch());
    if (more || blocked_) return false;
    set_alarm(endpoint_.next_timeout());
    return true;
}

void Driver::set_alarm(int64_t deadline) {
    if (deadline == P4R_NEVER) return;
    const itimerspec when = {{0, 0}, {deadline / 1'000'000'000, deadline % 1'000'000'000}};
    timerfd_settime(alarm_, TFD_TIMER_ABSTIME, &when, nullptr);
}

p4r_counters Driver::counters() {
    const std::lock_guard<std::mutex> lock(monitor_.mutex());
    p4r_counters counters = endpoint_.counters();
    if (socket_ != nullptr) ring_drops_ += socket_->take_ring_drops();
    counters.frames_blocked = frames_blocked_;
    counters.send_errors = send_errors_;
    counters.ring_drops = ring_drops_;
    return counters;
}

p4r_progress Driver::progress() {
    const std::lock_guard<std::mutex> lock(monitor_.mutex());
    return endpoint_.progress();
}

void Driver::run() {
    while (!stop_) {
        size_t received = 0;
        int64_t next = P4R_NEVER;
        bool more = false;
        {
            const std::lock_guard<std::mutex> lock(monitor_.mutex());
            asleep_ = false;
            const int64_t now = monotonic_ns();
            received = receive_batch(now);
            if (batch_sent_ == batch_) more = fill_batch(now);
            monitor_.take_events();
            next = endpoint_.next_timeout();
        }
        const RawSocket::Sent sent = send_batch();
        const bool idle = received < kReceiveBatch && !more;
        bool blocked = false;  // whoever posts may change `blocked_` from when the mutex is let go
        if (sent != RawSocket::Sent::kAll || idle) {
            const std::lock_guard<std::mutex> lock(monitor_.mutex());
            account(sent);
            blocked = blocked_;
            asleep_ = idle && !blocked;
        }
        if (blocked || idle) sleep(next, blocked);
    }
}

// With the mutex held, when the batch before is sent. Whether there may be more than fits a batch.
bool Driver::fill_batch(int64_t now) {
    const size_t stride = aligned(endpoint_.frame_bytes());
    batch_ = endpoint_.poll(now, frames_.data(), stride, lengths_.data(), lengths_.size());
    batch_sent_ = 0;
    for (size_t i = 0; i < batch_; i++) vectors_[i].iov_len = lengths_[i];
    return batch_ == lengths_.size();
}

size_t Driver::receive_batch(int64_t now) {
    size_t received = 0, length = 0;
    while (received < kReceiveBatch) {
        const uint8_t *frame = socket_->next(&length);
        if (frame == nullptr) break;
        endpoint_.receive(frame, length, now);
        socket_->release();
        received++;
    }
    return received;
}

RawSocket::Sent Driver::send_batch() {
    blocked_ = false;
    if (batch_sent_ == batch_) return RawSocket::Sent::kAll;
    return socket_->send(messages_.data(), batch_, &batch_sent_, &queue_full_);
}

// With the mutex held.
void Driver::account(RawSocket::Sent sent) {
    if (sent == RawSocket::Sent::kFull) {
        blocked_ = true;
        frames_blocked_ += batch_ - batch_sent_;
    } else if (sent == RawSocket::Sent::kError) {  // the interface is down: as good as lost on the wire
        send_errors_ += batch_ - batch_sent_;
        batch_sent_ = batch_;
    }
}

void Driver::sleep(int64_t deadline, bool blocked) {
    const int64_t now = monotonic_ns();
    // What is blocked goes out before anything that a timer could add.
    int64_t wait = blocked ? kLongestSleepNs : std::min(deadline - now, longest_sleep_ns_);
    if (blocked && queue_full_) wait = kQueueFullWaitNs;
    if (wait <= 0) return;
    const short writable = blocked && !queue_full_ ? POLLOUT : 0;
    pollfd files[3] = {{socket_->fd(), static_cast<short>(POLLIN | writable), 0}, {wakeup_, POLLIN, 0}, {alarm_, POLLIN, 0}};
    const timespec timeout = {wait / 1'000'000'000, wait % 1'000'000'000};
    if (ppoll(files, 3, &timeout, nullptr) <= 0) return;
    if (files[0].revents & POLLERR) socket_->clear_error();
    uint64_t count = 0;
    for (const pollfd &file : {files[1], files[2]})
        if ((file.revents & POLLIN) && read(file.fd, &count, sizeof count) < 0 && errno != EAGAIN) return;
}

}  // namespace p4r
