/* What a slot adds up: one chunk of its packet, in lanes that never touch each other. */
#ifndef ACCUMULATOR_P4
#define ACCUMULATOR_P4

#include <v1model.p4>
#include "include/headers.p4"

/* What happens to a chunk's accumulator. */
typedef bit<4> chunk_op_t;
const chunk_op_t CHUNK_CLAIM  = 0; /* accumulator = chunk */
const chunk_op_t CHUNK_SUM    = 1; /* accumulator = chunk = accumulator + chunk */
const chunk_op_t CHUNK_MAX    = 2; /* accumulator = chunk = max(accumulator, chunk) */
const chunk_op_t CHUNK_LOAD   = 3; /* chunk = accumulator */
const chunk_op_t HALF_CLAIM = 4; /* accumulators = chunk's numbers */
const chunk_op_t HALF_SUM   = 5; /* accumulators = accumulators + chunk's numbers */
const chunk_op_t HALF_LAST  = 6; /* the same, and then: accumulator = chunk = the sums, each rounded once */
const chunk_op_t HALF_MAX   = 7; /* as CHUNK_MAX, of lanes of 16 bits */
const chunk_op_t HEADER_MAX = 8; /* accumulator = chunk = the accumulator's fields, and of what is behind them the larger bytes */
const chunk_op_t CHUNK_SILENT = 9; /* chunk = 0: what ranks that disagree get, as nobody knows what this accumulator is of */

/* The lowest bit of each lane of 32 bits, and others made of it. */
const lanes_t ONES   = 2048w0x00000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001;
const lanes_t SIGNS  = ONES << 31;
const lanes_t VALUES = SIGNS - ONES;
#define LOW(bits) (ONES * ((1 << (bits)) - 1))

/* The same of lanes of 16 bits. */
const lanes_t HALF_SIGNS  = ONES * 0x80008000;
const lanes_t HALF_VALUES = ONES * 0x7fff7fff;

/* Of an aggregation header, what is not behind its fields; and of each byte behind them the highest bit, and the others. */
const lanes_t FIELDS = ((2048w1 << 288) - 1) << 1760;
const lanes_t BYTE_SIGNS = (ONES * 0x80808080) & ~FIELDS;
const lanes_t BYTE_VALUES = (ONES * 0x7f7f7f7f) & ~FIELDS;

/* One chunk of every slot: 64 lanes of signed 32-bit integers.
 *
 * Or 128 floating-point numbers of 16 bits each, laid out as IEEE 754's binary16. In units of the smallest of them, 2^-24, such a
 * number is an integer: its significand, shifted by its exponent. So they are added up as 32-bit integers, exactly and in any
 * order, and the sum is rounded once, to nearest even. Senders see to it that no sum reaches 2^31 units, which is 128. A lane has
 * two of them, and so a chunk two accumulators.
 */
