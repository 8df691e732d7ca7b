#include "raw_socket.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "frame.h"

namespace p4r {
namespace {

constexpr size_t kBlockBytes = 64 * 1024;
// Frames that may wait in the interface's queue. More would only make acknowledgements wait behind data.
constexpr size_t kQueuedFrames = 32;
constexpr size_t kSkbOverhead = 1024;  // what the kernel charges for a frame beside its bytes, roughly

[[noreturn]] void fail(const std::string &what) { throw std::runtime_error(what + ": " + strerror(errno)); }

template <typename T>
void set_option(int fd, int level, int name, const T &value, const char *what) {
    if (setsockopt(fd, level, name, &value, sizeof value) != 0) fail(what);
}

// Accepts IPv4 without options / UDP 4791 / to our address / to one of our QPs.
void attach_filter(int fd, const p4r_config &config) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 13),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 11),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 9),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 36),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRocePort, 0, 7),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 30),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, config.own_ip, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 46),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, config.qpn_in, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, config.qpn_out, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    const sock_fprog program = {static_cast<unsigned short>(sizeof code / sizeof code[0]), code};
    set_option(fd, SOL_SOCKET, SO_ATTACH_FILTER, program, "cannot attach a packet filter");
}

}  // namespace

int open_guard() {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail("cannot open a UDP socket");
    sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program = {1, drop};
    const int one = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(kRocePort);
    const bool bound = setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 &&
                       setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                       bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    if (!bound) {
        const int error = errno;
        ::close(fd);
        errno = error;
        if (error == EADDRINUSE)
            fail("UDP port 4791 is taken, by the kernel's RoCE stack (rdma_rxe) if an RDMA device is on this machine "
                 "(rdma link): use that device (transport \"verbs\"), or unload it (modprobe -r rdma_rxe)");
        fail("cannot bind UDP port 4791");
    }
    return fd;
}

RawSocket::RawSocket(const p4r_config &config, const std::string &interface, size_t slots) {
    try {
        open(config, interface, slots);
    } catch (...) {
        close();
        throw;
    }
}

RawSocket::~RawSocket() { close(); }

void RawSocket::open(const p4r_config &config, const std::string &interface, size_t slots) {
    fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) fail("cannot open a raw socket (CAP_NET_RAW is needed)");

    ifreq request{};
    if (interface.size() >= sizeof request.ifr_name)
        throw std::runtime_error("interface name " + interface + " is too long");
    memcpy(request.ifr_name, interface.data(), interface.size());
    if (ioctl(fd_, SIOCGIFMTU, &request) != 0) fail("cannot read the MTU of interface " + interface);
    const uint32_t needed = config.path_mtu + kFrameOverhead - kEthernetBytes;
    if (static_cast<uint32_t>(request.ifr_mtu) < needed)
        throw std::runtime_error("interface " + interface + " has MTU " + std::to_string(request.ifr_mtu) +
                                 ": path MTU " + std::to_string(config.path_mtu) + " needs " + std::to_string(needed));

    attach_filter(fd_, config);
    const size_t frame_bytes = config.path_mtu + kFrameOverhead;
    const int send_buffer = static_cast<int>(kQueuedFrames * (frame_bytes + kSkbOverhead));
    set_option(fd_, SOL_SOCKET, SO_SNDBUF, send_buffer, "cannot set the send buffer");

    // TPACKET_V2, not V3: V3 hands over a block when it is full or a timer of at least 1 ms runs out.
    const int version = TPACKET_V2;
    set_option(fd_, SOL_PACKET, PACKET_VERSION, version, "cannot select TPACKET_V2");
    slot_bytes_ = TPACKET_ALIGN(TPACKET_ALIGN(TPACKET2_HDRLEN + 16) + frame_bytes);
    slots_per_block_ = kBlockBytes / slot_bytes_;
    block_bytes_ = kBlockBytes;
    tpacket_req ring{};
    ring.tp_block_size = kBlockBytes;
    ring.tp_block_nr = static_cast<unsigned>((slots + slots_per_block_ - 1) / slots_per_block_);
    ring.tp_frame_size = static_cast<unsigned>(slot_bytes_);
    ring.tp_frame_nr = static_cast<unsigned>(slots_per_block_) * ring.tp_block_nr;
    slots_ = ring.tp_frame_nr;
    set_option(fd_, SOL_PACKET, PACKET_RX_RING, ring, "cannot set up the receive ring");
    ring_bytes_ = size_t{ring.tp_block_size} * ring.tp_block_nr;
    void *mapped = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) fail("cannot map the receive ring");
    ring_ = static_cast<uint8_t *>(mapped);

    guard_ = open_guard();
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_IP);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
    if (bind(fd_, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        fail("cannot bind to interface " + interface);
}

void RawSocket::close() {
    if (ring_ != nullptr) munmap(ring_, ring_bytes_);
    if (fd_ >= 0) ::close(fd_);
    if (guard_ >= 0) ::close(guard_);
    ring_ = nullptr;
    fd_ = guard_ = -1;
}

uint8_t *RawSocket::slot(size_t index) const {
    return ring_ + index / slots_per_block_ * block_bytes_ + index % slots_per_block_ * slot_bytes_;
}

const uint8_t *RawSocket::next(size_t *length) {
    const uint8_t *start = slot(next_);
    const auto *header = reinterpret_cast<const tpacket2_hdr *>(start);
    if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) return nullptr;
    *length = header->tp_snaplen;
    return start + header->tp_mac;
}

void RawSocket::release() {
    auto *header = reinterpret_cast<tpacket2_hdr *>(slot(next_));
    __atomic_store_n(&header->tp_status, uint32_t{TP_STATUS_KERNEL}, __ATOMIC_RELEASE);
    next_ = next_ + 1 == slots_ ? 0 : next_ + 1;
}

RawSocket::Sent RawSocket::send(mmsghdr *messages, size_t count, size_t *done, bool *queue_full) {
    while (*done < count) {
        const int sent = sendmmsg(fd_, messages + *done, static_cast<unsigned>(count - *done), MSG_DONTWAIT);
        if (sent > 0) {
            *done += static_cast<size_t>(sent);
        } else if (errno == EAGAIN || errno == ENOBUFS) {  // our send buffer, or the queueing discipline, is full
            *queue_full = errno == ENOBUFS;
            return Sent::kFull;
        } else if (errno != EINTR) {
            return Sent::kError;
        }
    }
    return Sent::kAll;
}

void RawSocket::clear_error() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
}

uint64_t RawSocket::take_ring_drops() {
    tpacket_stats statistics{};
    socklen_t size = sizeof statistics;
    return getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0 ? statistics.tp_drops : 0;
}

}  // namespace p4r
