#include "frame.h"

#include <cstring>

#include "icrc.h"

namespace p4r {
namespace {

// Offsets in a frame.
constexpr size_t kIp = kEthernetBytes, kUdp = kIp + kIpBytes, kBth = kUdp + kUdpBytes;

constexpr uint8_t kAckRequestBit = 0x80;

}  // namespace

int64_t rnr_timer_ns(uint8_t code) {
    static constexpr int64_t kHundredthsMs[32] = {65536, 1,   2,   3,   4,   6,    8,    12,   16,   24,   32,
                                                  48,    64,  96,  128, 192, 256,  384,  512,  768,  1024, 1536,
                                                  2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return kHundredthsMs[code & 31] * 10'000;
}

Parsed parse_frame(const uint8_t *frame, size_t length, bool check_icrc, Packet *packet) {
    if (length < kEthernetBytes + kIpBytes + kUdpBytes) return Parsed::kForeign;
    const uint8_t *ip = frame + kIp, *udp = frame + kUdp, *bth = frame + kBth;
    if (load_be16(frame + 12) != 0x0800 || ip[0] != 0x45 || ip[9] != 17) return Parsed::kForeign;
    if (load_be16(udp + 2) != kRocePort) return Parsed::kForeign;
    if (load_be16(ip + 6) & 0x3fff) return Parsed::kMalformed;  // RoCE v2 is never fragmented

    const size_t ip_bytes = load_be16(ip + 2);
    constexpr size_t kFixed = kIpBytes + kUdpBytes + kBthBytes + kIcrcBytes;
    if (ip_bytes < kFixed || ip_bytes > length - kEthernetBytes) return Parsed::kMalformed;
    if (load_be16(udp + 4) != ip_bytes - kIpBytes) return Parsed::kMalformed;
    const size_t body_bytes = ip_bytes - kFixed;

    const uint32_t pad_bytes = (bth[1] >> 4) & 3, transport_version = bth[1] & 0x0f;
    if (transport_version != 0 || (load_be16(bth + 2) & 0x7fff) != 0x7fff) return Parsed::kMalformed;

    packet->source_ip = load_be32(ip + 12);
    packet->destination_ip = load_be32(ip + 16);
    packet->opcode = bth[0];
    packet->destination_qpn = load_be24(bth + 5);
    packet->ack_request = (bth[8] & kAckRequestBit) != 0;
    packet->summed = (bth[8] & kSummedBit) != 0;
    packet->psn = load_be24(bth + 9);
    packet->payload = bth + kBthBytes;
    packet->payload_bytes = 0;
    packet->syndrome = 0;
    packet->msn = packet->run = 0;
    switch (packet->opcode) {
        case kAcknowledge:
            if (body_bytes != kAethBytes || pad_bytes != 0) return Parsed::kMalformed;
            packet->syndrome = packet->payload[0];
            packet->msn = load_be24(packet->payload + 1);
            packet->run = bth[8] & kLongestRun;
            break;
        case kSendFirst:
        case kSendMiddle:
        case kSendLast:
        case kSendOnly:
            if (pad_bytes != 0) return Parsed::kMalformed;  // our messages are whole chunks
            packet->payload_bytes = static_cast<uint32_t>(body_bytes);
            break;
        default:
            return Parsed::kMalformed;
    }
    if (check_icrc) {
        const uint8_t *trailer = ip + ip_bytes - kIcrcBytes;
        const uint32_t sent = static_cast<uint32_t>(trailer[0]) | static_cast<uint32_t>(trailer[1]) << 8 |
                              static_cast<uint32_t>(trailer[2]) << 16 | static_cast<uint32_t>(trailer[3]) << 24;
        if (icrc(ip, ip_bytes - kIcrcBytes) != sent) return Parsed::kBadIcrc;
    }
    return Parsed::kOk;
}

FrameTemplate::FrameTemplate(const uint8_t *own_mac, uint32_t own_ip, const uint8_t *peer_mac, uint32_t peer_ip,
                             uint32_t peer_qpn, uint32_t source_port) {
    memset(header_, 0, sizeof header_);
    memcpy(header_, peer_mac, 6);
    memcpy(header_ + 6, own_mac, 6);
    store_be16(header_ + 12, 0x0800);
    uint8_t *ip = header_ + kIp, *udp = header_ + kUdp, *bth = header_ + kBth;
    ip[0] = 0x45;
    ip[6] = 0x40;  // don't fragment
    ip[8] = 64;
    ip[9] = 17;
    store_be32(ip + 12, own_ip);
    store_be32(ip + 16, peer_ip);
    store_be16(udp, source_port);
    store_be16(udp + 2, kRocePort);  // checksum 0: none
    store_be16(bth + 2, 0xffff);
    store_be24(bth + 5, peer_qpn);
    checksum_base_ = 0;
    for (size_t i = 0; i < kIpBytes; i += 2) checksum_base_ += load_be16(ip + i);
}

size_t FrameTemplate::finish(uint8_t *frame, uint8_t opcode, uint8_t bits, uint32_t psn, size_t body_bytes,
                             uint16_t identification) const {
    memcpy(frame, header_, kHeaderBytes);
    uint8_t *ip = frame + kIp, *udp = frame + kUdp, *bth = frame + kBth;
    const uint32_t udp_bytes = static_cast<uint32_t>(kUdpBytes + kBthBytes + body_bytes + kIcrcBytes);
    const uint32_t ip_bytes = static_cast<uint32_t>(kIpBytes) + udp_bytes;
    store_be16(ip + 2, ip_bytes);
    store_be16(ip + 4, identification);
    uint32_t sum = checksum_base_ + ip_bytes + identification;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    store_be16(ip + 10, ~sum);
    store_be16(udp + 4, udp_bytes);
    bth[0] = opcode;
    bth[8] = bits;
    store_be24(bth + 9, psn);
    const uint32_t crc = icrc(ip, ip_bytes - kIcrcBytes);
    uint8_t *trailer = ip + ip_bytes - kIcrcBytes;
    for (int i = 0; i < 4; i++) trailer[i] = static_cast<uint8_t>(crc >> (8 * i));
    return kEthernetBytes + ip_bytes;
}

size_t FrameTemplate::finish_send(uint8_t *frame, Opcode opcode, bool ack_request, uint32_t psn,
                                  size_t payload_bytes, uint16_t identification) const {
    return finish(frame, opcode, ack_request ? kAckRequestBit : 0, psn, payload_bytes, identification);
}

size_t FrameTemplate::write_acknowledge(uint8_t *frame, uint8_t syndrome, uint32_t psn, uint32_t msn,
                                        uint16_t identification, uint32_t run) const {
    uint8_t *aeth = frame + kHeaderBytes;
    aeth[0] = syndrome;
    store_be24(aeth + 1, msn);
    return finish(frame, kAcknowledge, static_cast<uint8_t>(run), psn, kAethBytes, identification);
}

void write_header(const AggregationHeader &h, uint8_t *chunk) {
    memset(chunk, 0, kChunkBytes);
    store_be32(chunk, h.magic);
    chunk[4] = h.version;
    chunk[5] = h.flags;
    store_be16(chunk + 6, h.job_id);
    store_be32(chunk + 8, h.generation);
    store_be32(chunk + 12, h.message);
    chunk[16] = h.rank;
    chunk[17] = h.switch_op;
    chunk[18] = h.element_type;
    chunk[19] = h.packets;
    chunk[20] = h.reduction;
    chunk[21] = h.kind;
    chunk[22] = h.root;
    chunk[23] = h.stage;
    store_be32(chunk + 24, h.elements);
    store_be32(chunk + 28, h.collective);
    store_be32(chunk + 32, h.total_elements);
}

AggregationHeader read_header(const uint8_t *chunk) {
    AggregationHeader h;
    h.magic = load_be32(chunk);
    h.version = chunk[4];
    h.flags = chunk[5];
    h.job_id = static_cast<uint16_t>(load_be16(chunk + 6));
    h.generation = load_be32(chunk + 8);
    h.message = load_be32(chunk + 12);
    h.rank = chunk[16];
    h.switch_op = chunk[17];
    h.element_type = chunk[18];
    h.packets = chunk[19];
    h.reduction = chunk[20];
    h.kind = chunk[21];
    h.root = chunk[22];
    h.stage = chunk[23];
    h.elements = load_be32(chunk + 24);
    h.collective = load_be32(chunk + 28);
    h.total_elements = load_be32(chunk + 32);
    return h;
}

}  // namespace p4r
