// Stacks of headers with a varbit field: a header that is pushed or popped keeps the length of its field.
#include <core.p4>
#include <v1model.p4>

header start_t {
    bit<8> kind;
    bit<8> unused;
}

header option_t {
    bit<8> length;
    varbit<32> data;
}

struct headers_t {
    start_t first;
    option_t[3] options;
    option_t twice;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.first);
        transition select(hdr.first.kind) {
            9: twice;
            default: options;
        }
    }
    state twice {
        packet.extract(hdr.twice, 16);
        transition again;
    }
    state again {
        packet.extract(hdr.twice, 8);  // BMv2 counts the 16 bits from before
        transition options;
    }
    state options {
        transition select(packet.lookahead<bit<8>>()) {
            1: short;
            2: medium;
            3: long;
            default: accept;
        }
    }
    state short {
        packet.extract(hdr.options.next, 8);
        transition options;
    }
    state medium {
        packet.extract(hdr.options.next, 16);
        transition options;
    }
    state long {
        packet.extract(hdr.options.next, 24);
        transition options;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action all_valid() {
        hdr.options[0].setValid();
        hdr.options[1].setValid();
        hdr.options[2].setValid();
    }
    apply {
        std.egress_spec = 1;
        switch (hdr.first.kind) {
            1: { hdr.options.push_front(1); hdr.options[0].setValid(); }
            2: { hdr.options.push_front(2); hdr.options[0].setValid(); hdr.options[1].setValid(); }
            3: { hdr.options.pop_front(1); hdr.options[2].setValid(); }
            4: { hdr.options.pop_front(2); hdr.options[1].setValid(); hdr.options[2].setValid(); }
            5: { hdr.options.pop_front(3); all_valid(); }
            6: { hdr.options.push_front(3); all_valid(); }
            7: { hdr.options[0].setInvalid(); hdr.options[1] = hdr.options[2]; hdr.options[0].setValid(); }
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.first);
        packet.emit(hdr.options);
        packet.emit(hdr.twice);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
