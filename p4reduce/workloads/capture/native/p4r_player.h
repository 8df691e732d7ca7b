// The C interface of the frame player: captured RoCE v2 packets, sent again by the hosts of a fabric.
// Addresses and numbers are in host order; times are nanoseconds after the start.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "p4r.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct p4r_play_host {
    const char *network_namespace;  // a path, as /proc/PID/ns/net; empty: the caller's
    const char *interface;
    uint32_t ip;
    uint8_t mac[6];
    uint8_t reserved[2];
} p4r_play_host;

typedef struct p4r_play_packet {
    int64_t at_ns;
    uint64_t offset;    // of its IPv4 header (20 bytes) in the data
    uint32_t captured;  // how many bytes of it the data has from there on; the rest is sent as zeros
    uint16_t bytes;     // of it, from the IPv4 header to the ICRC
    uint8_t from, to;   // hosts
} p4r_play_packet;

typedef struct p4r_play_progress {
    uint64_t sent;
    uint64_t received;    // a packet that came twice counts once
    uint64_t unexpected;  // received, and none of those that were sent, or not as it was sent
    uint64_t blocked;     // how often a host had to wait for its interface
    uint64_t ring_drops;  // arrived, and not looked at in time
    int64_t last_received_ns;
    uint32_t senders;  // that are not done
    uint32_t failed;   // 1: `error` says why
    char error[256];
} p4r_play_progress;

typedef struct p4r_player p4r_player;

enum { P4R_PLAY_NEVER = -1 };

// Opens the sockets. Packets are in the order of their times; all arrays stay the caller's and must outlive the player.
// `sent_ns` and `received_ns` get a time for each packet, `reordered` whether it arrived behind a later one of its flow
// (the same hosts, UDP source port and queue pair), `duplicates` how often it came again (255: or more). They are to be
// read after p4r_player_stop only.
P4R_EXPORT p4r_player *p4r_player_new(const uint8_t *data, uint64_t data_bytes, const p4r_play_host *hosts,
                                      size_t host_count, const p4r_play_packet *packets, size_t packet_count,
                                      int64_t *sent_ns, int64_t *received_ns, uint8_t *reordered,
                                      uint8_t *duplicates, char *error, size_t error_size);
P4R_EXPORT int p4r_player_start(p4r_player *, char *error, size_t error_size);  // once; 0: it did
P4R_EXPORT void p4r_player_progress(p4r_player *, p4r_play_progress *);         // thread safe
P4R_EXPORT void p4r_player_stop(p4r_player *);                                  // idempotent
P4R_EXPORT void p4r_player_free(p4r_player *);                                  // stops it first

// The frame that is sent for a packet, the `sequence`th from its host to the other; its length.
P4R_EXPORT size_t p4r_player_frame(const uint8_t *data, const p4r_play_host *hosts, const p4r_play_packet *packet,
                                   uint32_t sequence, uint8_t *frame);

#ifdef __cplusplus
}
#endif
