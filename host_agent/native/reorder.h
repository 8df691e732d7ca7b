// Packets that arrived behind a gap, kept until those before them have come.
#pragma once

#include <cstdint>
#include <vector>

#include "frame.h"

namespace p4r {

class ReorderBuffer {
   public:
    // For up to `packets` PSNs in a row.
    ReorderBuffer(uint32_t packets, uint32_t path_mtu);

    uint32_t packets() const { return packets_; }
    bool has(uint32_t psn) const { return !cells_.empty() && cell(psn).used && cell(psn).packet.psn == psn; }
    // Copies it; false: it is longer than any packet of ours. What is there under its PSN stays.
    bool keep(const Packet &packet);
    // The packet with this PSN, or null. Valid until it is dropped.
    const Packet *find(uint32_t psn) const { return has(psn) ? &cell(psn).packet : nullptr; }
    void drop(uint32_t psn) { cell(psn).used = false; }

   private:
    struct Cell {
        bool used = false;
        Packet packet{};
    };

    Cell &cell(uint32_t psn) { return cells_[psn & (cells_.size() - 1)]; }
    const Cell &cell(uint32_t psn) const { return cells_[psn & (cells_.size() - 1)]; }

    const uint32_t packets_, path_mtu_;
    std::vector<Cell> cells_;  // a power of two of them, by PSN
    std::vector<uint8_t> payloads_;
};

}  // namespace p4r
