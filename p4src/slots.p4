/* The five slot rules (docs/protocol.md). For a packet of rank r, message m, index i, in slot (m mod 2W) * P + i:
 *
 *   tag older than m             1  claim it: tag m, bitmap {r}, accumulators = payload
 *   tag = m, r not in bitmap     2  add, set the bit; all there: emit the sum on every flow
 *   tag = m, r in, incomplete    3  a duplicate: drop, or answer "not ready"
 *   tag = m, complete            4  answer on flow r alone with the stored sum
 *   tag newer than m             5  forward unmodified; the receiver only acknowledges again
 *
 * Once the ranks' headers disagree, nothing but the first packet of that message goes on: it says so to everybody.
 *
 * Of a job in several racks, a leaf sends up what it has when all of its workers are there, again for each duplicate, and its
 * slot is complete when it holds the sum of all that came back. A spine knows rule 3 as: ask the leaves that have not
 * contributed.
 */
#ifndef SLOTS_P4
#define SLOTS_P4

#include <v1model.p4>
#include "include/headers.p4"
#include "accumulator.p4"

/* A slot's state: generation 32 | message 32 | bitmap 32 | chunks 8 | flags 8. */
#define SLOT_GENERATION(s) s[111:80]
#define SLOT_MESSAGE(s)    s[79:48]
#define SLOT_BITMAP(s)     s[47:16]
#define SLOT_CHUNKS(s)     s[15:8]
#define SLOT_FLAGS(s)      s[7:0]

/* What ranks that disagree get: they may have added to accumulators that an older message, of another job even, has left. */
#define SILENCE(i) if (hdr.chunk[i].isValid()) { hdr.chunk[i].lanes = 0; }

