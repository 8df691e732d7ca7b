// Every result of `out_t` is one operation on the operands of `in_t`; wide operands are p4c's limit.
#include <core.p4>
#include <v1model.p4>

typedef bit<2048> chunk_t;

header in_t {
    bit<8> amount;
    bit<5> narrow;
    bit<3> flags;
    bit<16> half;
    bit<32> x;
    bit<32> y;
    int<32> s;
    int<16> t;
    bit<100> odd;
    bit<4> pad;
    chunk_t wx;
    chunk_t wy;
}

header out_t {
    bit<32> sum;
    bit<32> difference;
    bit<32> product;
    bit<32> left;
    bit<32> right;
    int<32> arithmetic_right;
    bit<32> saturated_sum;
    bit<32> saturated_difference;
    int<32> signed_saturated_sum;
    int<32> signed_saturated_difference;
    int<32> signed_product;
    bit<32> negated;
    bit<32> inverted;
    bit<64> extended;
    bit<8> shortened;
    bit<48> joined;
    bit<16> slice;
    bit<32> sliced_into;
    bit<32> chosen;
    bit<1> less;
    bit<1> signed_less;
    bit<1> equal;
    bit<1> wide_less;
    bit<1> both;
    bit<1> either;
    bit<1> odd_equal;
    bit<1> pad;
    bit<100> odd_sum;
    bit<100> odd_right;
    bit<56> odd_pad;
    bit<32> wide_slice;
    chunk_t wide_sum;
    chunk_t wide_difference;
    chunk_t wide_left;
    chunk_t wide_right;
    chunk_t wide_mask;
    chunk_t lanes;
    chunk_t greatest;
}

struct headers_t {
    in_t operands;
    out_t results;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

const chunk_t TOP = 2048w0x80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000_80000000;

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (!hdr.operands.isValid()) {
            mark_to_drop(std);
            exit;
        }
        hdr.results.setValid();
        hdr.results.sum = hdr.operands.x + hdr.operands.y;
        hdr.results.difference = hdr.operands.x - hdr.operands.y;
        hdr.results.product = hdr.operands.x * hdr.operands.y;
        hdr.results.left = hdr.operands.x << hdr.operands.amount;
        hdr.results.right = hdr.operands.x >> hdr.operands.amount;
        hdr.results.arithmetic_right = hdr.operands.s >> hdr.operands.amount;
        hdr.results.saturated_sum = hdr.operands.x |+| hdr.operands.y;
        hdr.results.saturated_difference = hdr.operands.x |-| hdr.operands.y;
        hdr.results.signed_saturated_sum = hdr.operands.s |+| (int<32>)hdr.operands.y;
        hdr.results.signed_saturated_difference = hdr.operands.s |-| (int<32>)hdr.operands.t;
        hdr.results.signed_product = hdr.operands.s * (int<32>)hdr.operands.t;
        hdr.results.negated = -hdr.operands.x;
        hdr.results.inverted = ~hdr.operands.x;
        hdr.results.extended = (bit<64>)(int<64>)hdr.operands.t;
        hdr.results.shortened = (bit<8>)hdr.operands.x;
        hdr.results.joined = hdr.operands.half ++ hdr.operands.y;
        hdr.results.slice = hdr.operands.x[23:8];
        hdr.results.sliced_into = hdr.operands.y;
        hdr.results.sliced_into[19:4] = hdr.operands.half;
        hdr.results.chosen = hdr.operands.flags[0:0] == 1 ? hdr.operands.x : hdr.operands.y + 1;
        hdr.results.less = (bit<1>)(hdr.operands.x < hdr.operands.y);
        hdr.results.signed_less = (bit<1>)(hdr.operands.s < (int<32>)hdr.operands.t);
        hdr.results.equal = (bit<1>)(hdr.operands.x == hdr.operands.y);
        hdr.results.wide_less = (bit<1>)(hdr.operands.wx < hdr.operands.wy);
        hdr.results.both = (bit<1>)(hdr.operands.narrow > 9 && hdr.operands.half != 7);
        hdr.results.either = (bit<1>)(hdr.operands.narrow > 9 || hdr.operands.half <= 700);
        hdr.results.odd_equal = (bit<1>)(hdr.operands.odd == (bit<100>)hdr.operands.x);
        hdr.results.odd_sum = hdr.operands.odd + (bit<100>)hdr.operands.y * 3;
        hdr.results.odd_right = hdr.operands.odd >> hdr.operands.amount;
        hdr.results.wide_slice = hdr.operands.wx[1000:969];
        hdr.results.wide_sum = hdr.operands.wx + hdr.operands.wy;
        hdr.results.wide_difference = hdr.operands.wx - hdr.operands.wy;
        hdr.results.wide_left = hdr.operands.wx << 77;
        hdr.results.wide_right = hdr.operands.wx >> hdr.operands.amount;
        hdr.results.wide_mask = (hdr.operands.wx & ~hdr.operands.wy) | (hdr.operands.wx ^ TOP);
        // 64 lanes of 32 bits side by side, carries kept inside the lanes.
        hdr.results.lanes = ((hdr.operands.wx & ~TOP) + (hdr.operands.wy & ~TOP))
                            ^ ((hdr.operands.wx ^ hdr.operands.wy) & TOP);
        // 1 in every lane where wx >= wy as signed numbers, else 0.
        chunk_t flipped_x = hdr.operands.wx ^ TOP;
        chunk_t flipped_y = hdr.operands.wy ^ TOP;
        chunk_t no_borrow = (flipped_x | TOP) - (flipped_y & ~TOP);
        chunk_t at_least = ((flipped_x & ~flipped_y) | (~(flipped_x ^ flipped_y) & no_borrow)) & TOP;
        hdr.results.greatest = at_least >> 31;
        hdr.operands.setInvalid();
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.operands);
        packet.emit(hdr.results);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
