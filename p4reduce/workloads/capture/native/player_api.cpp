// The C interface of the frame player: catches what must not cross it and turns it into a sentence.
#include <cstdio>
#include <exception>

#include "frame_player.h"
#include "p4r_player.h"
#include "played_frame.h"

int p4r_abi_version(void) { return P4R_ABI_VERSION; }

struct p4r_player {
    explicit p4r_player(const p4r::FramePlayer::Input &input) : machine(input) {}
    p4r::FramePlayer machine;
};

p4r_player *p4r_player_new(const uint8_t *data, uint64_t data_bytes, const p4r_play_host *hosts, size_t host_count,
                           const p4r_play_packet *packets, size_t packet_count, int64_t *sent_ns,
                           int64_t *received_ns, uint8_t *reordered, uint8_t *duplicates, char *error,
                           size_t error_size) {
    try {
        return new p4r_player({data, data_bytes, hosts, host_count, packets, packet_count, sent_ns, received_ns,
                               reordered, duplicates});
    } catch (const std::exception &failure) {
        snprintf(error, error_size, "%s", failure.what());
        return nullptr;
    }
}

int p4r_player_start(p4r_player *player, char *error, size_t error_size) {
    try {
        player->machine.start();
        return 0;
    } catch (const std::exception &failure) {
        snprintf(error, error_size, "%s", failure.what());
        return -1;
    }
}

void p4r_player_progress(p4r_player *player, p4r_play_progress *progress) { player->machine.progress(progress); }

void p4r_player_stop(p4r_player *player) { player->machine.stop(); }

void p4r_player_free(p4r_player *player) { delete player; }

size_t p4r_player_frame(const uint8_t *data, const p4r_play_host *hosts, const p4r_play_packet *packet,
                        uint32_t sequence, uint8_t *frame) {
    return p4r::write_played_frame(data, hosts, *packet, sequence, frame);
}
