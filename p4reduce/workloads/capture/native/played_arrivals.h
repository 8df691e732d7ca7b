// Which of the packets that were played a received frame is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "p4r_player.h"

namespace p4r {

// Finds each by what it had when it was sent: its pair of hosts and its number there (of which the IPv4
// identification has the low 16 bits), opcode, queue pair, PSN and length. One thread calls `arrived`.
class Arrivals {
   public:
    static constexpr size_t kNeededBytes = 54;  // of a frame: Ethernet, IPv4, UDP, BTH

    Arrivals(const uint8_t *data, const p4r_play_host *hosts, size_t host_count, const p4r_play_packet *packets,
             size_t packet_count, int64_t *received_ns, uint8_t *reordered, uint8_t *duplicates);

    // `length`: of the frame on the wire; at least kNeededBytes of it are there.
    void arrived(size_t host, const uint8_t *frame, size_t length, int64_t at_ns);

    // Of each packet: its number among those of its pair.
    uint32_t sequence(size_t packet) const { return sequences_[packet]; }
    uint64_t received() const { return received_; }
    uint64_t unexpected() const { return unexpected_; }
    int64_t last_ns() const { return last_ns_; }

   private:
    struct Pair {
        std::vector<uint32_t> packets;  // in the order in which they are sent
        size_t next = 0;                // behind the last of these that has arrived
    };

    bool is(uint32_t packet, const uint8_t *bth, size_t length) const;
    size_t find(const Pair &pair, const uint8_t *frame, size_t length) const;

    const uint8_t *data_;
    const p4r_play_packet *packets_;
    size_t host_count_;
    std::vector<uint32_t> addresses_;
    std::vector<Pair> pairs_;
    std::vector<uint32_t> sequences_;
    std::vector<uint32_t> flows_;    // of each packet; a flow takes one way through the fabric
    std::vector<size_t> flow_next_;  // as Pair::next
    int64_t *received_ns_;
    uint8_t *reordered_, *duplicates_;
    std::atomic<uint64_t> received_{0}, unexpected_{0};
    std::atomic<int64_t> last_ns_{P4R_PLAY_NEVER};
};

}  // namespace p4r
