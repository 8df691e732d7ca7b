// Value sets of parsers, selects over signed and wide fields and over bits ahead.
#include <core.p4>
#include <v1model.p4>

header wide_t {
    bit<100> address;
    bit<28> rest;
}

header pair_t {
    bit<16> kind;
    bit<5> low;
    bit<3> high;
}

header report_t {
    bit<8> branch;
}

struct headers_t {
    report_t report;
    pair_t pair;
    wide_t wide;
}

struct metadata_t {
    bit<8> branch;
    int<13> number;
}

struct kinds_t {
    @match(ternary) bit<16> kind;
    @match(range) bit<5> low;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) kinds;
    value_set<kinds_t>(4) pairs;
    value_set<bit<100>>(2) addresses;

    state start {
        packet.extract(hdr.pair);
        transition select(hdr.pair.kind) {
            kinds: in_kinds;
            default: try_pairs;
        }
    }
    state in_kinds {
        meta.branch = 1;
        transition accept;
    }
    state try_pairs {
        transition select(hdr.pair.kind, hdr.pair.low) {
            (0xAAAA, 3): fixed;
            pairs: in_pairs;
            (0xAA00 &&& 0xFF00, _): try_addresses;
            default: signed;
        }
    }
    state fixed {
        meta.branch = 2;
        transition accept;
    }
    state in_pairs {
        meta.branch = 3;
        transition accept;
    }
    state try_addresses {
        packet.extract(hdr.wide);
        transition select(hdr.wide.address) {
            addresses: in_addresses;
            0x5_00000000_00000000_00000001: fixed_address;
            0xF_00000000_00000000_00000000 &&& 0xF_00000000_00000000_00000000: masked_address;
        }
    }
    state in_addresses {
        meta.branch = 4;
        transition accept;
    }
    state fixed_address {
        meta.branch = 5;
        transition accept;
    }
    state masked_address {
        meta.branch = 6;
        transition accept;
    }
    state signed {
        meta.number = (int<13>)(bit<13>)hdr.pair.kind;
        transition select(meta.number) {
            -1: minus_one;
            -4096: least;
            4095: most;
            default: accept;
        }
    }
    state minus_one {
        meta.branch = 7;
        transition accept;
    }
    state least {
        meta.branch = 8;
        transition accept;
    }
    state most {
        meta.branch = 9;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.branch = meta.branch;
        if (std.parser_error != error.NoError) { hdr.report.branch = 255; }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.pair);
        packet.emit(hdr.wide);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
