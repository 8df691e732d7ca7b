// What a frame is, as far as a fault can be aimed at it: RoCE v2 (InfiniBand specification, annex A17), TCP, and the
// packets between leaves and spines (docs/protocol.md). Never reads beyond the frame.
#pragma once
#include <cstdint>
#include <unordered_map>

namespace p4 {

struct FrameInfo {
    enum Kind : uint32_t { OTHER, SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY, ACK, NAK, RNR, OTHER_ROCE, PARTIAL, TREE_RESULT, ASK, OTHER_TREE, TCP };

    Kind kind = OTHER;
    bool summed = false;  // by a switch: BTH's reserved bits say so
    uint32_t psn = 0, qpn = 0, source = 0, destination = 0;
    uint16_t source_port = 0;
    int64_t message = -1;  // that the frame itself names
    uint32_t packets = 0;  // in that message

    bool is_send() const { return kind >= SEND_FIRST && kind <= SEND_ONLY; }
    bool is_acknowledge() const { return kind >= ACK && kind <= RNR; }
    bool is_roce() const { return kind >= SEND_FIRST && kind <= OTHER_ROCE; }
    bool is_tree() const { return kind >= PARTIAL && kind <= OTHER_TREE; }
};

class FrameReader {
  public:
    static FrameInfo read(const uint8_t* frame, uint32_t length) {
        FrameInfo info;
        uint32_t at = ETHERNET;
        if (length < at) return info;
        uint32_t type = be16(frame + 12);
        if (type == VLAN && length >= at + 4) type = be16(frame + 16), at += 4;
        if (type != IPV4 || length < at + IP || frame[at] >> 4 != 4) return info;
        const uint8_t* ip = frame + at;
        const uint32_t header = (ip[0] & 15) * 4;
        if (header < IP || length < at + header) return info;
        info.source = be32(ip + 12), info.destination = be32(ip + 16);
        if (ip[9] == 6) info.kind = FrameInfo::TCP;
        if (ip[9] != 17 || length < at + header + UDP) return info;
        const uint8_t* udp = ip + header;
        const uint32_t left = length - at - header - UDP;
        info.source_port = uint16_t(be16(udp));
        if (be16(udp + 2) == ROCE_PORT && left >= BTH) read_roce(udp + UDP, left, info);
        if (be16(udp + 2) == TREE_PORT && left >= TREE) read_tree(udp + UDP, info);
        return info;
    }

  private:
    static constexpr uint32_t ETHERNET = 14, IP = 20, UDP = 8, BTH = 12, AETH = 4, TREE = 20, AGGREGATION = 20;
    static constexpr uint32_t VLAN = 0x8100, IPV4 = 0x0800, ROCE_PORT = 4791, TREE_PORT = 53300, MAGIC = 0x50345244;

    static uint32_t be16(const uint8_t* p) { return uint32_t(p[0]) << 8 | p[1]; }
    static uint32_t be24(const uint8_t* p) { return uint32_t(p[0]) << 16 | be16(p + 1); }
    static uint32_t be32(const uint8_t* p) { return be16(p) << 16 | be16(p + 2); }

    static void read_roce(const uint8_t* bth, uint32_t left, FrameInfo& info) {
        info.kind = FrameInfo::OTHER_ROCE;
        info.qpn = be24(bth + 5), info.psn = be24(bth + 9);
        info.summed = (bth[8] & 0x40) != 0;
        switch (bth[0]) {
            case 0x00: info.kind = FrameInfo::SEND_FIRST; break;
            case 0x01: info.kind = FrameInfo::SEND_MIDDLE; break;
            case 0x02: info.kind = FrameInfo::SEND_LAST; break;
            case 0x04: info.kind = FrameInfo::SEND_ONLY; break;
            case 0x11:
                if (left < BTH + AETH) return;
                if (bth[BTH] < 0x20) info.kind = FrameInfo::ACK;
                else if (bth[BTH] < 0x40) info.kind = FrameInfo::RNR;
                else if (bth[BTH] >= 0x60 && bth[BTH] < 0x80) info.kind = FrameInfo::NAK;
                return;
            default: return;
        }
        const uint8_t* header = bth + BTH;
        const bool begins = info.kind == FrameInfo::SEND_FIRST || info.kind == FrameInfo::SEND_ONLY;
        if (begins && left >= BTH + AGGREGATION && be32(header) == MAGIC)
            info.message = be32(header + 12), info.packets = header[19];
    }

    static void read_tree(const uint8_t* tree, FrameInfo& info) {
        info.kind = tree[1] == 1   ? FrameInfo::PARTIAL
                    : tree[1] == 2 ? FrameInfo::TREE_RESULT
                    : tree[1] == 3 ? FrameInfo::ASK
                                   : FrameInfo::OTHER_TREE;
        if (info.kind == FrameInfo::OTHER_TREE) return;
        info.message = be32(tree + 12);
        info.psn = be24(tree + 17);
    }
};

// Which message packets belong to that do not name one: only First and Only packets do. Remembers the last messages of
// each connection that passed here; an acknowledgement is of the connection in the other direction.
class MessageTracker {
  public:
    // The message of a packet, remembered if it names one; -1: not known.
    int64_t message_of(const FrameInfo& info) {
        if (info.is_send()) return of_send(info);
        if (info.is_acknowledge()) return of_acknowledge(info);
        return info.message;
    }

    void forget() { connections_.clear(); }

  private:
    static constexpr uint32_t REMEMBERED = 32, PSN_MASK = 0xFFFFFF;
    static constexpr size_t MAX_CONNECTIONS = 4096;

    struct Message {
        uint32_t psn = 0, packets = 0;
        int64_t number = -1;
    };
    struct Connection {
        Message messages[REMEMBERED];
        uint32_t next = 0;
    };
    // Both directions of a connection have the UDP source port of who began it.
    struct Key {
        uint64_t addresses;
        uint32_t port;
        bool operator==(const Key& other) const { return addresses == other.addresses && port == other.port; }
    };
    struct Hash {
        size_t operator()(const Key& key) const { return (key.addresses ^ uint64_t(key.port) << 40) * 0x9E3779B97F4A7C15u >> 16; }
    };
    std::unordered_map<Key, Connection, Hash> connections_;

    static int64_t find(const Connection& connection, uint32_t psn) {
        for (uint32_t i = 0; i < REMEMBERED; i++) {  // the newest first
            const Message& message = connection.messages[(connection.next - 1 - i) % REMEMBERED];
            if (message.number >= 0 && ((psn - message.psn) & PSN_MASK) < message.packets) return message.number;
        }
        return -1;
    }

    int64_t of_send(const FrameInfo& info) {
        const Key key{uint64_t(info.source) << 32 | info.destination, info.source_port};
        if (info.message < 0) {
            const auto found = connections_.find(key);
            return found == connections_.end() ? -1 : find(found->second, info.psn);
        }
        if (connections_.size() >= MAX_CONNECTIONS) forget();
        Connection& connection = connections_[key];
        for (Message& message : connection.messages)
            if (message.number >= 0 && message.psn == info.psn) message.number = -1;  // again, or of an older job
        connection.messages[connection.next++ % REMEMBERED] = {info.psn, info.packets ? info.packets : 1, info.message};
        return info.message;
    }

    int64_t of_acknowledge(const FrameInfo& info) const {
        const auto found = connections_.find({uint64_t(info.destination) << 32 | info.source, info.source_port});
        return found == connections_.end() ? -1 : find(found->second, info.psn);
    }
};

}  // namespace p4
