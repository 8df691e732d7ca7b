// Statements in the deparser; a control's copy of standard_metadata that is marked to drop.
#include <core.p4>
#include <v1model.p4>

header pair_t {
    bit<8> first;
    bit<8> second;
}

struct headers_t {
    pair_t pair;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.pair);
        transition accept;
    }
}

control Route(inout headers_t hdr, inout standard_metadata_t std) {
    apply {
        if (hdr.pair.first == 1) {
            mark_to_drop(std);
        } else {
            std.egress_spec = 2;
        }
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    Route() route;
    standard_metadata_t copy = std;
    apply {
        std.egress_spec = 1;
        route.apply(hdr, copy);
        std = copy;
        if (hdr.pair.second == 9) {
            mark_to_drop(copy);  // changes nothing
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    bit<16> number;
    apply {
        number = 5;
        packet.emit(hdr.pair);
        log_msg("emitted {} and {}", {hdr.pair.first, number});
        assert(hdr.pair.second != 77);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
