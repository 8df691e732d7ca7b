#include "reorder.h"

#include <cstring>

#include "psn.h"

namespace p4r {

ReorderBuffer::ReorderBuffer(uint32_t packets, uint32_t path_mtu) : packets_(packets), path_mtu_(path_mtu) {
    if (packets == 0) return;
    cells_.resize(power_of_two(packets));
    payloads_.resize(cells_.size() * path_mtu);
}

bool ReorderBuffer::keep(const Packet &packet) {
    if (packet.payload_bytes > path_mtu_) return false;
    if (has(packet.psn)) return true;
    Cell &kept = cell(packet.psn);
    kept.used = true;
    kept.packet = packet;
    uint8_t *payload = payloads_.data() + static_cast<size_t>(&kept - cells_.data()) * path_mtu_;
    memcpy(payload, packet.payload, packet.payload_bytes);
    kept.packet.payload = payload;
    return true;
}

}  // namespace p4r
