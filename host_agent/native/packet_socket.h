// Packet sockets on a network interface (packet(7)), with a mapped receive ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct sock_filter;
struct tpacket2_hdr;

namespace p4r {

// A UDP socket that owns port 4791 and drops everything, so that the kernel does not answer with ICMP errors; several
// may, where they are ours. Throws std::runtime_error with a sentence.
class PortGuard {
   public:
    PortGuard();
    ~PortGuard();
    PortGuard(const PortGuard &) = delete;
    PortGuard &operator=(const PortGuard &) = delete;

   private:
    int fd_;
};

// What sets it up throws std::runtime_error with a sentence; all else reports.
class PacketSocket {
   public:
    PacketSocket();
    ~PacketSocket();
    PacketSocket(const PacketSocket &) = delete;
    PacketSocket &operator=(const PacketSocket &) = delete;

    int fd() const { return fd_; }
    void limit_queue(size_t frames, size_t frame_bytes);  // that may wait at the interface
    template <size_t N>
    void filter(sock_filter (&code)[N]) {
        filter(code, N);
    }
    void map_ring(size_t frame_bytes, size_t slots);  // so much of a frame; of so many frames, or more
    void bind(const std::string &interface, uint16_t protocol);  // 0: it receives nothing

    const tpacket2_hdr *next() const;  // the next received frame, until release(); null if there is none
    void release();
    void clear_error();          // after POLLERR, when the interface went down
    uint64_t take_ring_drops();  // since the last call

   private:
    void filter(sock_filter *code, size_t length);
    uint8_t *slot() const;

    int fd_;
    uint8_t *ring_ = nullptr;
    size_t ring_bytes_ = 0, slot_bytes_ = 0, slots_per_block_ = 0, slots_ = 0, next_ = 0;
};

[[noreturn]] void fail(const std::string &what);  // a std::runtime_error: what, and errno in words

}  // namespace p4r
