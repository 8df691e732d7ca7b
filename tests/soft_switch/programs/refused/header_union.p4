// Refused by this switch: a header union.
#include <core.p4>
#include <v1model.p4>

header other_t {
    bit<16> value;
}

header byte_t {
    bit<8> value;
}

header_union either_t {
    byte_t one;
    other_t other;
}

struct headers_t {
    byte_t byte;
    either_t either;
}

struct metadata_t {
    bit<8> kept;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.either.one);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.either);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