control Accumulator(inout chunk_t chunk, inout work_t work, in slot_t slot, in chunk_op_t op) {
    register<lanes_t>(MAX_SLOTS) sums;
    register<lanes_t>(MAX_SLOTS) second_sums;
    lanes_t stored = 0; /* not shared: as nothing has written it before, the embedded switch need not clear it for every packet */

    action claim() {
        sums.write(slot, chunk.lanes);
    }

    action load() {
        sums.read(chunk.lanes, slot);
    }

    /* Adds without the sign bits, so that no carry leaves its lane, then puts them in: a xor b xor carry. */
    action sum() {
        sums.read(stored, slot);
        chunk.lanes = ((stored & VALUES) + (chunk.lanes & VALUES)) ^ ((stored ^ chunk.lanes) & SIGNS);
        sums.write(slot, chunk.lanes);
    }

    /* Lane-wise signed comparison (Hacker's Delight 2-18): `chosen` gets the sign bit of the lanes where the stored
     * one is at least as large, then all bits of those. No borrow crosses a lane: the sign bit of the minuend is set. */
    action maximum() {
        sums.read(stored, slot);
        work.chosen = (stored | SIGNS) - (chunk.lanes & VALUES);
        work.chosen = ((~stored & chunk.lanes) | (~(stored ^ chunk.lanes) & work.chosen)) & SIGNS;
        work.chosen = work.chosen | (work.chosen - (work.chosen >> 31));
        chunk.lanes = (stored & work.chosen) | (chunk.lanes & ~work.chosen);
        sums.write(slot, chunk.lanes);
    }

/* In lanes with that bit of the exponent, which are less than 2^wide then, a shift to the left. */
#define SHIFT_LEFT(exponent_bit, by, wide)                                                                              \
        work.chosen = (work.shift << (wide - exponent_bit)) & (ONES << wide);                                           \
        work.chosen = work.chosen - (work.chosen >> wide);                                                              \
        work.number = work.number ^ ((work.number ^ (work.number << by)) & work.chosen);

/* binary16, the second half of each lane of `lanes`, to `number`, which has 31 bits and a sign. What is not subnormal has a bit
 * more, and is shifted by its exponent less 1: `shift`. */
#define UNPACK(lanes)                                                                                                   \
        work.shift = ((lanes >> 10) & LOW(5)) + LOW(5);                                                                 \
        work.chosen = work.shift & (ONES << 5);                                                                         \
        work.number = (lanes & LOW(10)) | (work.chosen << 5);                                                           \
        work.shift = work.shift & (work.chosen - (work.chosen >> 5));                                                   \
        SHIFT_LEFT(0, 1, 12)                                                                                            \
        SHIFT_LEFT(1, 2, 14)                                                                                            \
        SHIFT_LEFT(2, 4, 18)                                                                                            \
        SHIFT_LEFT(3, 8, 26)                                                                                            \
        work.chosen = (work.shift << 27) & SIGNS;                                                                       \
        work.chosen = work.chosen | (work.chosen - (work.chosen >> 31));                                                \
        work.number = (work.number & ~work.chosen) | (((work.number << 16) & (LOW(15) << 16)) & work.chosen);           \
        work.negative = (lanes & (ONES << 15)) << 16;                                                                   \
        work.number = (((work.number ^ (work.negative - (work.negative >> 31))) & VALUES) + (work.negative >> 31)) ^ work.negative;

/* `sum` gets `before` and the number. */
#define ADD(sum, before)                                                                                                \
        sum = ((before & VALUES) + (work.number & VALUES)) ^ ((before ^ work.number) & SIGNS);

/* Where none of the upper bits of 31 is set, a shift to the left by so many; else, so much more of an exponent. */
#define SHIFT_UP(by)                                                                                                    \
        work.chosen = ((work.number & (SIGNS - (SIGNS >> by))) + VALUES) & SIGNS;                                       \
        work.chosen = work.chosen - (work.chosen >> 31);                                                                \
        work.number = (work.number & work.chosen) | (((work.number << by) & (LOW(32 - by) << by)) & ~work.chosen);      \
        work.shift = work.shift + (work.chosen & (ONES * (by << 10)));

/* Integers of 31 bits and a sign to binary16, in the second half of each lane. The highest bit goes to bit 30, or by 20 up in
 * what is subnormal; then the upper 11 of 31 bits are the significand, and those below say how it is rounded. */
#define PACK(sum)                                                                                                       \
        work.negative = sum & SIGNS;                                                                                    \
        work.number = ((sum ^ (work.negative | (work.negative - (work.negative >> 31)))) & VALUES) + (work.negative >> 31);\
        work.shift = 0;                                                                                                 \
        SHIFT_UP(10)                                                                                                    \
        SHIFT_UP(5)                                                                                                     \
        SHIFT_UP(3)                                                                                                     \
        SHIFT_UP(1)                                                                                                     \
        SHIFT_UP(1)                                                                                                     \
        work.number = (work.number & VALUES) + (LOW(19) + ((work.number >> 20) & ONES));                                \
        sum = (((work.number >> 20) & LOW(12)) + work.shift) | (work.negative >> 16);

    action silence() {
        chunk.lanes = 0;
    }

    action half_maximum() {
        sums.read(stored, slot);
        work.chosen = (stored | HALF_SIGNS) - (chunk.lanes & HALF_VALUES);
        work.chosen = ((~stored & chunk.lanes) | (~(stored ^ chunk.lanes) & work.chosen)) & HALF_SIGNS;
        work.chosen = work.chosen | (work.chosen - (work.chosen >> 15));
        chunk.lanes = (stored & work.chosen) | (chunk.lanes & ~work.chosen);
        sums.write(slot, chunk.lanes);
    }

    /* As above, of unsigned bytes. */
    action header_maximum() {
        sums.read(stored, slot);
        work.chosen = (stored | BYTE_SIGNS) - (chunk.lanes & BYTE_VALUES);
        work.chosen = ((stored & ~chunk.lanes) | (~(stored ^ chunk.lanes) & work.chosen)) & BYTE_SIGNS;
        work.chosen = FIELDS | (work.chosen | (work.chosen - (work.chosen >> 7)));
        chunk.lanes = (stored & work.chosen) | (chunk.lanes & ~work.chosen);
        sums.write(slot, chunk.lanes);
    }

    action claim_half() {
        UNPACK((chunk.lanes >> 16))
        ADD(work.first, 2048w0)
        UNPACK(chunk.lanes)
        ADD(work.second, 2048w0)
        sums.write(slot, work.first);
        second_sums.write(slot, work.second);
    }

    action sum_half() {
        sums.read(stored, slot);
        UNPACK((chunk.lanes >> 16))
        ADD(work.first, stored)
        UNPACK(chunk.lanes)
        second_sums.read(stored, slot);
        ADD(work.second, stored)
        sums.write(slot, work.first);
        second_sums.write(slot, work.second);
    }

    action sum_last_half() {
        sums.read(stored, slot);
        UNPACK((chunk.lanes >> 16))
        ADD(work.first, stored)
        UNPACK(chunk.lanes)
        second_sums.read(stored, slot);
        ADD(work.second, stored)
        PACK(work.first)
        PACK(work.second)
        chunk.lanes = ((work.first & LOW(16)) << 16) | work.second;
        sums.write(slot, chunk.lanes);
    }

    apply {
        if (chunk.isValid()) {
            if (op == CHUNK_SUM) {
                sum();
            } else if (op == CHUNK_CLAIM) {
                claim();
            } else if (op == CHUNK_LOAD) {
                load();
            } else if (op == CHUNK_MAX) {
                maximum();
            } else if (op == HALF_SUM) {
                sum_half();
            } else if (op == HALF_LAST) {
                sum_last_half();
            } else if (op == HALF_CLAIM) {
                claim_half();
            } else if (op == HALF_MAX) {
                half_maximum();
            } else if (op == CHUNK_SILENT) {
                silence();
            } else {
                header_maximum();
            }
        }
    }
}

