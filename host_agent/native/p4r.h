// The C interface of the native transport: what Python (ctypes) and the driver thread call.
// Times are int64 nanoseconds of the caller's choice of clock; addresses and numbers are in host order.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define P4R_ABI_VERSION 14
#define P4R_NEVER INT64_MAX
#define P4R_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct p4r_config {
    uint8_t own_mac[6];
    uint8_t successor_mac[6];
    uint8_t predecessor_mac[6];
    uint8_t reserved[2];
    uint32_t own_ip;
    uint32_t successor_ip;
    uint32_t predecessor_ip;
    uint32_t qpn_out;          // ours: sends data, receives acknowledgements
    uint32_t psn_out;          // first PSN of qpn_out
    uint32_t qpn_in;           // ours: receives data, sends acknowledgements
    uint32_t successor_qpn;    // the successor's QP_in
    uint32_t predecessor_qpn;  // the predecessor's QP_out
    uint32_t predecessor_psn;  // its first PSN
    uint32_t path_mtu;
    uint32_t window;           // W, messages
    uint32_t message_packets;  // P, packets a message
    uint32_t job_id;
    uint32_t generation;
    uint32_t rank;
    uint32_t predecessor_rank;  // on the ring
    uint32_t world_size;
    uint32_t retry_limit;  // timeouts in a row before giving up; 0: never
    uint32_t check_icrc;
    uint32_t max_burst;  // driver: frames handed to the interface at once
    uint32_t selective;        // retransmission on both connections; else go-back-N
    uint32_t first_message;    // what messages count from: 0, but for tests
    uint32_t in_flight_bytes;  // payload sent and not known to have arrived before another message may be; 0: any
    int64_t rto_low_ns;        // the shortest silence until the ends of what was sent are sent again; 0: never
    int64_t rto_ns;
    int64_t rto_max_ns;
} p4r_config;

// switch_op
enum { P4R_PASS = 0, P4R_SUM = 1, P4R_MAX = 2, P4R_SUM_HALF = 3, P4R_MAX_HALF = 4, P4R_LAST_OP = P4R_MAX_HALF };
// element_type: a switch adds the first four that are numbers; the others are folded on their way around a ring.
enum { P4R_RAW = 0, P4R_INT32 = 1, P4R_FLOAT32 = 2, P4R_FLOAT16 = 3, P4R_BFLOAT16 = 4, P4R_INT64 = 11, P4R_FLOAT64 = 13 };
// arrival
enum { P4R_STORE = 0, P4R_FOLD_SUM = 1, P4R_FOLD_MAX = 2, P4R_FOLD_MIN = 3, P4R_FOLD_PROD = 4, P4R_LAST_FOLD = P4R_FOLD_PROD };

typedef struct p4r_operation {
    const void *send;  // may be null if send_elements is 0
    void *receive;     // null: what arrives is checked and discarded
    // Of floats that are summed, a byte for each 64 elements: 1 where nothing is received, as an Inf or NaN is near.
    uint8_t *special;
    uint64_t send_elements;
    uint64_t receive_elements;
    uint64_t cut_elements;  // decides the number of messages, >= both
    uint32_t total_elements;
    uint32_t collective;
    uint32_t divisor;
    uint8_t switch_op;
    uint8_t element_type;
    uint8_t reduction;
    uint8_t arrival;
    uint8_t element_size;  // bytes of one element in the user's buffers
    uint8_t invert;
    uint8_t header_type;  // the element type that the header names: the user's tensor's
    uint8_t kind;         // of the collective; these three go into the header, and are compared there
    uint8_t root;
    uint8_t stage;
    uint8_t residual;  // of SUM_HALF of float32: with each result, `send` gets what rounding took away from it
    uint8_t reserved[5];
} p4r_operation;

