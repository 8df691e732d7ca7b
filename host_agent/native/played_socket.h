// A host's interface, as the frame player uses it: batched sends, and a receive ring for the heads of played packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "p4r_player.h"

struct mmsghdr;

namespace p4r {

// All methods but the constructor report, never throw.
class PlayedSocket {
   public:
    // In the network namespace of the host. `slots`: heads that the ring holds at least. Throws std::runtime_error with
    // a sentence.
    PlayedSocket(const p4r_play_host &host, size_t frame_bytes, size_t slots);
    ~PlayedSocket();
    PlayedSocket(const PlayedSocket &) = delete;
    PlayedSocket &operator=(const PlayedSocket &) = delete;

    int receive_fd() const { return receive_; }
    int send_fd() const { return send_; }

    struct Head {
        const uint8_t *frame;
        size_t bytes;    // that are there
        size_t length;   // of the frame on the wire
        int64_t at_ns;   // CLOCK_REALTIME, by the kernel
    };
    // The next that has been received; false if there is none. It stays valid until release().
    bool next(Head *head);
    void release();

    // Sends some of the frames, and says how many. 0: wait for `*wait_ns` (0: until send_fd is writable); or `*error`
    // is an errno.
    size_t send(mmsghdr *messages, size_t count, int64_t *wait_ns, int *error);

    void clear_error();  // after POLLERR
    uint64_t take_ring_drops();

   private:
    void open(const p4r_play_host &host, size_t frame_bytes, size_t slots);
    void open_ring(const p4r_play_host &host, size_t slots);
    void bind_to(int fd, const p4r_play_host &host, uint16_t protocol);
    void close();
    uint8_t *slot(size_t index) const;

    int send_ = -1, receive_ = -1;
    int guard_ = -1;  // owns UDP port 4791, so that the kernel does not answer with ICMP errors
    uint8_t *ring_ = nullptr;
    size_t ring_bytes_ = 0, slots_ = 0, next_ = 0;
};

}  // namespace p4r
