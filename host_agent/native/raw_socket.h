// A raw socket on one network interface: mapped receive ring, batched sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "p4r.h"
#include "packet_socket.h"

struct mmsghdr;
struct iovec;

namespace p4r {

// Frames for our address and our two QPs. All methods but the constructor report, never throw.
class RawSocket {
   public:
    // Throws std::runtime_error with a sentence. `slots`: frames the receive ring holds at least.
    RawSocket(const p4r_config &config, const std::string &interface, size_t slots);

    int fd() const { return socket_.fd(); }

    // The next received frame, null if there is none. It stays valid until release().
    const uint8_t *next(size_t *length);
    void release() { socket_.release(); }

    enum class Sent { kAll, kFull, kError };
    // Sends frames [*done, count) of a batch; advances *done. kFull: try again when writable or later.
    Sent send(mmsghdr *messages, size_t count, size_t *done, bool *queue_full);

    void clear_error() { socket_.clear_error(); }
    uint64_t take_ring_drops() { return socket_.take_ring_drops(); }

   private:
    PacketSocket socket_;
    PortGuard guard_;
};

}  // namespace p4r
