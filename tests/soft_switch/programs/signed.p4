// Negative constants in entries and as arguments of actions.
#include <core.p4>
#include <v1model.p4>

header number_t {
    int<8> first;
    bit<3> pad;
    int<13> second;
    bit<8> result;
}

struct headers_t {
    number_t number;
}

struct metadata_t {
    int<8> found;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.number);
        transition select(hdr.number.pad, hdr.number.first, hdr.number.second) {
            (1, -2, -3): reject_it;
            (1, 5, -4096): reject_it;
            (2, -128, 7): reject_it;
            default: accept;
        }
    }
    state reject_it {
        verify(false, error.NoMatch);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action found(int<8> number) {
        meta.found = number;
    }
    table exactly {
        key = { hdr.number.first: exact; hdr.number.second: exact; }
        actions = { found; }
        const entries = {
            (-1, -1): found(-5);
            (-128, 4095): found(127);
            (3, -4096): found(-128);
        }
        const default_action = found(-7);
        size = 4;
    }
    table masked {
        key = { hdr.number.first: ternary; hdr.number.second: exact; }
        actions = { found; NoAction; }
        const entries = {
            (-100, 100): found(11);
            (_, 101): found(-12);
        }
        const default_action = NoAction;
        size = 4;
    }
    apply {
        std.egress_spec = 1;
        exactly.apply();
        masked.apply();
        hdr.number.result = (bit<8>)(meta.found + 1);
        if (std.parser_error == error.NoMatch) {
            hdr.number.result = 99;
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.number);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
