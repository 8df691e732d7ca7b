#include "frame_player.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "frame.h"
#include "played_frame.h"

namespace p4r {
namespace {

constexpr size_t kBurst = 32;                       // frames that a sender writes before they are due
constexpr size_t kRingSlots = 64 * 1024;            // of all hosts together
constexpr size_t kLeastRingSlots = 4096;            // of a host
constexpr int64_t kHeadStartNs = 20'000'000;        // from start() until the first packet is due
constexpr int64_t kLongestSleepNs = 50'000'000;     // so long does stop() take at most
constexpr int64_t kReceiverRestNs = 1'000'000;      // times are the kernel's: rings need no look at each packet

int64_t now_of(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

timespec as_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

const FramePlayer::Input &FramePlayer::checked(const Input &input) {
    if (input.host_count == 0 || input.host_count > 256) throw std::runtime_error("1 to 256 hosts can play packets");
    if (input.packet_count > UINT32_MAX) throw std::runtime_error("more than 2^32 packets");
    for (size_t i = 0; i < input.packet_count; i++) {
        const p4r_play_packet &packet = input.packets[i];
        const bool right = packet.from < input.host_count && packet.to < input.host_count &&
                           packet.bytes >= kIpBytes + kUdpBytes + kBthBytes + kIcrcBytes &&
                           packet.captured >= kIpBytes + kUdpBytes + kBthBytes &&
                           packet.offset <= input.data_bytes && packet.captured <= input.data_bytes - packet.offset;
        if (!right) throw std::runtime_error("packet " + std::to_string(i) + " is not within the data, or too short");
    }
    return input;
}

FramePlayer::FramePlayer(const Input &input)
    : input_(checked(input)), arrivals_(input.data, input.hosts, input.host_count, input.packets, input.packet_count,
                                        input.received_ns, input.reordered, input.duplicates),
      of_host_(input.host_count) {
    for (size_t i = 0; i < input_.packet_count; i++) {
        const p4r_play_packet &packet = input_.packets[i];
        of_host_[packet.from].push_back(static_cast<uint32_t>(i));
        frame_bytes_ = std::max<size_t>(frame_bytes_, kEthernetBytes + packet.bytes);
    }
    const size_t slots = std::max(kLeastRingSlots, kRingSlots / input_.host_count);
    for (size_t host = 0; host < input_.host_count; host++) {
        interfaces_.push_back(input_.hosts[host].interface);
        sockets_.push_back(std::make_unique<PlayedSocket>(input_.hosts[host], frame_bytes_, slots));
    }
}

FramePlayer::~FramePlayer() { stop(); }

void FramePlayer::start() {
    if (!threads_.empty()) throw std::runtime_error("the player has been started already");
    epoch_ns_ = now_of(CLOCK_MONOTONIC) + kHeadStartNs;
    realtime_epoch_ns_ = now_of(CLOCK_REALTIME) - now_of(CLOCK_MONOTONIC) + epoch_ns_;
    sigset_t all, before;  // signals are the interpreter's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        threads_.emplace_back([this] { receive_all(); });
        for (size_t host = 0; host < input_.host_count; host++) {
            if (of_host_[host].empty()) continue;
            senders_++;
            threads_.emplace_back([this, host] {
                send_all(host);
                senders_--;
            });
        }
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void FramePlayer::stop() {
    stop_ = true;
    for (std::thread &thread : threads_)
        if (thread.joinable()) thread.join();
}

void FramePlayer::progress(p4r_play_progress *progress) {
    *progress = {};
    progress->sent = sent_;
    progress->received = arrivals_.received();
    progress->unexpected = arrivals_.unexpected();
    progress->blocked = blocked_;
    progress->ring_drops = ring_drops_;
    progress->last_received_ns = arrivals_.last_ns();
    progress->senders = senders_;
    const std::lock_guard<std::mutex> lock(mutex_);
    progress->failed = failure_.empty() ? 0 : 1;
    snprintf(progress->error, sizeof progress->error, "%s", failure_.c_str());
}

bool FramePlayer::sleep_until(int64_t at_ns) {
    const int64_t deadline = epoch_ns_ + at_ns;
    while (!stop_) {
        const int64_t now = now_of(CLOCK_MONOTONIC);
        if (now >= deadline) return true;
        const timespec until = as_timespec(std::min(deadline, now + kLongestSleepNs));
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    }
    return false;
}

void FramePlayer::send_all(size_t host) {
    pthread_setname_np(pthread_self(), "p4r-player");
    prctl(PR_SET_TIMERSLACK, 1UL);  // not the 50 us by which Linux lets threads oversleep
    const size_t stride = aligned(frame_bytes_);
    std::vector<uint8_t> frames(stride * kBurst);
    iovec vectors[kBurst];
    mmsghdr messages[kBurst];
    const std::vector<uint32_t> &packets = of_host_[host];
    for (size_t first = 0; first < packets.size(); first += kBurst) {
        const size_t count = std::min(kBurst, packets.size() - first);
        for (size_t i = 0; i < count; i++) {
            const uint32_t packet = packets[first + i];
            vectors[i].iov_base = frames.data() + i * stride;
            vectors[i].iov_len = write_played_frame(input_.data, input_.hosts, input_.packets[packet],
                                                    arrivals_.sequence(packet), frames.data() + i * stride);
            messages[i] = {};
            messages[i].msg_hdr.msg_iov = &vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        for (size_t done = 0; done < count;) {
            if (!sleep_until(input_.packets[packets[first + done]].at_ns)) return;
            const int64_t now = now_of(CLOCK_MONOTONIC) - epoch_ns_;
            size_t due = done + 1;
            while (due < count && input_.packets[packets[first + due]].at_ns <= now) due++;
            if (!send_due(host, packets.data() + first + done, messages + done, due - done)) return;
            done = due;
        }
    }
}

bool FramePlayer::send_due(size_t host, const uint32_t *packets, mmsghdr *messages, size_t count) {
    for (size_t done = 0; done < count;) {
        if (stop_) return false;
        const int64_t now = now_of(CLOCK_MONOTONIC) - epoch_ns_;
        int64_t wait_ns = 0;
        int error = 0;
        const size_t sent = sockets_[host]->send(messages + done, count - done, &wait_ns, &error);
        if (error != 0) {
            fail(host, error);
            return false;
        }
        for (size_t i = 0; i < sent; i++) input_.sent_ns[packets[done + i]] = now;
        done += sent;
        sent_ += sent;
        if (sent == 0) {
            blocked_++;
            wait_for(*sockets_[host], wait_ns);
        }
    }
    return true;
}

void FramePlayer::wait_for(PlayedSocket &socket, int64_t wait_ns) {
    const timespec pause = as_timespec(wait_ns != 0 ? wait_ns : kLongestSleepNs);
    pollfd file = {socket.send_fd(), POLLOUT, 0};
    if (ppoll(&file, wait_ns != 0 ? 0 : 1, &pause, nullptr) < 0) return;  // whoever called tries again
}

void FramePlayer::receive_all() {
    pthread_setname_np(pthread_self(), "p4r-listener");
    std::vector<pollfd> files;
    for (const auto &socket : sockets_) files.push_back({socket->receive_fd(), POLLIN, 0});
    const timespec longest = as_timespec(kLongestSleepNs), rest = as_timespec(kReceiverRestNs);
    while (!stop_) {
        if (ppoll(files.data(), files.size(), &longest, nullptr) > 0) {
            for (size_t host = 0; host < files.size(); host++)
                if (files[host].revents & POLLERR) sockets_[host]->clear_error();
        }
        for (size_t host = 0; host < files.size(); host++) drain(host);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, nullptr);
    }
    for (size_t host = 0; host < files.size(); host++) {
        drain(host);
        ring_drops_ += sockets_[host]->take_ring_drops();
    }
}

size_t FramePlayer::drain(size_t host) {
    PlayedSocket::Head head;
    size_t count = 0;
    while (sockets_[host]->next(&head)) {
        if (head.bytes >= Arrivals::kNeededBytes)
            arrivals_.arrived(host, head.frame, head.length, head.at_ns - realtime_epoch_ns_);
        sockets_[host]->release();
        count++;
    }
    return count;
}

void FramePlayer::fail(size_t host, int error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = "interface " + interfaces_[host] + " sends nothing: " + strerror(error);
    stop_ = true;
}

}  // namespace p4r