enum { P4R_EVENT_NONE = 0, P4R_EVENT_RECEIVED = 1, P4R_EVENT_COMPLETED = 2, P4R_EVENT_FAILED = 3 };
enum {
    P4R_NOT_A_RESULT = 1,
    P4R_MISMATCH = 2,
    P4R_BAD_HEADER = 3,
    P4R_FOREIGN = 4,
    P4R_WRONG_MESSAGE = 5,
    P4R_WRONG_SHAPE = 6,
    P4R_BAD_SEQUENCE = 7,
    P4R_RETRY_LIMIT = 8,
    P4R_REMOTE_ERROR = 9,
    P4R_LOCAL_ERROR = 10,
};

typedef struct p4r_event {
    uint32_t type;
    uint32_t code;  // of a failure
    uint64_t op_id;
    uint32_t message;
    uint32_t psn;
    uint32_t header_bytes;
    uint8_t header[64];  // the start of the aggregation header at fault
    char text[320];
    uint32_t reserved;
} p4r_event;

typedef struct p4r_counters {
    uint64_t data_packets_sent, data_bytes_sent;
    uint64_t retransmitted_packets, retransmitted_bytes;
    uint64_t timeouts, go_backs;
    uint64_t acks_sent, naks_sent, rnr_naks_sent;
    uint64_t acks_received, naks_received, rnr_naks_received;
    uint64_t data_packets_received, data_bytes_received;
    uint64_t duplicates_received, out_of_order_received;
    uint64_t icrc_errors, malformed, foreign, stale_acks;
    uint64_t messages_sent, messages_received, results_received;
    uint64_t implied_acks, early_messages;
    uint64_t tail_probes, kept_packets;
    int64_t first_sent_ns, last_sent_ns, first_received_ns, last_received_ns;
    uint64_t frames_blocked, send_errors, ring_drops;
} p4r_counters;

typedef struct p4r_progress {
    uint32_t posted_messages, sent_messages, acked_messages, received_messages;
    uint32_t first_unacked_psn, next_psn, expected_psn;
    uint32_t timeouts_in_a_row;
    int64_t oldest_unacked_since_ns;
    uint32_t operations, failed;
    uint64_t numbered;  // posted_messages, not modulo 2^32
} p4r_progress;

P4R_EXPORT int p4r_abi_version(void);

// The bare state machine. Not thread safe. `error` gets a sentence when a call fails.
typedef struct p4r_endpoint p4r_endpoint;
P4R_EXPORT p4r_endpoint *p4r_endpoint_new(const p4r_config *, char *error, size_t error_size);
P4R_EXPORT void p4r_endpoint_free(p4r_endpoint *);
P4R_EXPORT uint64_t p4r_endpoint_post(p4r_endpoint *, const p4r_operation *, int64_t now, char *error,
                                      size_t error_size);  // operation id, 0: refused
P4R_EXPORT void p4r_endpoint_receive(p4r_endpoint *, const uint8_t *frame, size_t length, int64_t now);
P4R_EXPORT size_t p4r_endpoint_frame_bytes(const p4r_endpoint *);  // the largest frame it sends
// Frames go to buffer + i * stride; returns how many. Runs timers that are due.
P4R_EXPORT size_t p4r_endpoint_poll(p4r_endpoint *, int64_t now, uint8_t *buffer, size_t stride,
                                    uint32_t *lengths, size_t max_frames);
P4R_EXPORT int64_t p4r_endpoint_next_timeout(const p4r_endpoint *);
P4R_EXPORT void p4r_endpoint_halt(p4r_endpoint *);  // no more frames; the operations' buffers are let go
P4R_EXPORT int p4r_endpoint_event(p4r_endpoint *, p4r_event *);  // 1: one was there
// Its state (state.h), as far as it fits; how long it is.
P4R_EXPORT size_t p4r_endpoint_state(const p4r_endpoint *, int64_t now, uint8_t *buffer, size_t capacity);
P4R_EXPORT void p4r_endpoint_counters(const p4r_endpoint *, p4r_counters *);
P4R_EXPORT void p4r_endpoint_progress(const p4r_endpoint *, p4r_progress *);

