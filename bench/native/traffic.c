/* The hosts of bench/switch.py: sends frames into every port of a switch and takes what comes out, in one thread.
 *
 *   traffic PLAN FIRST SECONDS WARM_UP PID...
 *
 * Round k is a frame into each port and a frame out of each. PLAN has the frames of the rounds of one message, in and
 * out; what changes from message to message (PSN, message number, ICRC) is put in here: the ICRC is linear, so that tables
 * say what to change. No more rounds than `window` are under way, so that nothing is lost, and nothing is lost
 * unnoticed: every frame's length, PSN and first bytes are compared with what is expected, and of one in SAMPLE all bytes.
 *
 * Prints one line of JSON: rounds within SECONDS, and the CPU time that the processes PID took meanwhile. */
#include "rings.h"

#include <dirent.h>
#include <linux/filter.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_PORTS = 16, MAX_BURST = 32, SNAP = 128, SAMPLE = 251, RING_FRAMES = 512, PSN = 51, MESSAGE = 54 + 12, ICRC = 4, SLEEP_NS = 20000 };
static const double STALL_S = 3.0;

struct plan {
    uint32_t ports, cycle, length, window, burst;
};

struct port {
    char interface[16];
    uint32_t psn_in, psn_out; /* of round 0 */
    uint8_t *in, *out;
    int sender, receiver;
    struct ring ring;
    uint64_t received;
    struct mmsghdr messages[MAX_BURST];
    struct iovec parts[MAX_BURST];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct plan plan;
static struct port ports[MAX_PORTS];
static uint32_t changes[7][256]; /* of the ICRC, by bytes of PSN (3) and message number (4) */
static uint64_t sampled;

static void crc_table(uint32_t table[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
        table[i] = c;
    }
}

static void make_changes(void) {
    uint32_t table[256];
    crc_table(table);
    for (int i = 0; i < 7; i++) {
        const uint32_t at = i < 3 ? PSN + i : MESSAGE + i - 3;
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t c = table[byte];
            for (uint32_t rest = plan.length - ICRC - at - 1; rest > 0; rest--) c = table[c & 255] ^ c >> 8;
            changes[i][byte] = c;
        }
    }
}

/* A frame of the plan, which has PSN and message number 0 and the ICRC `icrc`, becomes that of round k. */
static inline void stamp(uint8_t *frame, uint64_t k, uint32_t psn, uint32_t icrc) {
    for (int i = 0; i < 3; i++) {
        const uint8_t byte = psn >> (16 - 8 * i);
        frame[PSN + i] = byte, icrc ^= changes[i][byte];
    }
    if (k % plan.cycle == 0) {
        const uint32_t message = k / plan.cycle;
        for (int i = 0; i < 4; i++) {
            const uint8_t byte = message >> (24 - 8 * i);
            frame[MESSAGE + i] = byte, icrc ^= changes[3 + i][byte];
        }
    }
    memcpy(frame + plan.length - ICRC, &icrc, ICRC);
}

static uint32_t *icrcs_in, *icrcs_out;

static void keep_icrcs(void) {
    icrcs_in = calloc(plan.ports * plan.cycle, 4), icrcs_out = calloc(plan.ports * plan.cycle, 4);
    for (uint32_t p = 0; p < plan.ports; p++)
        for (uint32_t i = 0; i < plan.cycle; i++) {
            memcpy(&icrcs_in[p * plan.cycle + i], ports[p].in + (i + 1) * plan.length - ICRC, 4);
            memcpy(&icrcs_out[p * plan.cycle + i], ports[p].out + (i + 1) * plan.length - ICRC, 4);
        }
}

