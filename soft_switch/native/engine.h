// The engine: ports, the packet thread, multicast groups, and the queue of what Python gets to see (packet-in, log).
// Programs come and go; the engine and its ports stay.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "host.h"
#include "port.h"

namespace p4 {

enum EventKind : uint32_t { EVENT_NONE = 0, EVENT_PACKET_IN = 1, EVENT_LOG = 2, EVENT_CLOSED = 3, EVENT_DIGEST = 4 };

struct Event {
    uint32_t kind, level;
    std::vector<uint8_t> data;
};

// Frames that `process` gives back instead of sending: {port, length} in front of each.
struct Collector {
    std::vector<uint8_t> bytes;
    size_t start = 0;
};

class Engine final : public Host {
  public:
    static constexpr uint32_t NO_PORT = ~uint32_t(0), MAX_PORTS = 65536;
    static constexpr size_t MAX_EVENTS = 8192;
    static constexpr int CHECK_MS = 200, RETRY_MS = 1;
    static constexpr int PASSES = 64, MAX_PASSES = 4096;  // in one turn; for one packet whose end is waited for

    Engine(uint32_t cpu_port, uint32_t drop, uint64_t random_seed, uint32_t queues)
        : cpu_port_(cpu_port), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        drop_port = drop;
        priority_queues = queues;
        seed = random_seed;
        start_us_ = clock_us();
    }
    ~Engine() {
        stop();
        close(wake_);
    }

    // What programs call, with the lock held.

    uint8_t* reserve(uint32_t port, uint32_t length) override {
        target_ = nullptr;
        to_cpu_ = false;
        if (length > MAX_FRAME) return too_long_++, nullptr;
        if (collector_) return collect(port, length);
        if (port == cpu_port_) {
            to_cpu_ = true;
            return cpu_frame_;
        }
        target_ = find(port);
        if (!target_) return no_port_++, nullptr;
        return target_->reserve(length);
    }

    void commit(uint32_t length) override {
        if (collector_) {
            std::memcpy(&collector_->bytes[collector_->start + 4], &length, 4);
            collector_->bytes.resize(collector_->start + 8 + length);
        } else if (to_cpu_) {
            push(EVENT_PACKET_IN, 0, cpu_frame_, length);
        } else {
            target_->commit(length);
        }
    }

    Replicas multicast(uint32_t group) override {
        const auto found = groups_.find(group);
        if (found == groups_.end()) return {nullptr, 0};
        return {found->second.data(), found->second.size()};
    }

    CloneSession clone_session(uint32_t session) override {
        const auto found = sessions_.find(session);
        if (found == sessions_.end()) return {{nullptr, 0}, 0};
        return {{found->second.replicas.data(), found->second.replicas.size()}, found->second.packet_length};
    }

    void digest(uint32_t list, const uint64_t* words, size_t count) override {
        push(EVENT_DIGEST, list, reinterpret_cast<const uint8_t*>(words), 8 * count);
    }

    uint64_t now_us() override { return now_us_; }

    uint64_t fresh_us() override { return clock_us() - start_us_; }

    void log(int level, const char* text, size_t length) override {
        push(EVENT_LOG, uint32_t(level), reinterpret_cast<const uint8_t*>(text), length);
    }

    // The packet thread lets whoever waits for the lock go first.
    void lock() override {
        waiting_.fetch_add(1);
        mutex_.lock();
        waiting_.fetch_sub(1);
    }
    void unlock() override { mutex_.unlock(); }

    // Control, each under the lock.

    void set_program(ProcessFn function, PassesFn passes, void* program) {
        Guard guard(*this);
        process_ = function;
        passes_ = passes;
        if (program == program_) return;  // another version of its code: what waits is still its own
        program_ = program;
        waiting = false;
        const std::lock_guard<std::mutex> hold(events_mutex_);  // the digests of the program before mean nothing now
        events_.erase(std::remove_if(events_.begin(), events_.end(), [](const Event& e) { return e.kind == EVENT_DIGEST; }),
                      events_.end());
    }

    int attach(uint32_t number, const char* interface, const char* capture) {
        auto port = std::make_unique<Port>(number, interface);
        if (capture) {
            const int status = port->capture.open(capture);
            if (status < 0) return status;
        }
        const int status = port->open_socket();
        if (status < 0) return status;
        Guard guard(*this);
        if (find(number)) return -EEXIST;
        if (ports_.size() <= number) ports_.resize(number + 1);
        ports_[number] = std::move(port);
        list_ports();
        return 0;
    }

    int detach(uint32_t number) {
        Guard guard(*this);
        if (!find(number)) return -ENODEV;
        ports_[number].reset();
        list_ports();
        return 0;
    }

    int stats(uint32_t number, PortStats* to) {
        Guard guard(*this);
        Port* port = find(number);
        if (!port) return -ENODEV;
        *to = port->stats();
        return 0;
    }

