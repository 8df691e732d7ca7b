#include "played_socket.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <string>
#include <thread>

#include "frame.h"
#include "played_frame.h"

namespace p4r {
namespace {

constexpr size_t kHeadBytes = 128;  // the filter lets no more of a frame into the ring
constexpr size_t kQueuedFrames = 64;  // that may wait in the interface's queue before a sender does
constexpr int64_t kQueueFullWaitNs = 200'000;  // the queueing discipline does not say when it has room

// Accepts IPv4 without options / UDP 4791 / to the host's address / with a time to live that only the player sends.
void attach_filter(PacketSocket &socket, uint32_t own_ip) {
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
    socket.filter(code);
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
            send_ = std::make_unique<PacketSocket>();
            send_->limit_queue(kQueuedFrames, frame_bytes);
            send_->bind(host.interface, 0);
            receive_ = std::make_unique<PacketSocket>();
            attach_filter(*receive_, host.ip);
            receive_->map_ring(kHeadBytes, slots);
            guard_ = std::make_unique<PortGuard>();
            receive_->bind(host.interface, ETH_P_IP);
        } catch (...) {
            failure = std::current_exception();
        }
    });
    opener.join();
    if (failure != nullptr) std::rethrow_exception(failure);
}

bool PlayedSocket::next(Head *head) {
    const tpacket2_hdr *header = receive_->next();
    if (header == nullptr) return false;
    *head = {reinterpret_cast<const uint8_t *>(header) + header->tp_mac, header->tp_snaplen, header->tp_len,
             int64_t{header->tp_sec} * 1'000'000'000 + header->tp_nsec};
    return true;
}

size_t PlayedSocket::send(mmsghdr *messages, size_t count, int64_t *wait_ns, int *error) {
    *error = 0;
    *wait_ns = 0;
    const int sent = sendmmsg(send_fd(), messages, static_cast<unsigned>(count), MSG_DONTWAIT);
    if (sent > 0) return static_cast<size_t>(sent);
    if (errno == ENOBUFS)
        *wait_ns = kQueueFullWaitNs;
    else if (errno == EINTR)
        *wait_ns = 1;
    else if (errno != EAGAIN)
        *error = errno;
    return 0;
}

}  // namespace p4r
