// RoCE v2 frames: Ethernet / IPv4 / UDP 4791 / BTH (/ AETH) / payload / ICRC, and the aggregation header.
// Turns bytes into fields and fields into bytes; decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "p4r.h"

namespace p4r {

constexpr size_t kEthernetBytes = 14, kIpBytes = 20, kUdpBytes = 8, kBthBytes = 12, kAethBytes = 4;
constexpr size_t kIcrcBytes = 4;
constexpr size_t kHeaderBytes = kEthernetBytes + kIpBytes + kUdpBytes + kBthBytes;  // payload starts here
constexpr size_t kFrameOverhead = kHeaderBytes + kIcrcBytes;
constexpr uint16_t kRocePort = 4791;
constexpr uint32_t kChunkBytes = 256;  // the aggregation header's size, and the payload's granularity
constexpr uint32_t kFieldBytes = 36;  // of a message's first chunk

enum Opcode : uint8_t {  // RC, InfiniBand specification, table 38
    kSendFirst = 0x00,
    kSendMiddle = 0x01,
    kSendLast = 0x02,
    kSendOnly = 0x04,
    kAcknowledge = 0x11,
};

// AETH syndromes (InfiniBand specification, 9.7.5.1).
constexpr uint8_t kSyndromeAck = 0x1f;  // credit count 31: "no credits"
constexpr uint8_t kSyndromeRnr = 0x20;  // | timer
constexpr uint8_t kSyndromeNak = 0x60;  // | code; 0 is PSN sequence error
constexpr uint8_t kNakSequenceError = 0x60;
constexpr uint8_t kSummedBit = 0x40;  // in the BTH's ninth byte, of its reserved bits: no host may send it
constexpr uint32_t kLongestRun = 63;  // six of BTH's reserved bits, of a selective NAK

// Both directions of a QP pair use the requester's, so that ECMP keeps them on one path.
inline uint32_t source_port(uint32_t requester_qpn) {
    return 0xc000 | ((requester_qpn ^ requester_qpn >> 14) & 0x3fff);
}

int64_t rnr_timer_ns(uint8_t code);  // InfiniBand specification, table 46

inline uint32_t load_be16(const uint8_t *p) { return static_cast<uint32_t>(p[0] << 8 | p[1]); }
inline uint32_t load_be24(const uint8_t *p) { return static_cast<uint32_t>(p[0] << 16 | p[1] << 8 | p[2]); }
inline uint32_t load_be32(const uint8_t *p) { return load_be16(p) << 16 | load_be16(p + 2); }
inline void store_be16(uint8_t *p, uint32_t v) { p[0] = static_cast<uint8_t>(v >> 8), p[1] = static_cast<uint8_t>(v); }
inline void store_be24(uint8_t *p, uint32_t v) { p[0] = static_cast<uint8_t>(v >> 16), store_be16(p + 1, v); }
inline void store_be32(uint8_t *p, uint32_t v) { store_be16(p, v >> 16), store_be16(p + 2, v); }

// A received frame, fields decoded, payload where it lay.
struct Packet {
    uint32_t source_ip;
    uint32_t destination_ip;
    uint32_t destination_qpn;
    uint32_t psn;
    uint8_t opcode;
    bool ack_request;
    bool summed;              // by a switch: BTH's reserved bits say so on each packet of a result
    uint8_t syndrome;         // of an acknowledgement
    uint32_t msn;             // of an acknowledgement; of a selective NAK: the PSN that arrived
    uint32_t run;             // of a selective NAK: how many packets right before that one are there as well
    uint32_t payload_bytes;   // of a SEND
    const uint8_t *payload;
};

enum class Parsed { kOk, kMalformed, kForeign, kBadIcrc };

// kForeign: a well-formed frame that is not RoCE v2. Acknowledge packets and the SENDs above only.
Parsed parse_frame(const uint8_t *frame, size_t length, bool check_icrc, Packet *packet);

// Writes frames of one QP: all but lengths, identification, opcode, PSN and payload stays the same.
class FrameTemplate {
   public:
    FrameTemplate(const uint8_t *own_mac, uint32_t own_ip, const uint8_t *peer_mac, uint32_t peer_ip,
                  uint32_t peer_qpn, uint32_t source_port);

    // A SEND: the caller fills `frame + kHeaderBytes` with payload_bytes first. Returns the frame's length.
    size_t finish_send(uint8_t *frame, Opcode opcode, bool ack_request, uint32_t psn, size_t payload_bytes,
                       uint16_t identification) const;
    size_t write_acknowledge(uint8_t *frame, uint8_t syndrome, uint32_t psn, uint32_t msn,
                             uint16_t identification, uint32_t run = 0) const;

   private:
    size_t finish(uint8_t *frame, uint8_t opcode, uint8_t bits, uint32_t psn, size_t body_bytes,
                  uint16_t identification) const;

    uint8_t header_[kHeaderBytes];
    uint32_t checksum_base_;  // ones' complement sum of the IP header without length and identification
};

constexpr uint32_t kMagic = 0x50345244;  // "P4RD"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFlagResult = 0x01, kFlagMismatch = 0x02;

struct AggregationHeader {
    uint32_t magic = kMagic;
    uint8_t version = kVersion;
    uint8_t flags = 0;
    uint16_t job_id = 0;
    uint32_t generation = 0;
    uint32_t message = 0;
    uint8_t rank = 0;
    uint8_t switch_op = 0;
    uint8_t element_type = 0;
    uint8_t packets = 0;
    uint8_t reduction = 0;
    uint8_t kind = 0;
    uint8_t root = 0;
    uint8_t stage = 0;
    uint32_t elements = 0;
    uint32_t collective = 0;
    uint32_t total_elements = 0;
};

void write_header(const AggregationHeader &header, uint8_t *chunk);  // kChunkBytes
AggregationHeader read_header(const uint8_t *chunk);

}  // namespace p4r
