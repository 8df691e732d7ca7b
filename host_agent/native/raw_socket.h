// A raw socket on one network interface: mapped receive ring, batched sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "p4r.h"

struct mmsghdr;
struct iovec;

namespace p4r {

// A UDP socket that owns port 4791 and drops everything; several may, where they are ours. Throws std::runtime_error
// with a sentence.
int open_guard();

// Frames for our address and our two QPs. All methods but the constructor report, never throw.
class RawSocket {
   public:
    // Throws std::runtime_error with a sentence. `slots`: frames the receive ring holds at least.
    RawSocket(const p4r_config &config, const std::string &interface, size_t slots);
    ~RawSocket();
    RawSocket(const RawSocket &) = delete;
    RawSocket &operator=(const RawSocket &) = delete;

    int fd() const { return fd_; }

    // The next received frame, null if there is none. It stays valid until release().
    const uint8_t *next(size_t *length);
    void release();

    enum class Sent { kAll, kFull, kError };
    // Sends frames [*done, count) of a batch; advances *done. kFull: try again when writable or later.
    Sent send(mmsghdr *messages, size_t count, size_t *done, bool *queue_full);

    void clear_error();         // after POLLERR, when the interface went down
    uint64_t take_ring_drops();  // since the last call

   private:
    void open(const p4r_config &config, const std::string &interface, size_t slots);
    void close();
    uint8_t *slot(size_t index) const;

    int fd_ = -1;
    int guard_ = -1;  // owns UDP port 4791, so that the kernel does not answer with ICMP errors
    uint8_t *ring_ = nullptr;
    size_t ring_bytes_ = 0, block_bytes_ = 0, slot_bytes_ = 0, slots_per_block_ = 0, slots_ = 0;
    size_t next_ = 0;
};

}  // namespace p4r
