// A port: an AF_PACKET socket on an interface, with a mapped receive ring (TPACKET_V2) and batched sending.
#pragma once
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capture.h"
#include "faults.h"
#include "host.h"
#include "tx_queue.h"
#include "tx_ring.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

namespace p4 {

struct PortStats {
    uint64_t rx_packets, rx_bytes, rx_dropped, rx_oversize, rx_lost;
    uint64_t tx_packets, tx_bytes, tx_dropped, tx_errors, tx_lost;
    uint64_t up, reopened;
};

inline uint64_t monotonic_us() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000 + uint64_t(now.tv_nsec) / 1000;
}

class Port {
  public:
    static constexpr int BATCH = 32;

    Port(uint32_t number, const char* interface) : number_(number), interface_(interface) {
        for (int i = 0; i < BATCH; i++) {
            messages_[i].msg_hdr.msg_iov = &parts_[i];
            messages_[i].msg_hdr.msg_iovlen = 1;
        }
    }
    ~Port() { close_socket(); }
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

    uint32_t number() const { return number_; }
    int fd() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }
    bool wants_to_send() const { return is_open() && (queue_.size() > 0 || ring_out_.size() > 0); }
    bool blocked_by_qdisc() const { return blocked_by_qdisc_; }

    // 0 or -errno. The interface may be down; it has to exist.
    int open_socket() {
        close_socket();
        const unsigned index = if_nametoindex(interface_.c_str());
        if (index == 0) return -ENODEV;
        fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
        if (fd_ < 0) return -errno;
        const int status = configure(int(index));
        if (status < 0) close_socket();
        return status;
    }

    // Calls f(frame, length) for up to BATCH received frames; how many there were.
    template <class F>
    int receive(F f) {
        if (fd_ < 0) return 0;
        int seen = 0;
        for (; seen < BATCH; seen++) {
            auto* header = reinterpret_cast<tpacket2_hdr*>(frame_at(position_));
            const uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
            if (!(status & TP_STATUS_USER)) break;
            const uint32_t next = after(position_);
            prefetch(frame_at(next), frame_at(after(next)));
            take(header, status, f);
            __atomic_store_n(&header->tp_status, uint32_t(TP_STATUS_KERNEL), __ATOMIC_RELEASE);
            position_ = next;
        }
        return seen;
    }

    // Frames go into the ring while nothing waits that the interface did not take, otherwise behind that.
    uint8_t* reserve(uint32_t length) {
        if (fd_ < 0) return stats_.tx_dropped++, nullptr;
        in_ring_ = nullptr;
        if (queue_.size() == 0 && ring_out_.is_open()) in_ring_ = ring_out_.reserve(length);
        if (in_ring_) return in_ring_;
        if (ring_out_.size() > 0) flush();
        room_ = queue_.reserve(length);
        if (!room_) {
            flush();
            room_ = queue_.reserve(length);
        }
        if (!room_) stats_.tx_dropped++;
        return room_;
    }

    void commit(uint32_t length) {
        if (length < ETH_HLEN) {  // no Ethernet frame: no interface takes it
            stats_.tx_errors++;
            return;
        }
        if (!faults.active()) return put(length);
        const uint8_t* frame = in_ring_ ? in_ring_ : room_;
        scratch_.assign(frame, frame + length);  // who goes on, and in which order, takes the room
        if (!faults.pass(true, scratch_.data(), length, monotonic_us(), [&](const uint8_t* bytes, uint32_t n) { send(bytes, n); }))
            stats_.tx_lost++;
    }

    // Frames that a fault held back and that are due: into f(frame, length), or out of the port; how many.
    template <class F>
    int release(F f) {
        int released = 0;
        const uint64_t now = monotonic_us();
        timespec real{};
        clock_gettime(CLOCK_REALTIME, &real);
        faults.in.release(now, [&](const uint8_t* bytes, uint32_t n) {
            released++;
            deliver(bytes, n, uint32_t(real.tv_sec), uint32_t(real.tv_nsec), f);
        });
        faults.out.release(now, [&](const uint8_t* bytes, uint32_t n) {
            released++;
            send(bytes, n);
        });
        faults.look();
        return released;
    }

    // Send what waits, as far as the interface takes it; what it does not take now stays.
    void flush() {
        blocked_by_qdisc_ = false;
        if (ring_out_.size() > 0) send_ring();
        while (fd_ >= 0 && queue_.size() > 0) {
            const uint32_t count = std::min<uint32_t>(queue_.size(), BATCH);
            for (uint32_t i = 0; i < count; i++) parts_[i] = {queue_.data(queue_[i]), queue_[i].length};
            const int sent = sendmmsg(fd_, messages_, count, MSG_DONTWAIT);
            if (sent > 0) {
                sent_frames(uint32_t(sent));
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                return;  // poll says when there is room
            } else if (errno == ENOBUFS) {
                blocked_by_qdisc_ = true;  // nothing says when there is room: try again soon
                return;
            } else if (errno != EINTR) {
                stats_.tx_errors++;  // an interface that is down, a frame it does not take
                queue_.pop(1);
            }
        }
    }

    // After POLLERR, and from time to time: whether the socket still is on the interface of that name.
    void check() {
        if (fd_ >= 0) {
            int error = 0;
            socklen_t size = sizeof error;
            getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
            mtu_ = read_mtu();
            if (int(if_nametoindex(interface_.c_str())) == index_ && !ring_too_small()) return;
            close_socket();
        }
        if (open_socket() == 0) stats_.reopened++;
    }

    PortStats stats() {
        if (fd_ >= 0) {
            tpacket_stats kernel{};
            socklen_t size = sizeof kernel;
            if (getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &kernel, &size) == 0)
                stats_.rx_dropped += kernel.tp_drops;
        }
        stats_.up = fd_ >= 0 && (flags() & IFF_UP) && (flags() & IFF_RUNNING);
        return stats_;
    }

    PortFaults faults;
    Capture capture;

  private:
    // Room before the frame for a VLAN tag, which the kernel hands over apart from the frame.
    static constexpr int VLAN_ROOM = 16, VLAN_TAG = 4;
    static constexpr size_t BLOCK = 1 << 17, RING = 4 << 20;
    static constexpr uint32_t MIN_FRAMES = 512;
    static constexpr uint32_t CACHE_LINE = 64, MAX_PREFETCH = 1536;

    uint32_t number_;
    std::string interface_;
    int fd_ = -1, index_ = 0;
    uint8_t* ring_ = nullptr;
    size_t ring_size_ = 0;
    uint32_t frame_size_ = 0, frames_ = 0, per_block_ = 1, position_ = 0, oversize_seen_ = 0;
    bool blocked_by_qdisc_ = false;
    uint32_t mtu_ = 1500;
    TxRing ring_out_;
    uint8_t* in_ring_ = nullptr;  // where the frame last reserved is, if not in the queue
    uint8_t* room_ = nullptr;     // where it is there
    std::vector<uint8_t> scratch_;
    TxQueue queue_;
    mmsghdr messages_[BATCH] = {};
    iovec parts_[BATCH] = {};
    PortStats stats_{};

    uint8_t* frame_at(uint32_t i) { return ring_ + size_t(i / per_block_) * BLOCK + size_t(i % per_block_) * frame_size_; }

    uint32_t after(uint32_t i) const { return i + 1 == frames_ ? 0 : i + 1; }

    // The kernel wrote the ring on other processors: ask for what comes next while a frame is processed, of the next
    // frame its bytes, of the one behind it how many these are.
    static void prefetch(const uint8_t* next, const uint8_t* behind) {
        __builtin_prefetch(behind);
        const auto* header = reinterpret_cast<const tpacket2_hdr*>(next);
        if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) return;
        const uint32_t end = header->tp_mac + std::min(header->tp_snaplen, MAX_PREFETCH);
        for (uint32_t at = header->tp_mac; at < end; at += CACHE_LINE) __builtin_prefetch(next + at);
    }

    int request(unsigned long what, ifreq& ifr) const {
        std::strncpy(ifr.ifr_name, interface_.c_str(), IFNAMSIZ - 1);
        return ioctl(fd_, what, &ifr);
    }
    short flags() const {
        ifreq ifr{};
        return request(SIOCGIFFLAGS, ifr) == 0 ? ifr.ifr_flags : short(0);
    }
    uint32_t read_mtu() const {
        ifreq ifr{};
        return request(SIOCGIFMTU, ifr) == 0 ? uint32_t(ifr.ifr_mtu) : 1500;
    }
    uint32_t frame_size_for_mtu() const {
        const uint32_t mtu = read_mtu();
        const uint32_t overhead = TPACKET2_HDRLEN + VLAN_ROOM + 64;
        return uint32_t(TPACKET_ALIGN(std::min(std::max(mtu, 1500u), MAX_FRAME - 64) + overhead));
    }
    bool ring_too_small() {
        const bool seen = oversize_seen_ > 0;
        oversize_seen_ = 0;
        return seen && frame_size_for_mtu() > frame_size_;
    }

    int configure(int index) {
        const int version = TPACKET_V2, one = 1, room = VLAN_ROOM;
        if (setsockopt(fd_, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0) return -errno;
        if (setsockopt(fd_, SOL_PACKET, PACKET_RESERVE, &room, sizeof room) < 0) return -errno;
        setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);  // older kernels: take() filters
        frame_size_ = frame_size_for_mtu();
        per_block_ = uint32_t(BLOCK / frame_size_);
        const uint32_t wanted = std::max<uint32_t>(MIN_FRAMES, uint32_t(RING / frame_size_));
        const uint32_t blocks = (wanted + per_block_ - 1) / per_block_;
        frames_ = blocks * per_block_;
        const tpacket_req ring{unsigned(BLOCK), blocks, frame_size_, frames_};
        if (setsockopt(fd_, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) < 0) return -errno;
        ring_size_ = BLOCK * blocks;
        void* map = mmap(nullptr, ring_size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (map == MAP_FAILED) return -errno;
        ring_ = static_cast<uint8_t*>(map);
        position_ = 0;
        packet_mreq promiscuous{};
        promiscuous.mr_ifindex = index;
        promiscuous.mr_type = PACKET_MR_PROMISC;
        if (setsockopt(fd_, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0) return -errno;
        sockaddr_ll address{};
        address.sll_family = AF_PACKET;
        address.sll_protocol = htons(ETH_P_ALL);
        address.sll_ifindex = index;
        if (bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) return -errno;
        index_ = index;
        mtu_ = read_mtu();
        ring_out_.open(index, std::min(mtu_ + ETH_HLEN + VLAN_TAG, MAX_FRAME));
        return 0;
    }

    void close_socket() {
        if (ring_) munmap(ring_, ring_size_);
        if (fd_ >= 0) close(fd_);
        ring_ = nullptr;
        fd_ = -1;
        stats_.tx_dropped += queue_.size() + ring_out_.size();
        ring_out_.close();
        queue_.pop(queue_.size());
    }

    template <class F>
    void take(tpacket2_hdr* header, uint32_t status, F f) {
        const auto* address = reinterpret_cast<const sockaddr_ll*>(reinterpret_cast<uint8_t*>(header) +
                                                                   TPACKET_ALIGN(sizeof(tpacket2_hdr)));
        if (address->sll_pkttype == PACKET_OUTGOING) return;
        uint32_t length = header->tp_snaplen;
        if (length < header->tp_len || length > MAX_FRAME - 4) {
            stats_.rx_oversize++, oversize_seen_++;
            return;
        }
        uint8_t* frame = reinterpret_cast<uint8_t*>(header) + header->tp_mac;
        if ((status & TP_STATUS_VLAN_VALID) && length >= 12) {
            const uint16_t tpid = status & TP_STATUS_VLAN_TPID_VALID ? header->tp_vlan_tpid : uint16_t(ETH_P_8021Q);
            std::memmove(frame - 4, frame, 12);
            frame -= 4, length += 4;
            const uint16_t tag[2] = {htons(tpid), htons(header->tp_vlan_tci)};
            std::memcpy(frame + 12, tag, 4);
        }
        if (!faults.active()) return deliver(frame, length, header->tp_sec, header->tp_nsec, f);
        const bool passed = faults.pass(false, frame, length, monotonic_us(), [&](const uint8_t* bytes, uint32_t n) {
            deliver(bytes, n, header->tp_sec, header->tp_nsec, f);
        });
        if (!passed) stats_.rx_lost++;
    }

    template <class F>
    void deliver(const uint8_t* frame, uint32_t length, uint32_t seconds, uint32_t nanoseconds, F f) {
        stats_.rx_packets++, stats_.rx_bytes += length;
        if (capture.is_open()) capture.write(frame, length, seconds, nanoseconds);
        f(frame, length);
    }

    // The frame last reserved goes out.
    void put(uint32_t length) {
        if (in_ring_) {
            if (!fits_mtu(in_ring_, length)) {
                stats_.tx_errors++;
                return;
            }
            ring_out_.commit(length);
            if (ring_out_.size() >= BATCH) flush();
        } else {
            queue_.commit(length);
            if (queue_.size() % BATCH == 0) flush();
        }
    }

    void send(const uint8_t* frame, uint32_t length) {
        uint8_t* room = reserve(length);
        if (!room) return;
        std::memcpy(room, frame, length);
        put(length);
    }

    // What the interface does not take begins the queue. (A ring's socket cannot tell when there is room again.)
    void send_ring() {
        const uint32_t sent = ring_out_.send();
        timespec now{};
        if (capture.is_open()) clock_gettime(CLOCK_REALTIME, &now);
        for (uint32_t i = 0; i < sent; i++) sent_frame(ring_out_.frame(i), ring_out_.length(i), now);
        for (uint32_t i = sent; i < ring_out_.size(); i++) {
            const uint32_t length = ring_out_.length(i);
            uint8_t* room = queue_.reserve(length);
            if (room) {
                std::memcpy(room, ring_out_.frame(i), length);
                queue_.commit(length);
            } else {
                stats_.tx_dropped++;
            }
        }
        ring_out_.clear(sent);
    }

    // A VLAN tag does not count.
    bool fits_mtu(const uint8_t* frame, uint32_t length) const {
        if (length <= mtu_ + ETH_HLEN) return length <= ring_out_.capacity();
        const bool tagged = frame[12] == ETH_P_8021Q >> 8 && frame[13] == (ETH_P_8021Q & 0xFF);
        return tagged && length <= std::min(mtu_ + ETH_HLEN + VLAN_TAG, ring_out_.capacity());
    }

    void sent_frames(uint32_t count) {
        timespec now{};
        if (capture.is_open()) clock_gettime(CLOCK_REALTIME, &now);
        for (uint32_t i = 0; i < count; i++) sent_frame(queue_.data(queue_[i]), queue_[i].length, now);
        queue_.pop(count);
    }

    void sent_frame(const uint8_t* frame, uint32_t length, const timespec& now) {
        stats_.tx_packets++, stats_.tx_bytes += length;
        if (capture.is_open()) capture.write(frame, length, uint32_t(now.tv_sec), uint32_t(now.tv_nsec));
    }
};

}  // namespace p4
