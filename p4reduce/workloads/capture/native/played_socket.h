// A host's interface, as the frame player uses it: batched sends, and a receive ring for the heads of played packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "p4r_player.h"
#include "packet_socket.h"

struct mmsghdr;

namespace p4r {

// All methods but the constructor report, never throw.
class PlayedSocket {
   public:
    // In the network namespace of the host. `slots`: heads that the ring holds at least. Throws std::runtime_error with
    // a sentence.
    PlayedSocket(const p4r_play_host &host, size_t frame_bytes, size_t slots);

    int receive_fd() const { return receive_->fd(); }
    int send_fd() const { return send_->fd(); }

    struct Head {
        const uint8_t *frame;
        size_t bytes;    // that are there
        size_t length;   // of the frame on the wire
        int64_t at_ns;   // CLOCK_REALTIME, by the kernel
    };
    // The next that has been received; false if there is none. It stays valid until release().
    bool next(Head *head);
    void release() { receive_->release(); }

    // Sends some of the frames, and says how many. 0: wait for `*wait_ns` (0: until send_fd is writable); or `*error`
    // is an errno.
    size_t send(mmsghdr *messages, size_t count, int64_t *wait_ns, int *error);

    void clear_error() { receive_->clear_error(); }
    uint64_t take_ring_drops() { return receive_->take_ring_drops(); }

   private:
    std::unique_ptr<PacketSocket> send_, receive_;
    std::unique_ptr<PortGuard> guard_;
};

}  // namespace p4r
