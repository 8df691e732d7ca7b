/* The slot rules (docs/protocol.md, "Slot rules"), for a packet of rank r, message m, index i, in slot (m mod 2W) * P + i.
 *
 *   classify: at, brings,  ──► rule: a row for each case counts,   ──► add up and store ──► report to egress
 *   holds, sender              and says what is written and sent
 *
 * Table `rule` has the rows of docs/protocol.md's table and of p4reduce/oracle/rules.py, under the same names; a test holds the
 * three together (tests/p4src/test_rule_table.py), another plays each row. Every case has one row, so their order means nothing.
 */
#ifndef SLOTS_P4
#define SLOTS_P4

#include <v1model.p4>
#include "include/headers.p4"
#include "accumulator.p4"
#include "acknowledged.p4"
#include "placement.p4"

/* A slot's state: generation 32 | message 32 | bitmap 32 | op 3 | chunks 5 | flags 8.
 *
 * Accumulators keep what older messages have left, of other jobs even. The state says which of them this message has written: those
 * of as many chunks, and the second ones if the op takes them. So it is what nobody else can overwrite that decides, not what the
 * message's first slot knew: whoever differs from it in op or chunks is added to nothing, and is told nothing that is stored. */
#define SLOT_GENERATION(s) s[111:80]
#define SLOT_MESSAGE(s)    s[79:48]
#define SLOT_BITMAP(s)     s[47:16]
#define SLOT_SHAPE(s)      s[15:8]
#define SLOT_FLAGS(s)      s[7:0]

/* What becomes of a slot. */
typedef bit<3> writes_t;
const writes_t NOTHING = 0;
const writes_t READ    = 1; /* nothing, and this packet takes what the slot holds with it */
const writes_t CLAIM   = 2; /* it forgets what it held, and begins with this payload */
const writes_t ADD     = 3;
const writes_t STORE   = 4; /* the payload in place of what is there */

/* What a slot holds for a packet, a bit for each, and what the packet's sender has done for that. */
typedef bit<7> holds_t;
const holds_t HOLDS_DIFFERING   = 0b1000000; /* ranks disagree, as the message's first packet has shown */
const holds_t HOLDS_OLDER       = 0b0100000; /* nothing, or what is of an older message or another generation */
const holds_t HOLDS_NEWER       = 0b0010000;
const holds_t HOLDS_OTHER_SHAPE = 0b0001000; /* what its first contributor has sent is of another op, or of another size */
const holds_t HOLDS_OVER        = 0b0000100; /* the message's first slot is a newer one's: nothing of it crosses between racks any more */
const holds_t HOLDS_SUM         = 0b0000010; /* of all workers */
const holds_t HOLDS_ALL         = 0b0000001; /* all contributors are in */
typedef bit<3> sender_t;
const sender_t HAS_CONTRIBUTED = 0b100;
const sender_t IS_THE_LAST     = 0b010;
const sender_t IS_AWAITED      = 0b001;

/* The columns' values in table `rule`, beside RACK, LEAF and SPINE, CONTRIBUTION, RESULT and ASK. Of what a slot holds, the first bit
 * that is set counts, whatever follows. */
#define RACK_OR_LEAF  RACK &&& 2w0b10
#define RACK_OR_SPINE RACK &&& 2w0b01
#define RESULT_OR_ASK RESULT &&& 2w0b10
#define DIFFERING     HOLDS_DIFFERING   &&& 7w0b1000000
#define OLDER         HOLDS_OLDER       &&& 7w0b1100000
#define NEWER         HOLDS_NEWER       &&& 7w0b1110000
#define OTHER_SHAPE   HOLDS_OTHER_SHAPE &&& 7w0b1111000
#define OVER          HOLDS_OVER        &&& 7w0b1111100
#define SUM           HOLDS_SUM         &&& 7w0b1111110
#define ALL           HOLDS_ALL         &&& 7w0b1111111
#define SOME          7w0               &&& 7w0b1111111
#define NEW           3w0              &&& 3w0b110
#define LAST          IS_THE_LAST      &&& 3w0b110
#define SEEN          HAS_CONTRIBUTED  &&& 3w0b101
#define AWAITED       3w0b101          &&& 3w0b101

