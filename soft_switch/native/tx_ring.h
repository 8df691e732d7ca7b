// A mapped ring of frames to send (TPACKET_V2), on a socket of its own: less work for the kernel than messages.
//
// The kernel would send a ring's frames as pages, and a veth would copy those into new ones. A virtio_net_hdr that calls
// all of a frame header makes that one copy into the packet's own memory. With such a header the kernel no longer looks
// at the interface's MTU: who fills the ring has to. Queueing disciplines stay in the path.
#pragma once
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace p4 {

// The kernel's virtio_net_hdr, whose header file is no C++.
struct VirtioNetHeader {
    uint8_t flags, gso_type;
    uint16_t header_length, gso_size, checksum_start, checksum_offset;
};
static_assert(sizeof(VirtioNetHeader) == 10);

class TxRing {
  public:
    TxRing() = default;
    ~TxRing() { close(); }
    TxRing(const TxRing&) = delete;
    TxRing& operator=(const TxRing&) = delete;

    bool is_open() const { return fd_ >= 0; }
    // Length of the longest frame.
    uint32_t capacity() const { return slot_size_ - FRAME_AT; }

    // A ring for an interface and frames up to `length` bytes; without one where the kernel cannot do it.
    void open(int interface, uint32_t length) {
        close();
        fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
        if (fd_ >= 0 && !configure(interface, length)) close();
    }

    void close() {
        if (start_) munmap(start_, size_);
        if (fd_ >= 0) ::close(fd_);
        start_ = nullptr;
        fd_ = -1;
        next_ = filled_ = 0;
    }

    // Room for a frame behind those that are in, or null.
    uint8_t* reserve(uint32_t length) {
        uint8_t* slot = at(next_ + filled_);
        if (filled_ == slots_ || length > capacity() || status(slot) != TP_STATUS_AVAILABLE) return nullptr;
        return slot + FRAME_AT;
    }

    // The frame for which there was room is in.
    void commit(uint32_t length) {
        uint8_t* slot = at(next_ + filled_++);
        VirtioNetHeader header{};
        header.header_length = uint16_t(length);
        std::memcpy(slot + DATA_AT, &header, sizeof header);
        reinterpret_cast<tpacket2_hdr*>(slot)->tp_len = uint32_t(sizeof header) + length;
        set_status(slot, TP_STATUS_SEND_REQUEST);
    }

    uint32_t size() const { return filled_; }
    const uint8_t* frame(uint32_t i) const { return at(next_ + i) + FRAME_AT; }
    uint32_t length(uint32_t i) const {
        return reinterpret_cast<tpacket2_hdr*>(at(next_ + i))->tp_len - uint32_t(sizeof(VirtioNetHeader));
    }

    // Sends what is in; how many frames the kernel took, the first ones. If it took none, errno says why.
    uint32_t send() {
        const int reason = ::send(fd_, nullptr, 0, MSG_DONTWAIT) < 0 ? errno : EAGAIN;
        uint32_t sent = 0;
        while (sent < filled_ && taken(status(at(next_ + sent)))) sent++;
        errno = reason;
        return sent;
    }

    // Empties the ring, of whose frames the first `sent` were sent.
    void clear(uint32_t sent) {
        for (uint32_t i = sent; i < filled_; i++) set_status(at(next_ + i), TP_STATUS_AVAILABLE);
        next_ = (next_ + sent) % slots_;
        filled_ = 0;
    }

  private:
    static constexpr size_t BLOCK = 1 << 17;
    static constexpr uint32_t MIN_SLOTS = 32;  // few, which stay in the cache: they are used in turns
    static constexpr uint32_t DATA_AT = TPACKET2_HDRLEN - sizeof(sockaddr_ll), FRAME_AT = DATA_AT + sizeof(VirtioNetHeader);

    int fd_ = -1;
    uint8_t* start_ = nullptr;
    size_t size_ = 0;
    uint32_t slot_size_ = FRAME_AT, per_block_ = 1, slots_ = 1;
    uint32_t next_ = 0, filled_ = 0;  // the kernel's next slot, and how many behind it wait to be sent

    uint8_t* at(uint32_t i) const {
        i %= slots_;
        return start_ + size_t(i / per_block_) * BLOCK + size_t(i % per_block_) * slot_size_;
    }
    static uint32_t status(uint8_t* slot) {
        return __atomic_load_n(&reinterpret_cast<tpacket2_hdr*>(slot)->tp_status, __ATOMIC_ACQUIRE);
    }
    static void set_status(uint8_t* slot, uint32_t value) {
        __atomic_store_n(&reinterpret_cast<tpacket2_hdr*>(slot)->tp_status, value, __ATOMIC_RELEASE);
    }
    static bool taken(uint32_t status) { return !(status & (TP_STATUS_SEND_REQUEST | TP_STATUS_WRONG_FORMAT)); }

    bool configure(int interface, uint32_t length) {
        const int version = TPACKET_V2, one = 1;
        if (setsockopt(fd_, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0) return false;
        if (setsockopt(fd_, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) < 0) return false;
        slot_size_ = uint32_t(TPACKET_ALIGN(length + FRAME_AT));
        per_block_ = uint32_t(BLOCK / slot_size_);
        const uint32_t blocks = (MIN_SLOTS + per_block_ - 1) / per_block_;
        slots_ = blocks * per_block_;
        const tpacket_req ring{unsigned(BLOCK), blocks, slot_size_, slots_};
        if (setsockopt(fd_, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring) < 0) return false;
        size_ = BLOCK * blocks;
        void* map = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (map == MAP_FAILED) return false;
        start_ = static_cast<uint8_t*>(map);
        sockaddr_ll address{};  // of no protocol: it sends only
        address.sll_family = AF_PACKET;
        address.sll_ifindex = interface;
        return bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    }
};

}  // namespace p4
