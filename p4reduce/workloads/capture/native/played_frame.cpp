#include "played_frame.h"

#include <algorithm>
#include <cstring>

#include "frame.h"
#include "icrc.h"

namespace p4r {
namespace {

uint32_t ip_checksum(const uint8_t *header) {
    uint32_t sum = 0;
    for (size_t i = 0; i < kIpBytes; i += 2) sum += load_be16(header + i);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

}  // namespace

size_t write_played_frame(const uint8_t *data, const p4r_play_host *hosts, const p4r_play_packet &packet,
                          uint32_t sequence, uint8_t *frame) {
    const p4r_play_host &from = hosts[packet.from], &to = hosts[packet.to];
    memcpy(frame, to.mac, 6);
    memcpy(frame + 6, from.mac, 6);
    store_be16(frame + 12, 0x0800);

    uint8_t *ip = frame + kEthernetBytes;
    const size_t captured = std::min<size_t>(packet.captured, packet.bytes);
    memcpy(ip, data + packet.offset, captured);
    memset(ip + captured, 0, packet.bytes - captured);
    ip[0] = 0x45;
    store_be16(ip + 2, packet.bytes);
    store_be16(ip + 4, sequence);
    store_be16(ip + 6, 0x4000);  // do not fragment
    ip[8] = kPlayedTimeToLive;
    store_be16(ip + 10, 0);
    store_be32(ip + 12, from.ip);
    store_be32(ip + 16, to.ip);
    store_be16(ip + 10, ip_checksum(ip));
    store_be16(ip + kIpBytes + 4, packet.bytes - kIpBytes);
    store_be16(ip + kIpBytes + 6, 0);  // RoCE v2 sends no UDP checksum
    ip[kIpBytes + kUdpBytes + 8] &= static_cast<uint8_t>(~kSummedBit);  // of a captured sum: switches would drop it

    const size_t covered = packet.bytes - kIcrcBytes;
    const uint32_t value = icrc(ip, covered);
    for (size_t i = 0; i < kIcrcBytes; i++) ip[covered + i] = static_cast<uint8_t>(value >> (8 * i));
    return kEthernetBytes + packet.bytes;
}

}  // namespace p4r
