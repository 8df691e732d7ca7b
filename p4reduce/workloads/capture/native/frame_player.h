// Plays captured packets on the interfaces of a fabric's hosts, each at its time, and looks for them where they go.
//
//     packets of a capture ── by host ──► a thread a host: write the frame, sleep until it is due, send
//                                             │ queueing discipline of the interface, switches
//     received_ns, reordered, … ◄── which packet is it? ◄── one thread: the rings of all hosts
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "p4r_player.h"
#include "played_arrivals.h"
#include "played_socket.h"

namespace p4r {

class FramePlayer {
   public:
    struct Input {
        const uint8_t *data;
        uint64_t data_bytes;
        const p4r_play_host *hosts;
        size_t host_count;
        const p4r_play_packet *packets;
        size_t packet_count;
        int64_t *sent_ns, *received_ns;
        uint8_t *reordered, *duplicates;
    };

    explicit FramePlayer(const Input &input);  // throws std::runtime_error with a sentence
    ~FramePlayer();
    FramePlayer(const FramePlayer &) = delete;
    FramePlayer &operator=(const FramePlayer &) = delete;

    void start();
    void stop();
    void progress(p4r_play_progress *progress);

   private:
    static const Input &checked(const Input &input);
    void send_all(size_t host);
    bool sleep_until(int64_t at_ns);  // false: it is to stop
    bool send_due(size_t host, const uint32_t *packets, struct mmsghdr *messages, size_t count);
    void wait_for(PlayedSocket &socket, int64_t wait_ns);
    void receive_all();
    size_t drain(size_t host);
    void fail(size_t host, int error);

    const Input input_;
    size_t frame_bytes_ = 0;
    Arrivals arrivals_;
    std::vector<std::vector<uint32_t>> of_host_;  // packets that it sends, in their order
    std::vector<std::string> interfaces_;
    std::vector<std::unique_ptr<PlayedSocket>> sockets_;
    std::vector<std::thread> threads_;
    int64_t epoch_ns_ = 0;           // CLOCK_MONOTONIC at the start
    int64_t realtime_epoch_ns_ = 0;  // CLOCK_REALTIME, the same moment
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> sent_{0}, blocked_{0}, ring_drops_{0};
    std::atomic<uint32_t> senders_{0};
    std::mutex mutex_;  // of what follows
    std::string failure_;
};

}  // namespace p4r