control Slots(inout headers_t hdr,
              inout metadata_t meta,
              inout standard_metadata_t standard_metadata,
              register<bit<112>> slot_state,
              register<bit<48>> claimed_at,
              register<bit<AWAITED_BITS>> awaited_psns,
              register<bit<FIRST_PSNS_BITS>> first_psns) {
    counter(MAX_FLOWS, CounterType.packets_and_bytes) aggregated; /* added up, or the first of a sum */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) completed;  /* of these, by the flow whose packet completed the sum */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) duplicate;  /* dropped */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) not_ready;  /* answered with an RNR NAK */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) replayed;   /* forwarded to their receiver with the stored sum */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) stale;      /* older than their slot */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) mismatch;   /* the ranks' headers or lengths disagree */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) partials;   /* sent up, again too */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) results;    /* of all racks: stored */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) asked;      /* duplicates on a spine */
    counter(MAX_FLOWS, CounterType.packets_and_bytes) late;       /* a result or question that its slot has nothing for */

    Accumulator() chunk_0;       /* at index 0, the aggregation header */
    Accumulators() accumulators; /* the other chunks */

    slot_t slot = 0;
    bit<112> state = 0;
    bit<8> own_shape = 0;        /* op and chunks of this packet */
    bit<8> shape = 0;            /* the first contributor's */
    bit<8> flags = 0;
    bit<112> first = 0;          /* state of the slot of the message's first packet */
    bit<AWAITED_BITS> acknowledged = 0;

    holds_t holds = 0;
    sender_t sender = 0;
    writes_t writes = NOTHING;
    chunk_op_t op = CHUNK_LOAD;
    chunk_op_t first_op = CHUNK_LOAD;

    action read_slot() {
        slot = meta.region + ((meta.message & meta.window_mask) << meta.packets_shift) + (bit<32>)meta.index;
        slot_state.read(state, slot);
        own_shape = meta.op[2:0] ++ meta.chunks[4:0];
    }

    /* It is empty for whoever comes now. */
    action find_older() {
        meta.bitmap = 0;
        shape = own_shape;
        holds = HOLDS_OLDER;
    }

    action find_contributors() {
        meta.bitmap = SLOT_BITMAP(state);
        shape = SLOT_SHAPE(state);
        flags = SLOT_FLAGS(state);
    }

    action read_first() {
        slot_state.read(first, slot - (bit<32>)meta.index);
    }

    /* The PSN before which the receiver has acknowledged everything. */
    action read_acknowledged() {
        awaited_psns.read(acknowledged, meta.flow);
    }

