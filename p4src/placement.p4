/* Which packet of which message a packet of a data flow is.
 *
 * A First (or Only) packet carries the aggregation header: the flow's PSN of that message begins there. Every flow remembers
 * the last 2W messages, so that a retransmission that starts in the middle of an older one still finds its place:
 * index = (PSN - first PSN) mod 2^24. What finds no place is dropped and counted; forwarded, its receiver could take it
 * for the sum.
 */
#ifndef PLACEMENT_P4
#define PLACEMENT_P4

#include <v1model.p4>
#include "include/headers.p4"

/* The aggregation header stands in the first 36 bytes of the first chunk. */
#define HEAD hdr.chunk[0].lanes
#define HEAD_MAGIC      HEAD[2047:2016]
#define HEAD_VERSION    HEAD[2015:2008]
#define HEAD_FLAGS      HEAD[2007:2000]
#define HEAD_JOB        HEAD[1999:1984]
#define HEAD_GENERATION HEAD[1983:1952]
#define HEAD_MESSAGE    HEAD[1951:1920]
#define HEAD_RANK       HEAD[1919:1912]
#define HEAD_OP         HEAD[1911:1904]
#define HEAD_PACKETS    HEAD[1895:1888]
#define HEAD_SIGNATURE  HEAD[1911:1760]

/* A remembered message: generation 32 | number 32 | first PSN 24 | packets 8 | op 8. */
#define RECORD_GENERATION(r) r[103:72]
#define RECORD_MESSAGE(r)    r[71:40]
#define RECORD_PSN(r)        r[39:16]
#define RECORD_PACKETS(r)    r[15:8]
#define RECORD_OP(r)         r[7:0]

/* A message's first PSNs with this one at `psn_shift`: 24 * rank bits to the left, in three steps, as BMv2 shifts by 8-bit
 * amounts. */
#define WITH_FIRST_PSN(psn) \
    meta.first_psns = (meta.first_psns & ~(((bit<FIRST_PSNS_BITS>)24w0xffffff) << meta.psn_shift << meta.psn_shift << meta.psn_shift)) \
                      | (((bit<FIRST_PSNS_BITS>)(psn)) << meta.psn_shift << meta.psn_shift << meta.psn_shift);

/* An older message of the flow, if the PSN lies in it; then, the cell after. */
#define LOOK_AT_NEXT \
    records.read(candidate, cell); \
    cell = cell + 1; \
    if (hdr.bth.psn - RECORD_PSN(candidate) < (psn_t)RECORD_PACKETS(candidate) \
            && RECORD_GENERATION(candidate) == meta.generation \
            && RECORD_MESSAGE(latest) - RECORD_MESSAGE(candidate) <= meta.window_mask) { \
        record = candidate; \
        locate(); \
    }

control Placement(inout headers_t hdr,
                  inout metadata_t meta,
                  register<bit<RECORD_BITS>> latest_message,
                  register<bit<FIRST_PSNS_BITS>> first_psns) {
    register<bit<RECORD_BITS>>(MAX_FLOWS * HISTORY_MESSAGES) records;

    bit<RECORD_BITS> latest = 0;
    bit<RECORD_BITS> record = 0;
    bit<RECORD_BITS> candidate = 0;
    bit<32> cell = 0;            /* of the flow's records */
    bit<32> behind = 0;          /* how many messages this one is behind the latest */
    bit<32> first_psns_index = 0;

    action locate() {
        meta.placed = true;
        meta.message = RECORD_MESSAGE(record);
        meta.index = (bit<8>)(hdr.bth.psn - RECORD_PSN(record));
        meta.packets = RECORD_PACKETS(record);
        meta.op = RECORD_OP(record);
    }

    action read_flow() {
        latest_message.read(latest, meta.flow);
        cell = meta.flow << 4; /* HISTORY_MESSAGES cells a flow */
    }

    action read_head() {
        meta.message = HEAD_MESSAGE;
        meta.signature = HEAD_SIGNATURE;
        record = meta.generation ++ HEAD_MESSAGE ++ hdr.bth.psn ++ HEAD_PACKETS ++ HEAD_OP;
        cell = cell + (HEAD_MESSAGE & meta.window_mask);
        behind = RECORD_MESSAGE(latest) - HEAD_MESSAGE;
    }

    action store_record() {
        records.write(cell, record);
        locate();
    }

    action store_latest() {
        latest_message.write(meta.flow, record);
        store_record();
    }

    action read_first_psns() {
        first_psns_index = meta.region + (meta.message & meta.window_mask);
        first_psns.read(meta.first_psns, first_psns_index);
    }

    action store_first_psn() {
        WITH_FIRST_PSN(hdr.bth.psn)
        first_psns.write(first_psns_index, meta.first_psns);
    }

    apply {
        read_flow();
        if (hdr.bth.reserved != 0) {
            /* Only the switch may mark a packet as summed. */
            meta.placed = false;
        } else if (hdr.bth.opcode == SEND_FIRST || hdr.bth.opcode == SEND_ONLY) {
            read_head();
            if (HEAD_MAGIC == AGGREGATION_MAGIC && HEAD_VERSION == AGGREGATION_VERSION && HEAD_FLAGS == 0
                    && HEAD_JOB == meta.job && HEAD_GENERATION == meta.generation && HEAD_RANK == meta.rank
                    && HEAD_OP <= OP_LAST
                    /* Slots tell what is older by serial numbers, which are wrong of two that are 2^31 apart. PASS messages touch
                     * no slot, so that sums can be any number apart: those of a generation are below 2^31. */
                    && (HEAD_OP == OP_PASS || meta.message[31:31] == 0)
                    && HEAD_PACKETS != 0 && HEAD_PACKETS <= (8w1 << meta.packets_shift)
                    && ((HEAD_PACKETS == 1) == (hdr.bth.opcode == SEND_ONLY))) {
                /* A new generation begins with nothing remembered. */
                if (RECORD_GENERATION(latest) != meta.generation || behind[31:31] == 1) {
                    store_latest();
                } else if (behind <= meta.window_mask) {
                    records.read(candidate, cell);
                    /* Sent again, it has the PSN it had. After a gap its cell may hold an older message. */
                    if (candidate == record) {
                        locate();
                    } else if (RECORD_GENERATION(candidate) != meta.generation
                            || RECORD_MESSAGE(candidate) != meta.message) {
                        store_record();
                    }
                }
            }
        } else if (RECORD_GENERATION(latest) == meta.generation) {
            if (hdr.bth.psn - RECORD_PSN(latest) < (psn_t)RECORD_PACKETS(latest)) {
                record = latest;
                locate();
            } else {
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
                LOOK_AT_NEXT
            }
            /* A Last is the last, and nothing else is; only a First is the first. */
            if (meta.index == 0 || (meta.index + 1 == meta.packets) != (hdr.bth.opcode == SEND_LAST)) {
                meta.placed = false;
            }
        }
        if (meta.placed && meta.op != OP_PASS) {
            read_first_psns();
            if (meta.index == 0) {
                store_first_psn();
            }
        }
    }
}

#endif
