// AF_PACKET sockets with a mapped receive ring, for the programs of bench/switch.py.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum { BLOCK = 1 << 17 };

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int packet_socket(int version) {
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) fail("socket");
    if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0) fail("PACKET_VERSION");
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    return fd;
}

static void bind_to(int fd, const char *interface, int protocol) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol)};
    address.sll_ifindex = if_nametoindex(interface);
    if (address.sll_ifindex == 0) fail(interface);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("bind");
}

static uint8_t *map_rings(int fd, size_t size) {
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) fail("mmap");
    return map;
}

// The frames of a TPACKET_V2 ring.
struct ring {
    uint8_t *start;
    uint32_t frame_size, per_block, frames, at;
};

// A ring for frames of up to `length` bytes; `mapped` by the caller.
static struct tpacket_req ring_request(struct ring *ring, uint32_t length, uint32_t frames) {
    ring->frame_size = TPACKET_ALIGN(length + TPACKET2_HDRLEN + 64);
    ring->per_block = BLOCK / ring->frame_size;
    const uint32_t blocks = (frames + ring->per_block - 1) / ring->per_block;
    ring->frames = blocks * ring->per_block;
    ring->at = 0;
    return (struct tpacket_req){BLOCK, blocks, ring->frame_size, ring->frames};
}

static inline struct tpacket2_hdr *frame_at(const struct ring *ring, uint32_t i) {
    return (struct tpacket2_hdr *)(ring->start + (size_t)(i / ring->per_block) * BLOCK +
                                   (size_t)(i % ring->per_block) * ring->frame_size);
}

static inline uint32_t status_of(struct tpacket2_hdr *header) {
    return __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
}

static inline void set_status(struct tpacket2_hdr *header, uint32_t status) {
    __atomic_store_n(&header->tp_status, status, __ATOMIC_RELEASE);
}