// What threads post to and wait for: a driver, or whole messages. Thread safe.
typedef struct p4r_link p4r_link;
enum { P4R_WAIT_OK = 0, P4R_WAIT_TIMEOUT = 1, P4R_WAIT_FAILED = 2, P4R_WAIT_CLOSED = 3 };
P4R_EXPORT void p4r_link_free(p4r_link *);  // stops it first; no other call may be under way
P4R_EXPORT uint64_t p4r_link_post(p4r_link *, const p4r_operation *, char *error, size_t error_size);
// until: P4R_EVENT_RECEIVED or P4R_EVENT_COMPLETED
P4R_EXPORT int p4r_link_wait(p4r_link *, uint64_t op_id, int until, int64_t timeout_ns);
P4R_EXPORT uint64_t p4r_link_done(p4r_link *, int until);  // id of the last operation that is done
// All waits return CLOSED from now on, nothing is sent, and no operation's buffer is read or written any more.
P4R_EXPORT void p4r_link_abort(p4r_link *);
P4R_EXPORT int p4r_link_failure(p4r_link *, p4r_event *);  // 1: it failed
P4R_EXPORT void p4r_link_counters(p4r_link *, p4r_counters *);
P4R_EXPORT void p4r_link_progress(p4r_link *, p4r_progress *);

// An endpoint run by a thread on a network interface.
P4R_EXPORT p4r_link *p4r_driver_new(const p4r_config *, const char *interface, char *error, size_t error_size);
// Aborts, ends the thread, closes the sockets; waits return CLOSED. Idempotent; other calls are still allowed.
P4R_EXPORT void p4r_driver_stop(p4r_link *);

// Operations as whole messages, for an RDMA adapter. No I/O, no thread, no clock.
P4R_EXPORT p4r_link *p4r_messages_new(const p4r_config *, char *error, size_t error_size);
P4R_EXPORT size_t p4r_messages_bytes(const p4r_link *);  // of the largest message
// Writes the next message to SEND and returns its bytes; 0: there is none now, or `capacity` is less than the largest.
P4R_EXPORT size_t p4r_messages_next_send(p4r_link *, void *buffer, size_t capacity, int64_t now);
P4R_EXPORT void p4r_messages_acknowledged(p4r_link *, size_t count);  // the oldest `count` that are not
enum { P4R_TAKEN = 0, P4R_NOT_READY = 1, P4R_DEAD = 2 };
// The next message of the predecessor. NOT_READY: nothing was posted for it and enough wait already; give the same one
// again after the next post. DEAD: failed or aborted, now or before.
P4R_EXPORT int p4r_messages_receive(p4r_link *, const void *payload, size_t bytes, int64_t now);
P4R_EXPORT void p4r_messages_fail(p4r_link *, uint32_t code, const char *text);  // what the adapter reported
P4R_EXPORT size_t p4r_messages_state(p4r_link *, uint8_t *buffer, size_t capacity);  // as p4r_endpoint_state

// Kernels. Lanes are 32-bit big endian, unaligned; element counts, not bytes.
P4R_EXPORT uint32_t p4r_crc32(uint32_t crc, const void *data, size_t length);  // as zlib's crc32
// int32: the lane itself. Floats: rint(x * 2^exponent), or, `ordered`, a pattern that sorts as a signed integer as the
// floats do. invert: ~lane (of an ordered NaN as well the largest).
P4R_EXPORT void p4r_encode_lanes(int element_type, int ordered, const void *source, size_t n, void *lanes,
                                 int exponent, int invert);
// The way back. int32: lane / divisor, towards zero. Floats: lane * 2^-exponent / divisor, rounded once to nearest
// even.
P4R_EXPORT void p4r_decode_lanes(int element_type, int ordered, const void *lanes, size_t n, void *target,
                                 int exponent, uint32_t divisor, int invert);
// Floats: x * 2^exponent as binary16, rounded to nearest even; two of them in a lane. And back: what is there, times
// 2^-exponent / divisor, rounded once to nearest even.
P4R_EXPORT void p4r_encode_half(int element_type, const void *source, size_t n, void *lanes, int exponent);
P4R_EXPORT void p4r_decode_half(int element_type, const void *lanes, size_t n, void *target, int exponent,
                                uint32_t divisor);
