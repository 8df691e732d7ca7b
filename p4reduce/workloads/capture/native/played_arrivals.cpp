#include "played_arrivals.h"

#include <algorithm>
#include <unordered_map>

#include "frame.h"

namespace p4r {
namespace {

constexpr size_t kNone = SIZE_MAX;
constexpr size_t kIdentifications = 65536;

}  // namespace

Arrivals::Arrivals(const uint8_t *data, const p4r_play_host *hosts, size_t host_count, const p4r_play_packet *packets,
                   size_t packet_count, int64_t *received_ns, uint8_t *reordered, uint8_t *duplicates)
    : data_(data), packets_(packets), host_count_(host_count), pairs_(host_count * host_count),
      sequences_(packet_count), flows_(packet_count), received_ns_(received_ns), reordered_(reordered),
      duplicates_(duplicates) {
    for (size_t i = 0; i < host_count; i++) addresses_.push_back(hosts[i].ip);
    std::unordered_map<uint64_t, uint32_t> flows;
    for (size_t i = 0; i < packet_count; i++) {
        const size_t pair = packets[i].from * host_count + packets[i].to;
        sequences_[i] = static_cast<uint32_t>(pairs_[pair].packets.size());
        pairs_[pair].packets.push_back(static_cast<uint32_t>(i));
        const uint8_t *udp = data + packets[i].offset + kIpBytes;
        const uint64_t key = uint64_t{pair} << 40 | uint64_t{load_be16(udp)} << 24 | load_be24(udp + kUdpBytes + 5);
        flows_[i] = flows.emplace(key, static_cast<uint32_t>(flows.size())).first->second;
    }
    flow_next_.resize(flows.size());
}

bool Arrivals::is(uint32_t packet, const uint8_t *bth, size_t length) const {
    const p4r_play_packet &sent = packets_[packet];
    const uint8_t *own = data_ + sent.offset + kIpBytes + kUdpBytes;
    return length == kEthernetBytes + sent.bytes && bth[0] == own[0] && load_be24(bth + 5) == load_be24(own + 5) &&
           load_be24(bth + 9) == load_be24(own + 9);
}

size_t Arrivals::find(const Pair &pair, const uint8_t *frame, size_t length) const {
    const uint8_t *bth = frame + kEthernetBytes + kIpBytes + kUdpBytes;
    const size_t low = load_be16(frame + kEthernetBytes + 4);
    const size_t count = pair.packets.size();
    // Most likely the one nearest to what is due.
    const size_t due = pair.next;
    const auto away = static_cast<int16_t>(static_cast<uint16_t>(low - due));
    const size_t nearest = due + static_cast<size_t>(away);  // wraps below 0: then it is beyond `count`
    if (nearest < count && is(pair.packets[nearest], bth, length)) return nearest;
    size_t again = kNone;
    for (size_t i = low; i < count; i += kIdentifications) {
        if (!is(pair.packets[i], bth, length)) continue;
        if (received_ns_[pair.packets[i]] == P4R_PLAY_NEVER) return i;
        again = i;
    }
    return again;
}

void Arrivals::arrived(size_t host, const uint8_t *frame, size_t length, int64_t at_ns) {
    const uint32_t source = load_be32(frame + kEthernetBytes + 12);
    const auto from = std::find(addresses_.begin(), addresses_.end(), source);
    if (from == addresses_.end()) {
        unexpected_++;
        return;
    }
    Pair &pair = pairs_[static_cast<size_t>(from - addresses_.begin()) * host_count_ + host];
    const size_t sequence = find(pair, frame, length);
    if (sequence == kNone) {
        unexpected_++;
        return;
    }
    last_ns_ = at_ns;
    const uint32_t packet = pair.packets[sequence];
    if (received_ns_[packet] != P4R_PLAY_NEVER) {
        if (duplicates_[packet] != UINT8_MAX) duplicates_[packet]++;
        return;
    }
    received_ns_[packet] = std::max<int64_t>(at_ns, 0);
    received_++;
    size_t &flow_next = flow_next_[flows_[packet]];
    if (sequence < flow_next) reordered_[packet] = 1;  // RFC 4737
    flow_next = std::max(flow_next, sequence + 1);
    pair.next = std::max(pair.next, sequence + 1);
}

}  // namespace p4r