/* The sender is in. */
#define ENTER meta.bitmap = meta.bitmap | meta.rank_bit; flags = flags | meta.tree_flags;
#define RULE(name, what) \
    action name(writes_t writes_, verdict_t verdict) { \
        what \
        writes = writes_; \
        meta.verdict = verdict; \
    }

    RULE(count_aggregated, aggregated.count(meta.flow); ENTER)
    RULE(count_aggregated_completed, aggregated.count(meta.flow); completed.count(meta.flow); ENTER flags = flags | FLAG_RESULT;)
    RULE(count_aggregated_partials, aggregated.count(meta.flow); partials.count(meta.flow); ENTER)
    RULE(count_results, results.count(meta.flow); ENTER flags = flags | FLAG_RESULT;)
    RULE(count_duplicate, duplicate.count(meta.flow);)
    RULE(count_not_ready, not_ready.count(meta.flow);)
    RULE(count_not_ready_partials, not_ready.count(meta.flow); partials.count(meta.flow);)
    RULE(count_asked, asked.count(meta.flow);)
    RULE(count_partials, partials.count(meta.flow);)
    RULE(count_replayed, replayed.count(meta.flow);)
    RULE(count_stale, stale.count(meta.flow);)
    RULE(count_late, late.count(meta.flow);)
    RULE(count_mismatch, mismatch.count(meta.flow);)

    table rule {
        key = {
            meta.at:     ternary @name("at");
            meta.brings: ternary @name("brings");
            holds:       ternary @name("holds");
            sender:      ternary @name("sender");
        }
        actions = {
            count_aggregated;
            count_aggregated_completed;
            count_aggregated_partials;
            count_results;
            count_duplicate;
            count_not_ready;
            count_not_ready_partials;
            count_asked;
            count_partials;
            count_replayed;
            count_stale;
            count_late;
            count_mismatch;
        }
        const default_action = count_late(NOTHING, DISCARD); /* no case is left to it */
        const entries = {
            /* at            brings         holds       sender    counts                     writes   sends */
            (_,              CONTRIBUTION,  OLDER,      NEW):     count_aggregated(          CLAIM,   DISCARD);     /* 1 claim */
            (LEAF,           CONTRIBUTION,  OLDER,      LAST):    count_aggregated_partials( CLAIM,   SEND_UP);     /* 1 whole rack */
            (SPINE,          RESULT,        OLDER,      _):       count_results(             CLAIM,   EMIT_GROUP);  /* 1 by a sum */
            (_,              CONTRIBUTION,  SOME,       NEW):     count_aggregated(          ADD,     DISCARD);     /* 2 add */
            (RACK_OR_SPINE,  CONTRIBUTION,  SOME,       LAST):    count_aggregated_completed(ADD,     EMIT_GROUP);  /* 2 complete */
            (LEAF,           CONTRIBUTION,  SOME,       LAST):    count_aggregated_partials( ADD,     SEND_UP);     /* 2 whole rack */
            (RACK_OR_LEAF,   CONTRIBUTION,  SOME,       SEEN):    count_duplicate(           NOTHING, DISCARD);     /* 3 duplicate */
            (RACK_OR_LEAF,   CONTRIBUTION,  SOME,       AWAITED): count_not_ready(           NOTHING, NOT_READY);   /* 3 not ready */
            (SPINE,          CONTRIBUTION,  SOME,       SEEN):    count_asked(               NOTHING, ASK_LEAVES);  /* 3 ask others */
            (LEAF,           CONTRIBUTION,  ALL,        SEEN):    count_partials(            READ,    SEND_UP);     /* 3 up again */
            (LEAF,           CONTRIBUTION,  ALL,        AWAITED): count_not_ready_partials(  READ,    SEND_UP_AND_BACK); /* 3 NAK and up */
            (_,              CONTRIBUTION,  SUM,        _):       count_replayed(            READ,    EMIT_ALONE);  /* 4 replay */
            (LEAF,           ASK,           SUM,        _):       count_replayed(            READ,    SEND_UP);     /* 4 tell sum */
            (LEAF,           ASK,           ALL,        _):       count_partials(            READ,    SEND_UP);     /* 4 tell part */
            (RACK_OR_LEAF,   CONTRIBUTION,  NEWER,      _):       count_stale(               NOTHING, FORWARD);     /* 5 stale */
            (LEAF,           CONTRIBUTION,  OVER,       _):       count_stale(               NOTHING, FORWARD);     /* 5 over */
            (SPINE,          CONTRIBUTION,  NEWER,      _):       count_stale(               NOTHING, DISCARD);     /* 5 stale part */
            (_,              RESULT_OR_ASK, NEWER,      _):       count_stale(               NOTHING, DISCARD);     /* 5 stale sum */
            (LEAF,           RESULT,        ALL,        _):       count_results(             STORE,   EMIT_GROUP);  /* sum for rack */
            (SPINE,          RESULT,        SOME,       _):       count_results(             STORE,   EMIT_GROUP);  /* sum of leaf */
            (_,              RESULT,        SUM,        _):       count_duplicate(           NOTHING, DISCARD);     /* sum again */
            (LEAF,           RESULT_OR_ASK, OLDER,      _):       count_late(                NOTHING, DISCARD);     /* late */
            (LEAF,           RESULT_OR_ASK, OVER,       _):       count_late(                NOTHING, DISCARD);     /* late */
            (LEAF,           RESULT_OR_ASK, SOME,       _):       count_late(                NOTHING, DISCARD);     /* late */
            (_,              _,             OTHER_SHAPE, _):      count_mismatch(            NOTHING, DISCARD);     /* other shape */
            (_,              _,             DIFFERING,  _):       count_mismatch(            NOTHING, DISCARD);     /* differs */
        }
    }

    action lanes(chunk_op_t first_, chunk_op_t others) {
        first_op = first_;
        op = others;
    }

    /* What becomes of the accumulators. At index 0 the first chunk is the aggregation header: the first contributor's fields are
     * kept. Until the last one is there (DISCARD), sums of halves take two accumulators a chunk. */
    table accumulate {
        key = {
            writes:       exact   @name("writes");
            meta.op:      ternary @name("op");
            meta.verdict: ternary @name("sends");
            meta.index:   ternary @name("index");
        }
        actions = { lanes; }
        const default_action = lanes(CHUNK_LOAD, CHUNK_LOAD); /* READ */
        const entries = {
            (ADD,   OP_SUM,      _,       0): lanes(HEADER_MAX,  CHUNK_SUM);
            (ADD,   OP_SUM,      _,       _): lanes(CHUNK_SUM,   CHUNK_SUM);
            (ADD,   OP_MAX,      _,       0): lanes(HEADER_MAX,  CHUNK_MAX);
            (ADD,   OP_MAX,      _,       _): lanes(CHUNK_MAX,   CHUNK_MAX);
            (ADD,   OP_SUM_HALF, DISCARD, 0): lanes(HEADER_MAX,  HALF_SUM);
            (ADD,   OP_SUM_HALF, DISCARD, _): lanes(HALF_SUM,    HALF_SUM);
            (ADD,   OP_SUM_HALF, _,       0): lanes(HEADER_MAX,  HALF_LAST);
            (ADD,   OP_SUM_HALF, _,       _): lanes(HALF_LAST,   HALF_LAST);
            (ADD,   OP_MAX_HALF, _,       0): lanes(HEADER_MAX,  HALF_MAX);
            (ADD,   OP_MAX_HALF, _,       _): lanes(HALF_MAX,    HALF_MAX);
            (CLAIM, OP_SUM_HALF, DISCARD, 0): lanes(CHUNK_CLAIM, HALF_CLAIM);
            (CLAIM, OP_SUM_HALF, DISCARD, _): lanes(HALF_CLAIM,  HALF_CLAIM);
            (CLAIM, _,           _,       _): lanes(CHUNK_CLAIM, CHUNK_CLAIM);
            (STORE, _,           _,       _): lanes(CHUNK_CLAIM, CHUNK_CLAIM);
        }
    }

    action note_time() {
        claimed_at.write(slot, standard_metadata.ingress_global_timestamp);
    }

    action store_state() {
        slot_state.write(slot, meta.generation ++ meta.message ++ meta.bitmap ++ shape ++ flags);
    }

    action mark_mismatch() {
        mismatch.count(meta.flow);
        flags = flags | FLAG_MISMATCH;
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

    action report() {
        meta.result_flags = flags | FLAG_RESULT;
        meta.stamp_shift = 239;
        meta.up_kind = TREE_PARTIAL + (flags & FLAG_RESULT); /* or TREE_RESULT */
    }

    apply {
        /* Classify. */
        read_slot();
        /* Serial numbers: 1 to 2^31 - 1 ahead of the slot's. */
        if (SLOT_GENERATION(state) != meta.generation || meta.message - SLOT_MESSAGE(state) - 1 < 0x7fffffff) {
            find_older();
        } else {
            find_contributors();
            if (SLOT_MESSAGE(state) != meta.message) {
                holds = holds | HOLDS_NEWER;
            }
            if (flags & FLAG_RESULT != 0) {
                holds = holds | HOLDS_SUM;
            }
            if (meta.bitmap == meta.all_ranks) {
                holds = holds | HOLDS_ALL;
            }
            if (meta.bitmap & meta.rank_bit != 0) {
                sender = HAS_CONTRIBUTED;
                if (meta.rnr_syndrome != 0) {
                    read_acknowledged();
                    if ((AWAITED_GENERATION(acknowledged) == meta.generation && AWAITED_PSN(acknowledged) == hdr.bth.psn)
                            || (AWAITED_GENERATION(acknowledged) != meta.generation && meta.first_psn == hdr.bth.psn)) {
                        sender = HAS_CONTRIBUTED | IS_AWAITED;
                    }
                }
            }
        }
        if (meta.bitmap | meta.rank_bit == meta.all_ranks) {
            sender = sender | IS_THE_LAST;
        }
        if (meta.index != 0) {
            read_first();
            if (SLOT_MESSAGE(first) != meta.message || SLOT_GENERATION(first) != meta.generation) {
                if (meta.at == LEAF && (meta.brings != CONTRIBUTION || holds == HOLDS_ALL)) {
                    holds = holds | HOLDS_OVER;
                }
            } else if (SLOT_FLAGS(first) & FLAG_MISMATCH != 0) {
                holds = holds | HOLDS_DIFFERING;
            }
            if (shape != own_shape) {
                holds = holds | HOLDS_OTHER_SHAPE;
            }
        }

        rule.apply();

        /* Write. What a spine asks has PSNs, too. */
        if (meta.from_leaf) {
            read_psns();
        } else if (meta.from_spine) {
            read_first_psns();
        }
        if (writes != NOTHING) {
            accumulate.apply();
            if (writes == CLAIM) {
                note_time();
            } else if (writes == STORE) {
                shape = own_shape;
            }
            chunk_0.apply(hdr.chunk[0], meta.work, slot, first_op);
            if (meta.index == 0) {
                /* Everybody learns from the result if ranks asked for different things; who asks again with a packet
                 * of another shape than the slot's is told alone. */
                if (shape != own_shape || (writes == ADD && hdr.chunk[0].lanes[1911:1760] != meta.signature)) {
                    mark_mismatch();
                }
                if (flags & FLAG_MISMATCH != 0) {
                    op = CHUNK_SILENT;
                }
            }
            accumulators.apply(hdr, meta, slot, op);
            if (writes != READ) {
                store_state();
                if (meta.from_leaf) {
                    store_psn();
                }
            }
            if (meta.from_spine && meta.brings == RESULT) {
                enter_first_psn();
            }
            report();
        }
    }
}

#endif