// float32s, to what these two leave of them.
P4R_EXPORT void p4r_leave_residual(void *values, size_t n, int exponent);
// A copy past the caches.
P4R_EXPORT void p4r_keep(const void *source, size_t bytes, void *target);
// target[i] = target[i] op source[i]; fold is P4R_FOLD_*. MAX and MIN give NaN if either is NaN. But for sums
// of float32 and shorter floats, any NaN is the same one: quiet, positive, without a payload.
P4R_EXPORT void p4r_fold(int fold, int element_type, void *target, const void *source, size_t n);
// target[i] = (the sum of row[i] of `count` rows, each `stride` bytes behind the one before) / divisor: added in the
// order of the rows in 64-bit floats, rounded once to nearest even. Floats only.
P4R_EXPORT void p4r_sum_rows(int element_type, const void *rows, size_t stride, size_t count, size_t n,
                             uint32_t divisor, void *target);
// target[i], of float32 = the sum of rows[..][i] * 2^exponent, each a float of that type, added in order in float32.
P4R_EXPORT void p4r_sum_floats(int element_type, const void *const *rows, size_t count, size_t n, int exponent,
                               void *target);
// target[i], of that type = sums[i], of float32, * 2^exponent / divisor, rounded once to nearest even.
P4R_EXPORT void p4r_round_floats(int element_type, const void *sums, size_t n, int exponent, uint32_t divisor,
                                 void *target);
// 1: an Inf or NaN is among them. Floats of up to 32 bits only.
P4R_EXPORT int p4r_has_special(int element_type, const void *source, size_t n);
// target[i] = target[i] / divisor; int32 towards zero.
P4R_EXPORT void p4r_divide(int element_type, void *target, size_t n, uint32_t divisor);

// The calling thread's floating-point mode becomes IEEE 754's default; returns the one before, for `leave`.
P4R_EXPORT uint64_t p4r_float_mode_enter(void);
P4R_EXPORT void p4r_float_mode_leave(uint64_t before);

// Inside a machine. A counter lies in memory that processes share, at a multiple of its size. What was written before it
// was set is seen by who has seen it set; what is written afterwards is not seen before it. Waits take nanoseconds, 0 to
// look only; 1: it has reached the value, or has passed it.
P4R_EXPORT int p4r_counter_wait(const uint32_t *counter, uint32_t value, int64_t timeout_ns);  // counts modulo 2^32
P4R_EXPORT void p4r_counter_set(uint32_t *counter, uint32_t value);
P4R_EXPORT int p4r_counter64_wait(const uint64_t *counter, uint64_t value, int64_t timeout_ns);  // counts without end
P4R_EXPORT void p4r_counter64_set(uint64_t *counter, uint64_t value);
P4R_EXPORT uint64_t p4r_counter64_get(const uint64_t *counter);
// Blocks of floats; `starts`, in elements, of each, `end` that of the last. `source` and `target` begin with the first.
// Exponents are the fields of float32s as large as the blocks' largest numbers: 255 where an Inf or NaN is there, 0
// where all are 0, and 1 for what is less than a normal number.
P4R_EXPORT void p4r_exponents_of_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks,
                                        uint64_t end, uint8_t *exponents);
// To rint(x * 2^(most + 126 - exponent)), 0 where the exponent is 0 or 255; and back: divided, rounded once.
P4R_EXPORT void p4r_encode_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks,
                                  uint64_t end, const uint8_t *exponents, int most, void *target);
P4R_EXPORT void p4r_decode_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks,
                                  uint64_t end, const uint8_t *exponents, int most, uint32_t divisor, void *target);
// target[i] = the sum of rows[..][i], of int32, which wraps.
P4R_EXPORT void p4r_sum_words(const void *const *rows, size_t count, size_t n, void *target);

#ifdef __cplusplus
}
#endif
