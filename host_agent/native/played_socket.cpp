#include "played_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "frame.h"
#include "played_frame.h"
#include "raw_socket.h"

namespace p4r {
namespace {

constexpr size_t kHeadBytes = 128;  // the filter lets no more of a frame into the ring
constexpr size_t kSlotBytes = 256;
constexpr size_t kBlockBytes = 64 * 1024;
constexpr size_t kSlotsPerBlock = kBlockBytes / kSlotBytes;
constexpr size_t kQueuedFrames = 64;  // that may wait in the interface's queue before a sender does
constexpr size_t kSkbOverhead = 1024;
constexpr int64_t kQueueFullWaitNs = 200'000;  // the queueing discipline does not say when it has room
static_assert(TPACKET_ALIGN(TPACKET2_HDRLEN + 16) + kHeadBytes <= kSlotBytes, "a head fits into its slot");

[[noreturn]] void fail(const std::string &what) { throw std::runtime_error(what + ": " + strerror(errno)); }

// Accepts IPv4 without options / UDP 4791 / to the host's address / with a time to live that only the player sends.
void attach_filter(int fd, uint32_t own_ip) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 11),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x45, 0, 9),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 22),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kOthersTimeToLive, 0, 7),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 5),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 36),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRocePort, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 30),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own_ip, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, kHeadBytes),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    const sock_fprog program = {static_cast<unsigned short>(sizeof code / sizeof code[0]), code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
        fail("cannot attach a packet filter");
}

int open_raw() {
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) fail("cannot open a raw socket (CAP_NET_RAW is needed)");
    return fd;
}

void enter(const char *network_namespace) {
    if (network_namespace[0] == '\0') return;
    const int fd = ::open(network_namespace, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(std::string("cannot open the network namespace ") + network_namespace);
    const int entered = setns(fd, CLONE_NEWNET);
    const int error = errno;
    ::close(fd);
    errno = error;
    if (entered != 0) fail(std::string("cannot enter the network namespace ") + network_namespace);
}

}  // namespace

PlayedSocket::PlayedSocket(const p4r_play_host &host, size_t frame_bytes, size_t slots) {
    // A thread that has entered a namespace ends there: only sockets come back.
    std::exception_ptr failure;
    std::thread opener([&] {
        try {
            enter(host.network_namespace);
            open(host, frame_bytes, slots);
        } catch (...) {
            failure = std::current_exception();
        }
    });
    opener.join();
    if (failure != nullptr) {
        close();
        std::rethrow_exception(failure);
    }
}

PlayedSocket::~PlayedSocket() { close(); }

void PlayedSocket::open(const p4r_play_host &host, size_t frame_bytes, size_t slots) {
    send_ = open_raw();
    const int send_buffer = static_cast<int>(kQueuedFrames * (frame_bytes + kSkbOverhead));
    if (setsockopt(send_, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer) != 0)
        fail("cannot set the send buffer");
    bind_to(send_, host, 0);  // it receives nothing
    receive_ = open_raw();
    attach_filter(receive_, host.ip);
    open_ring(host, slots);
    guard_ = open_guard();
    bind_to(receive_, host, ETH_P_IP);
}

void PlayedSocket::open_ring(const p4r_play_host &host, size_t slots) {
    const int version = TPACKET_V2;
    tpacket_req ring{};
    ring.tp_block_size = kBlockBytes;
    ring.tp_block_nr = static_cast<unsigned>((slots + kSlotsPerBlock - 1) / kSlotsPerBlock);
    ring.tp_frame_size = kSlotBytes;
    ring.tp_frame_nr = ring.tp_block_nr * static_cast<unsigned>(kSlotsPerBlock);
    if (setsockopt(receive_, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(receive_, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0)
        fail(std::string("cannot set up the receive ring on ") + host.interface);
    slots_ = ring.tp_frame_nr;
    ring_bytes_ = size_t{ring.tp_block_size} * ring.tp_block_nr;
    void *mapped = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, receive_, 0);
    if (mapped == MAP_FAILED) fail(std::string("cannot map the receive ring on ") + host.interface);
    ring_ = static_cast<uint8_t *>(mapped);
}

void PlayedSocket::bind_to(int fd, const p4r_play_host &host, uint16_t protocol) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(protocol);
    address.sll_ifindex = static_cast<int>(if_nametoindex(host.interface));
    if (address.sll_ifindex == 0) fail(std::string("there is no interface ") + host.interface);
    if (bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        fail(std::string("cannot bind to interface ") + host.interface);
}

void PlayedSocket::close() {
    if (ring_ != nullptr) munmap(ring_, ring_bytes_);
    for (int *fd : {&send_, &receive_, &guard_}) {
        if (*fd >= 0) ::close(*fd);
        *fd = -1;
    }
    ring_ = nullptr;
}

uint8_t *PlayedSocket::slot(size_t index) const { return ring_ + index * kSlotBytes; }

bool PlayedSocket::next(Head *head) {
    const uint8_t *start = slot(next_);
    const auto *header = reinterpret_cast<const tpacket2_hdr *>(start);
    if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) return false;
    *head = {start + header->tp_mac, header->tp_snaplen, header->tp_len,
             int64_t{header->tp_sec} * 1'000'000'000 + header->tp_nsec};
    return true;
}

void PlayedSocket::release() {
    auto *header = reinterpret_cast<tpacket2_hdr *>(slot(next_));
    __atomic_store_n(&header->tp_status, uint32_t{TP_STATUS_KERNEL}, __ATOMIC_RELEASE);
    next_ = next_ + 1 == slots_ ? 0 : next_ + 1;
}

size_t PlayedSocket::send(mmsghdr *messages, size_t count, int64_t *wait_ns, int *error) {
    *error = 0;
    *wait_ns = 0;
    const int sent = sendmmsg(send_, messages, static_cast<unsigned>(count), MSG_DONTWAIT);
    if (sent > 0) return static_cast<size_t>(sent);
    if (errno == ENOBUFS)
        *wait_ns = kQueueFullWaitNs;
    else if (errno == EINTR)
        *wait_ns = 1;
    else if (errno != EAGAIN)
        *error = errno;
    return 0;
}

void PlayedSocket::clear_error() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(receive_, SOL_SOCKET, SO_ERROR, &error, &size);
}

uint64_t PlayedSocket::take_ring_drops() {
    tpacket_stats statistics{};
    socklen_t size = sizeof statistics;
    return getsockopt(receive_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) == 0 ? statistics.tp_drops : 0;
}

}  // namespace p4r
