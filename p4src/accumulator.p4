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
control Accumulator(inout chunk_t chunk, in slot_t slot, in chunk_op_t op) {
    register<lanes_t>(MAX_SLOTS) sums;
    register<lanes_t>(MAX_SLOTS) second_sums;
    lanes_t stored = 0;
    lanes_t second_stored = 0;
    lanes_t chosen = 0;  /* in lanes that something is done to, a bit, then as many ones as it takes */
    lanes_t shift = 0;
    lanes_t number = 0;
    lanes_t negative = 0;
    lanes_t first = 0;
    lanes_t second = 0;

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
        chosen = (stored | SIGNS) - (chunk.lanes & VALUES);
        chosen = ((~stored & chunk.lanes) | (~(stored ^ chunk.lanes) & chosen)) & SIGNS;
        chosen = chosen | (chosen - (chosen >> 31));
        chunk.lanes = (stored & chosen) | (chunk.lanes & ~chosen);
        sums.write(slot, chunk.lanes);
    }

/* In lanes with that bit of the exponent, which are less than 2^wide then, a shift to the left. */
#define SHIFT_LEFT(exponent_bit, by, wide)                                                          \
        chosen = (shift << (wide - exponent_bit)) & (ONES << wide);                                 \
        chosen = chosen - (chosen >> wide);                                                         \
        number = number ^ ((number ^ (number << by)) & chosen);

/* binary16, the second half of each lane of `lanes`, to `number`, which has 31 bits and a sign. What is not subnormal has a bit
 * more, and is shifted by its exponent less 1: `shift`. */
#define UNPACK(lanes)                                                                               \
        shift = ((lanes >> 10) & LOW(5)) + LOW(5);                                                  \
        chosen = shift & (ONES << 5);                                                               \
        number = (lanes & LOW(10)) | (chosen << 5);                                                 \
        shift = shift & (chosen - (chosen >> 5));                                                   \
        SHIFT_LEFT(0, 1, 12)                                                                        \
        SHIFT_LEFT(1, 2, 14)                                                                        \
        SHIFT_LEFT(2, 4, 18)                                                                        \
        SHIFT_LEFT(3, 8, 26)                                                                        \
        chosen = (shift << 27) & SIGNS;                                                             \
        chosen = chosen | (chosen - (chosen >> 31));                                                \
        number = (number & ~chosen) | (((number << 16) & (LOW(15) << 16)) & chosen);                \
        negative = (lanes & (ONES << 15)) << 16;                                                    \
        number = (((number ^ (negative - (negative >> 31))) & VALUES) + (negative >> 31)) ^ negative;

/* `sum` gets `before` and the number. */
#define ADD(sum, before)                                                                            \
        sum = ((before & VALUES) + (number & VALUES)) ^ ((before ^ number) & SIGNS);

/* Where none of the upper bits of 31 is set, a shift to the left by so many; else, so much more of an exponent. */
#define SHIFT_UP(by)                                                                                \
        chosen = ((number & (SIGNS - (SIGNS >> by))) + VALUES) & SIGNS;                             \
        chosen = chosen - (chosen >> 31);                                                           \
        number = (number & chosen) | (((number << by) & (LOW(32 - by) << by)) & ~chosen);           \
        shift = shift + (chosen & (ONES * (by << 10)));

/* Integers of 31 bits and a sign to binary16, in the second half of each lane. The highest bit goes to bit 30, or by 20 up in
 * what is subnormal; then the upper 11 of 31 bits are the significand, and those below say how it is rounded. */
#define PACK(sum)                                                                                   \
        negative = sum & SIGNS;                                                                     \
        number = ((sum ^ (negative | (negative - (negative >> 31)))) & VALUES) + (negative >> 31);  \
        shift = 0;                                                                                  \
        SHIFT_UP(10)                                                                                \
        SHIFT_UP(5)                                                                                 \
        SHIFT_UP(3)                                                                                 \
        SHIFT_UP(1)                                                                                 \
        SHIFT_UP(1)                                                                                 \
        number = (number & VALUES) + (LOW(19) + ((number >> 20) & ONES));                           \
        sum = (((number >> 20) & LOW(12)) + shift) | (negative >> 16);

    action half_maximum() {
        sums.read(stored, slot);
        chosen = (stored | HALF_SIGNS) - (chunk.lanes & HALF_VALUES);
        chosen = ((~stored & chunk.lanes) | (~(stored ^ chunk.lanes) & chosen)) & HALF_SIGNS;
        chosen = chosen | (chosen - (chosen >> 15));
        chunk.lanes = (stored & chosen) | (chunk.lanes & ~chosen);
        sums.write(slot, chunk.lanes);
    }

    /* As above, of unsigned bytes. */
    action header_maximum() {
        sums.read(stored, slot);
        chosen = (stored | BYTE_SIGNS) - (chunk.lanes & BYTE_VALUES);
        chosen = ((stored & ~chunk.lanes) | (~(stored ^ chunk.lanes) & chosen)) & BYTE_SIGNS;
        chosen = FIELDS | (chosen | (chosen - (chosen >> 7)));
        chunk.lanes = (stored & chosen) | (chunk.lanes & ~chosen);
        sums.write(slot, chunk.lanes);
    }

    action claim_half() {
        UNPACK((chunk.lanes >> 16))
        ADD(first, 2048w0)
        UNPACK(chunk.lanes)
        ADD(second, 2048w0)
        sums.write(slot, first);
        second_sums.write(slot, second);
    }

    action sum_half() {
        sums.read(stored, slot);
        second_sums.read(second_stored, slot);
        UNPACK((chunk.lanes >> 16))
        ADD(first, stored)
        UNPACK(chunk.lanes)
        ADD(second, second_stored)
        sums.write(slot, first);
        second_sums.write(slot, second);
    }

    action sum_last_half() {
        sums.read(stored, slot);
        second_sums.read(second_stored, slot);
        UNPACK((chunk.lanes >> 16))
        ADD(first, stored)
        UNPACK(chunk.lanes)
        ADD(second, second_stored)
        PACK(first)
        PACK(second)
        chunk.lanes = ((first & LOW(16)) << 16) | second;
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
            } else {
                header_maximum();
            }
        }
    }
}

#endif