static void read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    if (fread(&plan, sizeof plan, 1, file) != 1) fail(path);
    if (plan.ports > MAX_PORTS || plan.burst > MAX_BURST || plan.window > RING_FRAMES) fail("plan");
    const size_t size = (size_t)plan.cycle * plan.length;
    for (uint32_t p = 0; p < plan.ports; p++) {
        struct port *port = &ports[p];
        port->in = malloc(size), port->out = malloc(size);
        if (fread(port->interface, 16, 1, file) != 1 || fread(&port->psn_in, 8, 1, file) != 1 ||
            fread(port->in, size, 1, file) != 1 || fread(port->out, size, 1, file) != 1)
            fail(path);
    }
    fclose(file);
}

/* The kernel keeps SNAP bytes of a frame, and all of those whose PSN is a multiple of SAMPLE. */
static void open_port(struct port *port) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, PSN - 1),  BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, SAMPLE), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SNAP),              BPF_STMT(BPF_RET | BPF_K, 65535),
    };
    const struct sock_fprog filter = {sizeof code / sizeof *code, code};
    port->receiver = packet_socket(TPACKET_V2);
    if (setsockopt(port->receiver, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) < 0) fail("SO_ATTACH_FILTER");
    struct tpacket_req request = ring_request(&port->ring, plan.length, RING_FRAMES);
    if (setsockopt(port->receiver, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0) fail("PACKET_RX_RING");
    port->ring.start = map_rings(port->receiver, (size_t)request.tp_block_nr * BLOCK);
    bind_to(port->receiver, port->interface, ETH_P_IP);
    port->sender = packet_socket(TPACKET_V2);
    const int one = 1;
    setsockopt(port->sender, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one); /* we are the hosts, not the switch */
    bind_to(port->sender, port->interface, 0);
    for (int i = 0; i < MAX_BURST; i++) {
        port->messages[i].msg_hdr.msg_iov = &port->parts[i];
        port->messages[i].msg_hdr.msg_iovlen = 1;
    }
}

static void send_rounds(uint32_t p, uint64_t first, uint32_t count) {
    struct port *port = &ports[p];
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t k = first + i;
        uint8_t *frame = port->in + (k % plan.cycle) * plan.length;
        stamp(frame, k, (port->psn_in + k) & 0xffffff, icrcs_in[p * plan.cycle + k % plan.cycle]);
        port->parts[i] = (struct iovec){frame, plan.length};
    }
    for (uint32_t done = 0; done < count;) {
        const int sent = sendmmsg(port->sender, port->messages + done, count - done, 0);
        if (sent < 0 && errno != EINTR && errno != ENOBUFS) fail("sendmmsg");
        if (sent > 0) done += sent;
    }
}

static void expect(uint32_t p, const uint8_t *frame, uint32_t captured, uint32_t length) {
    struct port *port = &ports[p];
    const uint64_t k = port->received;
    uint8_t *wanted = port->out + (k % plan.cycle) * plan.length;
    stamp(wanted, k, (port->psn_out + k) & 0xffffff, icrcs_out[p * plan.cycle + k % plan.cycle]);
    sampled += captured == plan.length;
    if (length == plan.length && captured >= SNAP && memcmp(frame, wanted, captured) == 0) return;
    fprintf(stderr, "round %llu: what left at %s is not what was expected (%u bytes, not %u)\n", (unsigned long long)k, port->interface, length, plan.length);
    for (uint32_t i = 0; i < captured && i < plan.length; i++)
        if (frame[i] != wanted[i]) {
            fprintf(stderr, "byte %u: %02x, not %02x\n", i, frame[i], wanted[i]);
            break;
        }
    exit(2);
}

static uint64_t receive(uint32_t p) {
    struct port *port = &ports[p];
    struct ring *ring = &port->ring;
    for (struct tpacket2_hdr *header; status_of(header = frame_at(ring, ring->at)) & TP_STATUS_USER;) {
        expect(p, (uint8_t *)header + header->tp_mac, header->tp_snaplen, header->tp_len);
        set_status(header, TP_STATUS_KERNEL);
        ring->at = (ring->at + 1) % ring->frames;
        port->received++;
    }
    return port->received;
}

