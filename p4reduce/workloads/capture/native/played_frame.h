// The frame that is sent for a captured packet: its BTH (without a switch's mark), payload, size and type of service; everything
// else is new.
#pragma once

#include <cstddef>
#include <cstdint>

#include "p4r_player.h"

namespace p4r {

// Above what any of our hosts and Linux's RoCE stack send (64), so that a receiver can tell played packets by it,
// whatever their queue pairs. Switches count it down; no checksum of RoCE v2 covers it.
constexpr uint8_t kPlayedTimeToLive = 128, kOthersTimeToLive = 64;

// `sequence` counts packets from one host to another; its low 16 bits are the IPv4 identification.
size_t write_played_frame(const uint8_t *data, const p4r_play_host *hosts, const p4r_play_packet &packet,
                          uint32_t sequence, uint8_t *frame);

}  // namespace p4r
