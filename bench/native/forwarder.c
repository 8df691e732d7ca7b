/* The ceiling of bench/switch.py: moves frames between two interfaces, and does nothing else.
 *
 *   forwarder A B
 *
 * TPACKET_V2 rings in and out, one copy between them; it passes the queueing discipline, as a switch has to. Frames sent by
 * sendmmsg out of the ring in, of TPACKET_V2 or of TPACKET_V3, take more CPU time.
 *
 * What is in a ring out would be sent as pages, which a veth copies into new ones. A virtio_net_hdr that calls all of a
 * frame header makes it one copy into the packet's own memory. */
#include "rings.h"

#include <linux/virtio_net.h>
#include <poll.h>

enum { BATCH = 64, LENGTH = 9300, FRAMES = 512, FRAMES_OUT = 128 };

struct side {
    int receiver, sender; /* two, as what is received comes without a virtio_net_hdr */
    struct ring in, out;
    uint32_t unsent;
};

static void open_ring(int fd, struct ring *ring, int kind, uint32_t frames) {
    struct tpacket_req request = ring_request(ring, LENGTH, frames);
    if (setsockopt(fd, SOL_PACKET, kind, &request, sizeof request) < 0) fail("a ring");
    ring->start = map_rings(fd, (size_t)BLOCK * request.tp_block_nr);
}

static void open_side(struct side *side, const char *interface) {
    const int one = 1;
    side->receiver = packet_socket(TPACKET_V2);
    open_ring(side->receiver, &side->in, PACKET_RX_RING, FRAMES);
    side->sender = packet_socket(TPACKET_V2);
    if (setsockopt(side->sender, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) < 0) fail("PACKET_VNET_HDR");
    open_ring(side->sender, &side->out, PACKET_TX_RING, FRAMES_OUT);
    bind_to(side->sender, interface, 0);
    struct packet_mreq promiscuous = {.mr_ifindex = if_nametoindex(interface), .mr_type = PACKET_MR_PROMISC};
    if (setsockopt(side->receiver, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0) fail(interface);
    bind_to(side->receiver, interface, ETH_P_ALL);
}

static void kick(struct side *to) {
    if (!to->unsent) return;
    if (send(to->sender, NULL, 0, MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR) fail("send");
    to->unsent = 0;
}

static uint32_t forward(struct side *from, struct side *to) {
    const uint32_t data = TPACKET2_HDRLEN - sizeof(struct sockaddr_ll);
    uint32_t count = 0;
    for (struct tpacket2_hdr *header, *room; count < BATCH; count++) {
        header = frame_at(&from->in, from->in.at);
        if (!(status_of(header) & TP_STATUS_USER)) break;
        room = frame_at(&to->out, to->out.at);
        if (status_of(room) != TP_STATUS_AVAILABLE) {
            to->unsent = 1;
            break;
        }
        struct virtio_net_hdr *virtio = (struct virtio_net_hdr *)((uint8_t *)room + data);
        *virtio = (struct virtio_net_hdr){.hdr_len = header->tp_snaplen};
        memcpy(virtio + 1, (uint8_t *)header + header->tp_mac, header->tp_snaplen);
        room->tp_len = sizeof *virtio + header->tp_snaplen;
        set_status(room, TP_STATUS_SEND_REQUEST);
        set_status(header, TP_STATUS_KERNEL);
        to->out.at = (to->out.at + 1) % to->out.frames;
        from->in.at = (from->in.at + 1) % from->in.frames;
        to->unsent = 1;
    }
    kick(to);
    return count;
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: forwarder A B\n");
        return 1;
    }
    static struct side sides[2];
    for (int i = 0; i < 2; i++) open_side(&sides[i], arguments[1 + i]);
    struct pollfd polled[2] = {{sides[0].receiver, POLLIN, 0}, {sides[1].receiver, POLLIN, 0}};
    for (puts("ready"), fflush(stdout);;) {
        uint32_t moved = 0;
        for (int i = 0; i < 2; i++) moved += forward(&sides[i], &sides[!i]);
        if (!moved) poll(polled, 2, -1);
    }
}