    int fault_add(uint32_t number, bool out, const FaultRule& rule) {
        return with_faults(number, out, [&](Faults& faults) { return faults.add(rule); });
    }
    int fault_remove(uint32_t number, bool out, uint64_t id) {
        return with_faults(number, out, [&](Faults& faults) { return faults.remove(id); });
    }
    // How many rules there are; the first ones, as far as there is room.
    int fault_report(uint32_t number, bool out, FaultReport* to, size_t room) {
        return with_faults(number, out, [&](Faults& faults) { return int(faults.report(to, room)); });
    }
    // How many frames each kind of fault has struck, by rules that are gone too.
    int fault_struck(uint32_t number, bool out, uint64_t* to) {
        return with_faults(number, out, [&](Faults& faults) {
            for (uint32_t kind = 0; kind < FAULT_KINDS; kind++) to[kind] = faults.struck(kind);
            return 0;
        });
    }

    // Instead of a program: what comes in at port 0 leaves by port 1 and the other way round, so do 2 and 3, ...
    void set_wires() {
        const auto forward = [](void* engine, const uint8_t* frame, uint32_t length, uint32_t port) {
            Host& host = *static_cast<Engine*>(engine);
            uint8_t* room = host.reserve(port ^ 1, length);
            if (!room) return;
            std::memcpy(room, frame, length);
            host.commit(length);
        };
        set_program(forward, [](void*, int) {}, this);
    }

    void multicast_set(uint32_t group, const Replica* replicas, size_t count) {
        Guard guard(*this);
        groups_[group].assign(replicas, replicas + count);
    }
    bool multicast_delete(uint32_t group) {
        Guard guard(*this);
        return groups_.erase(group) > 0;
    }

    void clone_set(uint32_t session, const Replica* replicas, size_t count, uint32_t packet_length) {
        Guard guard(*this);
        Session& to = sessions_[session];
        to.replicas.assign(replicas, replicas + count);
        to.packet_length = packet_length ? packet_length : ~uint32_t(0);
    }
    bool clone_delete(uint32_t session) {
        Guard guard(*this);
        return sessions_.erase(session) > 0;
    }

    // A frame that enters at `port` from the control plane; what comes out is sent.
    void inject(uint32_t port, const uint8_t* frame, uint32_t length) {
        Guard guard(*this);
        run(port, frame, length);
        flush_all();
        if (waiting || holds_frames()) wake();
    }

    // A frame that enters at `port`; what comes out is collected. Packets that wait are sent before, as without it.
    void process(uint32_t port, const uint8_t* frame, uint32_t length, Collector& collector) {
        Guard guard(*this);
        finish_waiting();
        flush_all();
        collector_ = &collector;
        run(port, frame, length);
        finish_waiting();
        if (waiting) passes_(program_, -1);
        collector_ = nullptr;
    }

    void globals(uint64_t* to) {
        Guard guard(*this);
        to[0] = no_port_, to[1] = too_long_, to[2] = events_dropped_, to[3] = failed_asserts;
        to[4] = passes_dropped;
    }

    // The next event, waiting for one up to timeout_ms.
    bool next_event(Event& event, int timeout_ms) {
        std::unique_lock<std::mutex> hold(events_mutex_);
        events_ready_.wait_for(hold, std::chrono::milliseconds(timeout_ms), [&] { return !events_.empty() || closed_; });
        if (!events_.empty()) {
            event = std::move(events_.front());
            events_.pop_front();
        } else {
            event = {closed_ ? EVENT_CLOSED : EVENT_NONE, 0, {}};
        }
        return event.kind != EVENT_NONE;
    }

    void close_events() {
        const std::lock_guard<std::mutex> hold(events_mutex_);
        closed_ = true;
        events_ready_.notify_all();
    }

    int start() {
        if (thread_.joinable()) return 0;
        running_ = true;
        sigset_t all, old;  // signals are for Python's main thread
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int status = 0;
        try {
            thread_ = std::thread([this] { loop(); });
        } catch (const std::system_error& error) {
            running_ = false;
            status = -error.code().value();
        }
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
        return status;
    }

    void stop() {
        if (!thread_.joinable()) return;
        running_ = false;
        wake();
        thread_.join();
    }

  private:
    uint32_t cpu_port_;
    int wake_;
    std::mutex mutex_;
    std::atomic<int> waiting_{0};
    std::atomic<bool> running_{false};
    std::thread thread_;
    struct Session {
        std::vector<Replica> replicas;
        uint32_t packet_length;
    };
    ProcessFn process_ = nullptr;
    PassesFn passes_ = nullptr;
    void* program_ = nullptr;
    std::vector<std::unique_ptr<Port>> ports_;  // by number
    std::vector<Port*> list_;
    std::unordered_map<uint32_t, std::vector<Replica>> groups_;
    std::unordered_map<uint32_t, Session> sessions_;
    Port* target_ = nullptr;
    bool to_cpu_ = false;
    Collector* collector_ = nullptr;
    uint64_t start_us_, now_us_ = 0, no_port_ = 0, too_long_ = 0, events_dropped_ = 0;
    std::mutex events_mutex_;
    std::condition_variable events_ready_;
    std::deque<Event> events_;
    bool closed_ = false;
    uint8_t cpu_frame_[MAX_FRAME];

