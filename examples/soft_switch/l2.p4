// An Ethernet switch: frames to a known address leave its port, others all ports but the one they came in on.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {}

parser L2Parser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control L2Ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action drop() {
        mark_to_drop(std);
    }
    table addresses {
        key = { hdr.ethernet.dst : exact; }
        actions = { forward; flood; drop; }
        default_action = drop();
        size = 1024;
    }
    apply {
        addresses.apply();
    }
}

control L2Egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == std.ingress_port) {
            mark_to_drop(std);
        }
    }
}

control L2Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control L2Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control L2Deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(L2Parser(), L2Verify(), L2Ingress(), L2Egress(), L2Update(), L2Deparser()) main;