control Slots(inout headers_t hdr,
              inout metadata_t meta,
              inout standard_metadata_t standard_metadata,
              register<bit<112>> slot_state,
              register<bit<48>> claimed_at,
              register<bit<AWAITED_BITS>> awaited_psns,
              register<bit<FIRST_PSNS_BITS>> first_psns) {
    counter(MAX_FLOWS, CounterType.packets_and_bytes) aggregated; /* rules 1 and 2 */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) completed;  /* rule 2, by the flow whose packet completed the slot */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) duplicate;  /* rule 3: dropped */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) not_ready;  /* rule 3: answered with an RNR NAK */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) replayed;   /* rule 4 */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) stale;      /* rule 5 */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) mismatch;   /* the ranks' headers or lengths disagree */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) partials;   /* sent up, again too */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) results;    /* of all racks: stored */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) asked;      /* rule 3 on a spine */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) late;       /* a result or question that its slot has nothing for */

    Accumulators() accumulators;

    slot_t slot = 0;
    bit<112> state = 0;
    bit<112> head = 0;           /* of the message's first packet */
    chunk_op_t op = CHUNK_LOAD;
    chunk_op_t head_op = CHUNK_LOAD;
    rank_set_t bitmap = 0;
    bit<8> chunks = 0;
    bit<8> flags = 0;
    bit<32> ahead = 0;           /* of the slot's tag, in messages */
    bool touched = false;
    bool whole = true;           /* the message's first packet has its slot, too */
    bit<AWAITED_BITS> awaited = 0;

    action find_slot() {
        slot = meta.region + ((meta.message & meta.window_mask) << meta.packets_shift) + (bit<32>)meta.index;
        slot_state.read(state, slot);
        bitmap = SLOT_BITMAP(state);
        chunks = SLOT_CHUNKS(state);
        flags = SLOT_FLAGS(state);
        ahead = meta.message - SLOT_MESSAGE(state);
    }

    action find_head() {
        slot_state.read(head, meta.region + ((meta.message & meta.window_mask) << meta.packets_shift));
    }

    /* The PSN before which the receiver has acknowledged everything. */
    action find_awaited() {
        awaited_psns.read(awaited, meta.flow);
    }

    /* A spine keeps each slot's own PSNs. Those of messages would be mixed up by what comes late from an older message: the bits
     * of the slot's bitmap say which are this message's. */
    action read_psns() {
        first_psns.read(meta.first_psns, slot);
    }

    action store_psn() {
        WITH_FIRST_PSN(meta.psn)
        first_psns.write(slot, meta.first_psns);
    }

    /* A leaf: the first PSNs of its own flows, and of the one that enters in place of the one that leaves. */
    action read_first_psns() {
        first_psns.read(meta.first_psns, meta.region + (meta.message & meta.window_mask));
    }

    action enter_first_psn() {
        WITH_FIRST_PSN(meta.psn - (psn_t)meta.index)
    }

    action note_time() {
        claimed_at.write(slot, standard_metadata.ingress_global_timestamp);
    }

    action store_state() {
        slot_state.write(slot, meta.generation ++ meta.message ++ bitmap ++ chunks ++ flags);
    }

    apply {
        find_slot();
        if (meta.index != 0) {
            find_head();
            /* Where it is not, the first PSNs may be those of the message after. */
            whole = SLOT_MESSAGE(head) == meta.message && SLOT_GENERATION(head) == meta.generation;
        }
        if (meta.from_leaf) {
            read_psns();
        } else if (meta.from_spine) {
            read_first_psns();
        }
        if (SLOT_FLAGS(head) & FLAG_MISMATCH != 0 && SLOT_MESSAGE(head) == meta.message
                && SLOT_GENERATION(head) == meta.generation) {
            mismatch.count(meta.flow);
            meta.verdict = DISCARD;
        } else if (SLOT_GENERATION(state) != meta.generation || (ahead != 0 && ahead[31:31] == 0)) {
            if (meta.brings == CONTRIBUTION || (meta.brings == SUM_OF_ALL && meta.from_leaf)) {
                /* 1: all that was stored here has reached everybody */
                bitmap = meta.rank_bit;
                chunks = meta.chunks;
                flags = meta.tree_flags;
                if (meta.brings == SUM_OF_ALL) {
                    flags = flags | FLAG_RESULT;
                    results.count(meta.flow);
                    meta.verdict = EMIT_GROUP;
                } else {
                    aggregated.count(meta.flow);
                    meta.verdict = DISCARD;
                    if (bitmap == meta.all_ranks) {
                        /* The only one in its rack. */
                        partials.count(meta.flow);
                        meta.verdict = SEND_UP;
                    }
                }
                store_state();
                note_time();
                op = CHUNK_CLAIM;
                head_op = CHUNK_CLAIM;
                if (meta.op == OP_SUM_HALF && meta.verdict == DISCARD) {
                    op = HALF_CLAIM;
                    if (meta.index != 0) {
                        head_op = HALF_CLAIM;
                    }
                }
                touched = true;
            } else {
                late.count(meta.flow);
                meta.verdict = DISCARD;
            }
        } else if (ahead != 0) {
            /* 5; between switches there is nobody who would acknowledge */
            stale.count(meta.flow);
            if (meta.from_leaf || meta.from_spine) {
                meta.verdict = DISCARD;
            }
        } else if (SLOT_CHUNKS(state) != meta.chunks && meta.index != 0) {
            /* Not the fragment that the others sent, though the headers agreed or will tell everybody. */
            mismatch.count(meta.flow);
            meta.verdict = DISCARD;
        } else if (meta.from_spine && !whole) {
            /* Everybody has it: somebody here has sent the message that takes its place. */
            late.count(meta.flow);
            meta.verdict = DISCARD;
        } else if (flags & FLAG_RESULT != 0) {
            if (meta.brings == SUM_OF_ALL) {
                duplicate.count(meta.flow);
                meta.verdict = DISCARD;
            } else {
                /* 4 */
                touched = true;
                replayed.count(meta.flow);
                meta.verdict = EMIT_ALONE;
                if (meta.brings == QUESTION) {
                    meta.verdict = SEND_UP;
                }
            }
        } else if (meta.brings == SUM_OF_ALL) {
            if (meta.from_leaf || bitmap == meta.all_ranks) {
                bitmap = bitmap | meta.rank_bit;
                chunks = meta.chunks;
                flags = flags | meta.tree_flags | FLAG_RESULT;
                store_state();
                op = CHUNK_CLAIM;
                head_op = CHUNK_CLAIM;
                touched = true;
                results.count(meta.flow);
                meta.verdict = EMIT_GROUP;
            } else {
                late.count(meta.flow);
                meta.verdict = DISCARD;
            }
        } else if (meta.brings == QUESTION) {
            if (bitmap == meta.all_ranks) {
                touched = true;
                partials.count(meta.flow);
                meta.verdict = SEND_UP;
            } else {
                late.count(meta.flow);
                meta.verdict = DISCARD;
            }
        } else if (bitmap & meta.rank_bit != 0) {
            /* 3 */
            if (!whole && meta.two_level == 1 && bitmap == meta.all_ranks) {
                /* As 5: the receiver has it. */
                stale.count(meta.flow);
            } else if (meta.from_leaf) {
                asked.count(meta.flow);
                meta.verdict = ASK_LEAVES;
            } else {
                find_awaited();
                if (AWAITED_GENERATION(awaited) != meta.generation) {
                    awaited = meta.generation ++ meta.first_psn;
                }
                if (meta.rnr_syndrome != 0 && hdr.bth.psn == AWAITED_PSN(awaited)) {
                    not_ready.count(meta.flow);
                    meta.verdict = NOT_READY;
                    standard_metadata.egress_spec = standard_metadata.ingress_port;
                } else if (bitmap != meta.all_ranks) {
                    duplicate.count(meta.flow);
                    meta.verdict = DISCARD;
                }
                if (bitmap == meta.all_ranks) {
                    /* What was sent up, or its answer, was lost; or another rack is late. */
                    touched = true;
                    partials.count(meta.flow);
                    meta.verdict = meta.verdict == NOT_READY ? SEND_UP_AND_BACK : SEND_UP;
                }
            }
        } else {
            /* 2 */
            bitmap = bitmap | meta.rank_bit;
            flags = flags | meta.tree_flags;
            op = CHUNK_SUM;
            if (meta.op == OP_MAX) {
                op = CHUNK_MAX;
            } else if (meta.op == OP_MAX_HALF) {
                op = HALF_MAX;
            } else if (meta.op == OP_SUM_HALF) {
                op = bitmap == meta.all_ranks ? HALF_LAST : HALF_SUM;
            }
            head_op = op;
            touched = true;
            aggregated.count(meta.flow);
            meta.verdict = DISCARD;
            if (bitmap == meta.all_ranks) {
                if (meta.two_level == 1) {
                    partials.count(meta.flow);
                    meta.verdict = SEND_UP;
                } else {
                    completed.count(meta.flow);
                    flags = flags | FLAG_RESULT;
                    meta.verdict = EMIT_GROUP;
                }
            }
            if (meta.index == 0) {
                /* The first chunk is the aggregation header: the first contributor's fields are kept. */
                head_op = HEADER_MAX;
            } else {
                store_state();
            }
        }
        if (touched) {
            accumulators.apply(hdr, meta, slot, head_op, op);
            if (meta.index == 0 && op != CHUNK_CLAIM && op != HALF_CLAIM) {
                /* Everybody learns from the result if ranks asked for different things; who asks again with a packet
                 * of another size than the slot's is told alone. */
                if (chunks != meta.chunks || (op != CHUNK_LOAD && hdr.chunk[0].lanes[1911:1760] != meta.signature)) {
                    mismatch.count(meta.flow);
                    flags = flags | FLAG_MISMATCH;
                }
                if (op != CHUNK_LOAD) {
                    store_state();
                }
            }
            if (meta.index == 0 && flags & FLAG_MISMATCH != 0) {
                SILENCE(1)
                SILENCE(2)
                SILENCE(3)
                SILENCE(4)
                SILENCE(5)
                SILENCE(6)
                SILENCE(7)
                SILENCE(8)
                SILENCE(9)
                SILENCE(10)
                SILENCE(11)
                SILENCE(12)
                SILENCE(13)
                SILENCE(14)
                SILENCE(15)
            }
            meta.result_flags = flags | FLAG_RESULT;
            meta.stamp_shift = 239;
            meta.up_kind = TREE_PARTIAL;
            if (flags & FLAG_RESULT != 0) {
                meta.up_kind = TREE_RESULT;
            }
            if (meta.from_leaf) {
                if (op != CHUNK_LOAD) {
                    store_psn();
                }
            } else if (meta.from_spine && meta.brings == SUM_OF_ALL) {
                enter_first_psn();
            }
        }
        meta.bitmap = bitmap;
    }
}

#endif
