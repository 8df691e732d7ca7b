#include "raw_socket.h"

#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "frame.h"

namespace p4r {
namespace {

// Frames that may wait in the interface's queue. More would only make acknowledgements wait behind data.
constexpr size_t kQueuedFrames = 32;

// Accepts IPv4 without options / UDP 4791 / to our address / to one of our QPs.
void attach_filter(PacketSocket &socket, const p4r_config &config) {
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
    socket.filter(code);
}

}  // namespace

RawSocket::RawSocket(const p4r_config &config, const std::string &interface, size_t slots) {
    ifreq request{};
    if (interface.size() >= sizeof request.ifr_name)
        throw std::runtime_error("interface name " + interface + " is too long");
    memcpy(request.ifr_name, interface.data(), interface.size());
    if (ioctl(fd(), SIOCGIFMTU, &request) != 0) fail("cannot read the MTU of interface " + interface);
    const uint32_t needed = config.path_mtu + kFrameOverhead - kEthernetBytes;
    if (static_cast<uint32_t>(request.ifr_mtu) < needed)
        throw std::runtime_error("interface " + interface + " has MTU " + std::to_string(request.ifr_mtu) +
                                 ": path MTU " + std::to_string(config.path_mtu) + " needs " + std::to_string(needed));

    const size_t frame_bytes = config.path_mtu + kFrameOverhead;
    attach_filter(socket_, config);
    socket_.limit_queue(kQueuedFrames, frame_bytes);
    socket_.map_ring(frame_bytes, slots);
    socket_.bind(interface, ETH_P_IP);
}

const uint8_t *RawSocket::next(size_t *length) {
    const tpacket2_hdr *header = socket_.next();
    if (header == nullptr) return nullptr;
    *length = header->tp_snaplen;
    return reinterpret_cast<const uint8_t *>(header) + header->tp_mac;
}

RawSocket::Sent RawSocket::send(mmsghdr *messages, size_t count, size_t *done, bool *queue_full) {
    while (*done < count) {
        const int sent = sendmmsg(fd(), messages + *done, static_cast<unsigned>(count - *done), MSG_DONTWAIT);
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

}  // namespace p4r
