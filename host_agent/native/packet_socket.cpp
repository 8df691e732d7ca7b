#include "packet_socket.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "frame.h"

namespace p4r {
namespace {

constexpr size_t kBlockBytes = 64 * 1024;
constexpr size_t kSkbOverhead = 1024;  // what the kernel charges for a frame beside its bytes, roughly

template <typename T>
void set_option(int fd, int level, int name, const T &value, const char *what) {
    if (setsockopt(fd, level, name, &value, sizeof value) != 0) fail(what);
}

}  // namespace

void fail(const std::string &what) { throw std::runtime_error(what + ": " + strerror(errno)); }

PortGuard::PortGuard() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) fail("cannot open a UDP socket");
    sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program = {1, drop};
    const int one = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(kRocePort);
    const bool bound = setsockopt(fd_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 &&
                       setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                       ::bind(fd_, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    if (bound) return;
    const int error = errno;
    ::close(fd_);
    errno = error;
    if (error == EADDRINUSE)
        fail("UDP port 4791 is taken, by the kernel's RoCE stack (rdma_rxe) if an RDMA device is on this machine "
             "(rdma link): use that device (transport \"verbs\"), or unload it (modprobe -r rdma_rxe)");
    fail("cannot bind UDP port 4791");
}

PortGuard::~PortGuard() { ::close(fd_); }

PacketSocket::PacketSocket() : fd_(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (fd_ < 0) fail("cannot open a raw socket (CAP_NET_RAW is needed)");
}

PacketSocket::~PacketSocket() {
    if (ring_ != nullptr) munmap(ring_, ring_bytes_);
    ::close(fd_);
}

void PacketSocket::limit_queue(size_t frames, size_t frame_bytes) {
    const int bytes = static_cast<int>(frames * (frame_bytes + kSkbOverhead));
    set_option(fd_, SOL_SOCKET, SO_SNDBUF, bytes, "cannot set the send buffer");
}

void PacketSocket::filter(sock_filter *code, size_t length) {
    const sock_fprog program = {static_cast<unsigned short>(length), code};
    set_option(fd_, SOL_SOCKET, SO_ATTACH_FILTER, program, "cannot attach a packet filter");
}

void PacketSocket::map_ring(size_t frame_bytes, size_t slots) {
    // TPACKET_V2, not V3: V3 hands over a block when it is full or a timer of at least 1 ms runs out.
    const int version = TPACKET_V2;
    set_option(fd_, SOL_PACKET, PACKET_VERSION, version, "cannot select TPACKET_V2");
    slot_bytes_ = TPACKET_ALIGN(TPACKET_ALIGN(TPACKET2_HDRLEN + 16) + frame_bytes);
    slots_per_block_ = kBlockBytes / slot_bytes_;
    tpacket_req ring{};
    ring.tp_block_size = kBlockBytes;
    ring.tp_block_nr = static_cast<unsigned>((slots + slots_per_block_ - 1) / slots_per_block_);
    ring.tp_frame_size = static_cast<unsigned>(slot_bytes_);
    ring.tp_frame_nr = static_cast<unsigned>(slots_per_block_) * ring.tp_block_nr;
    set_option(fd_, SOL_PACKET, PACKET_RX_RING, ring, "cannot set up the receive ring");
    slots_ = ring.tp_frame_nr;
    ring_bytes_ = size_t{ring.tp_block_size} * ring.tp_block_nr;
    void *mapped = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) fail("cannot map the receive ring");
    ring_ = static_cast<uint8_t *>(mapped);
}

void PacketSocket::bind(const std::string &interface, uint16_t protocol) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(protocol);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
    if (address.sll_ifindex == 0) fail("there is no interface " + interface);
    if (::bind(fd_, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        fail("cannot bind to interface " + interface);
}

uint8_t *PacketSocket::slot() const {
    return ring_ + next_ / slots_per_block_ * kBlockBytes + next_ % slots_per_block_ * slot_bytes_;
}

const tpacket2_hdr *PacketSocket::next() const {
    const auto *header = reinterpret_cast<const tpacket2_hdr *>(slot());
    return __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER ? header : nullptr;
}

void PacketSocket::release() {
    auto *header = reinterpret_cast<tpacket2_hdr *>(slot());
    __atomic_store_n(&header->tp_status, uint32_t{TP_STATUS_KERNEL}, __ATOMIC_RELEASE);
    next_ = next_ + 1 == slots_ ? 0 : next_ + 1;
}

void PacketSocket::clear_error() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
}

uint64_t PacketSocket::take_ring_drops() {
    tpacket_stats statistics{};
    socklen_t size = sizeof statistics;
    return getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0 ? statistics.tp_drops : 0;
}

}  // namespace p4r