/* All chunks of a packet behind the first, which may be the aggregation header. */
control Accumulators(inout headers_t hdr, inout metadata_t meta, in slot_t slot, in chunk_op_t op) {
    Accumulator() chunk_1;
    Accumulator() chunk_2;
    Accumulator() chunk_3;
    Accumulator() chunk_4;
    Accumulator() chunk_5;
    Accumulator() chunk_6;
    Accumulator() chunk_7;
    Accumulator() chunk_8;
    Accumulator() chunk_9;
    Accumulator() chunk_10;
    Accumulator() chunk_11;
    Accumulator() chunk_12;
    Accumulator() chunk_13;
    Accumulator() chunk_14;
    Accumulator() chunk_15;

    apply {
        chunk_1.apply(hdr.chunk[1], meta.work, slot, op);
        chunk_2.apply(hdr.chunk[2], meta.work, slot, op);
        chunk_3.apply(hdr.chunk[3], meta.work, slot, op);
        chunk_4.apply(hdr.chunk[4], meta.work, slot, op);
        chunk_5.apply(hdr.chunk[5], meta.work, slot, op);
        chunk_6.apply(hdr.chunk[6], meta.work, slot, op);
        chunk_7.apply(hdr.chunk[7], meta.work, slot, op);
        chunk_8.apply(hdr.chunk[8], meta.work, slot, op);
        chunk_9.apply(hdr.chunk[9], meta.work, slot, op);
        chunk_10.apply(hdr.chunk[10], meta.work, slot, op);
        chunk_11.apply(hdr.chunk[11], meta.work, slot, op);
        chunk_12.apply(hdr.chunk[12], meta.work, slot, op);
        chunk_13.apply(hdr.chunk[13], meta.work, slot, op);
        chunk_14.apply(hdr.chunk[14], meta.work, slot, op);
        chunk_15.apply(hdr.chunk[15], meta.work, slot, op);
    }
}

#endif