    static uint64_t clock_us() { return monotonic_us(); }

    Port* find(uint32_t number) { return number < ports_.size() ? ports_[number].get() : nullptr; }

    void list_ports() {
        list_.clear();
        for (const auto& port : ports_)
            if (port) list_.push_back(port.get());
        wake();
    }

    template <class F>
    int with_faults(uint32_t number, bool out, F f) {
        Guard guard(*this);
        Port* port = find(number);
        if (!port) return -ENODEV;
        const int status = f(port->faults.of(out));
        port->faults.look();
        return status;
    }

    bool holds_frames() const {
        return std::any_of(list_.begin(), list_.end(), [](const Port* port) { return port->faults.holds(); });
    }

    void wake() {
        const uint64_t one = 1;
        if (write(wake_, &one, sizeof one) < 0) return;  // it is awake already
    }

    uint8_t* collect(uint32_t port, uint32_t length) {
        auto& bytes = collector_->bytes;
        collector_->start = bytes.size();
        bytes.resize(bytes.size() + 8 + length);
        std::memcpy(&bytes[collector_->start], &port, 4);
        return bytes.data() + collector_->start + 8;
    }

    void push(EventKind kind, uint32_t level, const uint8_t* data, size_t length) {
        const std::lock_guard<std::mutex> hold(events_mutex_);
        if (events_.size() >= MAX_EVENTS) {
            events_dropped_++;
            return;
        }
        events_.push_back({kind, level, std::vector<uint8_t>(data, data + length)});
        events_ready_.notify_one();
    }

    void run(uint32_t port, const uint8_t* frame, uint32_t length) {
        now_us_ = clock_us() - start_us_;
        if (process_) process_(program_, frame, length, port);
    }

    // As far as they end at all.
    void finish_waiting() {
        for (int i = 0; waiting && i < MAX_PASSES; i += PASSES) passes_(program_, PASSES);
    }

    void flush_all() {
        for (Port* port : list_) {
            if (port->wants_to_send()) port->flush();
            if (port->capture.is_open()) port->capture.flush();
        }
    }

    void loop() {
        std::vector<pollfd> polled;
        uint64_t next_check = 0;
        while (running_.load(std::memory_order_relaxed)) {
            bool busy = false, check = false;
            uint64_t sleep_us = 0;
            {
                const std::lock_guard<std::mutex> hold(mutex_);
                const uint64_t now = clock_us();
                now_us_ = now - start_us_;
                check = now >= next_check;
                for (size_t i = 0; i < list_.size(); i++) busy |= serve(*list_[i], i < polled.size() ? polled[i].revents : short(0), check);
                if (waiting) {
                    passes_(program_, PASSES);
                    flush_all();
                    busy = true;
                }
                if (check) next_check = now + CHECK_MS * 1000;
                if (!busy) sleep_us = list_for_poll(polled, now);
            }
            for (int i = 0; waiting_.load() > 0 && i < 1000; i++) std::this_thread::yield();
            if (busy) {
                for (pollfd& one : polled) one.revents = 0;
                continue;
            }
            const timespec sleep{time_t(sleep_us / 1000000), long(sleep_us % 1000000) * 1000};
            if (ppoll(polled.data(), polled.size(), &sleep, nullptr) > 0 && polled.back().revents) {
                uint64_t count;
                if (read(wake_, &count, sizeof count) < 0) continue;
            }
        }
    }

    // Whether the port had something to do.
    bool serve(Port& port, short revents, bool check) {
        if (check || (revents & (POLLERR | POLLHUP | POLLNVAL))) port.check();
        const auto take = [&](const uint8_t* frame, uint32_t length) {
            if (process_) process_(program_, frame, length, port.number());
        };
        int received = port.receive(take);
        if (port.faults.holds()) received += port.release(take);
        if (received > 0 || port.wants_to_send()) flush_all();
        return received > 0;
    }

    // How long to sleep: until something is due, or some interface's queue that was full has to be tried again.
    uint64_t list_for_poll(std::vector<pollfd>& polled, uint64_t now) {
        uint64_t sleep_us = CHECK_MS * 1000;
        polled.clear();
        for (Port* port : list_) {
            const bool wait_for_room = port->wants_to_send() && !port->blocked_by_qdisc();
            if (port->blocked_by_qdisc()) sleep_us = std::min<uint64_t>(sleep_us, RETRY_MS * 1000);
            if (port->faults.holds()) sleep_us = std::min(sleep_us, port->faults.due_us() > now ? port->faults.due_us() - now : 0);
            polled.push_back({port->fd(), short(POLLIN | (wait_for_room ? POLLOUT : 0)), 0});
        }
        polled.push_back({wake_, POLLIN, 0});
        return sleep_us;
    }
};

}  // namespace p4
