// Refused by this switch: a direct meter.
#include <core.p4>
#include <v1model.p4>

header byte_t {
    bit<8> value;
}

struct headers_t {
    byte_t byte;
}

struct metadata_t {
    @field_list(1)
    bit<8> kept;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.byte);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_meter<bit<8>>(MeterType.packets) rate;
    action nothing() {
        rate.read(meta.kept);
    }
    table metered {
        key = { hdr.byte.value : exact; }
        actions = { nothing; }
        meters = rate;
    }

    apply {
        std.egress_spec = 1;
        metered.apply();
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.byte);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
