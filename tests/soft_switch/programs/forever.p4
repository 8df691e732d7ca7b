// Packets that never end: op 1 is resubmitted for ever, op 2 recirculated (and grows), op 3 cloned by each clone.
#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
    bit<1000> rest;
}

struct headers_t {
    op_t op;
    op_t more;
}

struct metadata_t {
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        if (hdr.op.op == 1) {
            resubmit_preserving_field_list(0);
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.op.op == 2) {
            hdr.more = hdr.op;
            recirculate_preserving_field_list(0);
        }
        if (hdr.op.op == 3) {
            clone(CloneType.E2E, 1);
            mark_to_drop(std);
        }
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
        packet.emit(hdr.more);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