/* Nanoseconds that the threads of a process have run. */
static uint64_t cpu_ns(const char *pid) {
    char path[320];
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks) fail(path);
    uint64_t total = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%s/task/%s/schedstat", pid, task->d_name);
        FILE *file = fopen(path, "r");
        unsigned long long ns = 0;
        if (file && fscanf(file, "%llu", &ns) == 1) total += ns;
        if (file) fclose(file);
    }
    closedir(tasks);
    return total;
}

static double own_cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

struct reading {
    double at, own;
    uint64_t rounds, cpu[64];
};

static struct reading reading(uint64_t rounds, char **pids, int count) {
    struct reading made = {.at = now(), .own = own_cpu(), .rounds = rounds};
    for (int i = 0; i < count; i++) made.cpu[i] = cpu_ns(pids[i]);
    return made;
}

int main(int count, char **arguments) {
    if (count < 5 || count > 5 + 64) {
        fprintf(stderr, "usage: traffic PLAN FIRST SECONDS WARM_UP PID...\n");
        return 1;
    }
    read_plan(arguments[1]);
    const uint64_t first = strtoull(arguments[2], NULL, 10); /* a multiple of the cycle */
    const double seconds = atof(arguments[3]), warm_up = atof(arguments[4]);
    char **pids = arguments + 5;
    prctl(PR_SET_TIMERSLACK, 1);
    make_changes();
    keep_icrcs();
    for (uint32_t p = 0; p < plan.ports; p++) open_port(&ports[p]), ports[p].received = first;
    uint64_t next = first, done = first, idle = 0, looks = 0;
    struct reading begin = {0}, end = {0};
    const double started = now();
    for (double progress = started; done < next || end.at == 0; looks++) {
        const double t = now();
        if (begin.at == 0 && t - started >= warm_up) begin = reading(done, pids, count - 5);
        if (begin.at != 0 && end.at == 0 && t - begin.at >= seconds) end = reading(done, pids, count - 5);
        int sent = 0;
        while (next + plan.burst <= done + plan.window && (end.at == 0 || next % plan.cycle)) {
            uint32_t burst = plan.burst;
            if (end.at != 0 && burst > plan.cycle - next % plan.cycle) burst = plan.cycle - next % plan.cycle;
            for (uint32_t p = 0; p < plan.ports; p++) send_rounds(p, next, burst);
            next += burst, sent = 1;
            if (end.at == 0) break; /* look at what has come first */
        }
        uint64_t least = ~(uint64_t)0;
        for (uint32_t p = 0; p < plan.ports; p++) {
            const uint64_t received = receive(p);
            if (received < least) least = received;
        }
        if (least > done) {
            done = least, progress = t;
        } else if (t - progress > STALL_S) {
            fprintf(stderr, "nothing for %.0f s: of %llu rounds, %llu came out whole\n", STALL_S,
                    (unsigned long long)(next - first), (unsigned long long)(done - first));
            for (uint32_t p = 0; p < plan.ports; p++)
                fprintf(stderr, "%s: %llu\n", ports[p].interface, (unsigned long long)(ports[p].received - first));
            return 3;
        }
        if (!sent && next + plan.burst > done + plan.window) {
            const struct timespec sleep = {0, SLEEP_NS};
            nanosleep(&sleep, NULL);
            idle++;
        }
    }
    printf("{\"rounds\": %llu, \"seconds\": %.6f, \"next\": %llu, \"sampled\": %llu, \"own_cpu_s\": %.6f, \"idle\": %.3f, \"cpu_s\": [",
           (unsigned long long)(end.rounds - begin.rounds), end.at - begin.at, (unsigned long long)next,
           (unsigned long long)sampled, end.own - begin.own, (double)idle / looks);
    for (int i = 0; i < count - 5; i++) printf("%s%.6f", i ? ", " : "", (end.cpu[i] - begin.cpu[i]) * 1e-9);
    printf("]}\n");
    return 0;
}
