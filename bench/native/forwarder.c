/* The ceiling of bench/switch.py: moves frames between two interfaces, and does nothing else.
 *
 *   forwarder v2|v3|tx A B
 *
 * v2: TPACKET_V2 ring in, sendmmsg out of the ring itself; v3: TPACKET_V3 blocks in, sendmmsg; tx: TPACKET_V2 rings in and
 * out, one copy between them. All pass the queueing discipline, as a switch has to.
 *
 * What is in a ring out would be sent as pages, which a veth copies into new ones. A virtio_net_hdr that calls all of a
 * frame header makes it one copy into the packet's own memory. */
#include "rings.h"

#include <linux/virtio_net.h>
#include <poll.h>

enum { BATCH = 64, LENGTH = 9300, FRAMES = 512, FRAMES_OUT = 128, V3_BLOCKS = 64, V3_TIMEOUT_MS = 1 };

struct side {
    int fd, fd_out; /* the same but for tx, whose frames come without a virtio_net_hdr */
    struct ring in, out;
    uint32_t unsent;
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
};

static void open_tx(struct side *side, const char *interface) {
    const int one = 1;
    side->fd_out = packet_socket(TPACKET_V2);
    if (setsockopt(side->fd_out, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) < 0) fail("PACKET_VNET_HDR");
    struct tpacket_req request = ring_request(&side->out, LENGTH, FRAMES_OUT);
    if (setsockopt(side->fd_out, SOL_PACKET, PACKET_TX_RING, &request, sizeof request) < 0) fail("PACKET_TX_RING");
    side->out.start = map_rings(side->fd_out, (size_t)BLOCK * request.tp_block_nr);
    bind_to(side->fd_out, interface, 0);
}

static void open_side(struct side *side, const char *interface, int version, int with_tx) {
    side->fd = packet_socket(version);
    for (int i = 0; i < BATCH; i++) side->messages[i].msg_hdr = (struct msghdr){.msg_iov = &side->parts[i], .msg_iovlen = 1};
    side->fd_out = side->fd;
    size_t size;
    if (version == TPACKET_V3) {
        struct tpacket_req3 request = {.tp_block_size = BLOCK, .tp_block_nr = V3_BLOCKS, .tp_frame_size = 2048,
                                       .tp_frame_nr = BLOCK / 2048 * V3_BLOCKS, .tp_retire_blk_tov = V3_TIMEOUT_MS};
        if (setsockopt(side->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0) fail("PACKET_RX_RING");
        side->in.frames = V3_BLOCKS;
        size = (size_t)BLOCK * V3_BLOCKS;
    } else {
        struct tpacket_req request = ring_request(&side->in, LENGTH, FRAMES);
        if (setsockopt(side->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0) fail("PACKET_RX_RING");
        size = (size_t)BLOCK * request.tp_block_nr;
    }
    side->in.start = map_rings(side->fd, size);
    if (with_tx) open_tx(side, interface);
    struct packet_mreq promiscuous = {.mr_ifindex = if_nametoindex(interface), .mr_type = PACKET_MR_PROMISC};
    if (setsockopt(side->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0) fail(interface);
    bind_to(side->fd, interface, ETH_P_ALL);
}

static void send_all(struct side *to, uint32_t count) {
    for (uint32_t done = 0; done < count;) {
        const int sent = sendmmsg(to->fd, to->messages + done, count - done, 0);
        if (sent < 0 && errno != EINTR && errno != ENOBUFS) fail("sendmmsg");
        if (sent > 0) done += sent;
    }
}

static uint32_t forward_v2(struct side *from, struct side *to) {
    struct ring *ring = &from->in;
    uint32_t count = 0;
    for (struct tpacket2_hdr *header; count < BATCH; count++) {
        header = frame_at(ring, (ring->at + count) % ring->frames);
        if (!(status_of(header) & TP_STATUS_USER)) break;
        to->parts[count] = (struct iovec){(uint8_t *)header + header->tp_mac, header->tp_snaplen};
    }
    if (count) send_all(to, count);
    for (uint32_t i = 0; i < count; i++) {
        set_status(frame_at(ring, ring->at), TP_STATUS_KERNEL);
        ring->at = (ring->at + 1) % ring->frames;
    }
    return count;
}

static uint32_t forward_v3(struct side *from, struct side *to) {
    struct ring *ring = &from->in;
    struct tpacket_block_desc *block = (struct tpacket_block_desc *)(ring->start + (size_t)ring->at * BLOCK);
    if (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) return 0;
    const uint32_t total = block->hdr.bh1.num_pkts;
    struct tpacket3_hdr *header = (struct tpacket3_hdr *)((uint8_t *)block + block->hdr.bh1.offset_to_first_pkt);
    uint32_t count = 0;
    for (uint32_t i = 0; i < total; i++) {
        to->parts[count++] = (struct iovec){(uint8_t *)header + header->tp_mac, header->tp_snaplen};
        if (count == BATCH) send_all(to, count), count = 0;
        header = (struct tpacket3_hdr *)((uint8_t *)header + header->tp_next_offset);
    }
    if (count) send_all(to, count);
    __atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    ring->at = (ring->at + 1) % ring->frames;
    return total;
}

static void kick(struct side *to) {
    if (!to->unsent) return;
    if (send(to->fd_out, NULL, 0, MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR) fail("send");
    to->unsent = 0;
}

static uint32_t forward_tx(struct side *from, struct side *to) {
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
    if (count != 4) {
        fprintf(stderr, "usage: forwarder v2|v3|tx A B\n");
        return 1;
    }
    const int v3 = strcmp(arguments[1], "v3") == 0, tx = strcmp(arguments[1], "tx") == 0;
    static struct side sides[2];
    for (int i = 0; i < 2; i++) open_side(&sides[i], arguments[2 + i], v3 ? TPACKET_V3 : TPACKET_V2, tx);
    struct pollfd polled[2] = {{sides[0].fd, POLLIN, 0}, {sides[1].fd, POLLIN, 0}};
    for (puts("ready"), fflush(stdout);;) {
        uint32_t moved = 0;
        for (int i = 0; i < 2; i++)
            moved += v3 ? forward_v3(&sides[i], &sides[!i]) : tx ? forward_tx(&sides[i], &sides[!i]) : forward_v2(&sides[i], &sides[!i]);
        if (!moved) poll(polled, 2, -1);
    }
}
