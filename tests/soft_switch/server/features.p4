// What the test program beside it leaves out: meters, direct meters, digests, value sets, clones, idle timeouts,
// action profiles. Compiled with
//   p4c-bm2-ss -o features.json --p4runtime-files features.p4info.txtpb features.p4
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header tag_t {
    bit<16> value;
}

struct headers_t {
    ethernet_t ethernet;
    tag_t tag;
}

struct learn_t {
    bit<48> src;
    bit<9> port;
}

struct level_t {
    bit<8> level;
    int<8> offset;
}

struct pair_t {
    @match(exact) bit<16> type;
    @match(ternary) bit<8> top;
}

struct meta_t {
    bit<2> color;
    bit<2> port_color;
}

parser parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    @id(0x03000001) value_set<bit<16>>(4) tagged;

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            tagged: parse_tag;
            default: accept;
        }
    }

    state parse_tag {
        packet.extract(hdr.tag);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    @id(0x14000001) meter(4, MeterType.packets) per_port;
    @id(0x15000001) direct_meter<bit<2>>(MeterType.bytes) station_meter;
    @id(0x13000001) direct_counter(CounterType.packets_and_bytes) station_counter;

    @id(0x01000001) action forward(bit<9> port) {
        station_meter.read(meta.color);
        station_counter.count();
        standard_metadata.egress_spec = port;
    }

    @id(0x01000002) action learn() {
        digest<learn_t>(1, {hdr.ethernet.src, standard_metadata.ingress_port});
    }

    @id(0x01000003) action mirror(bit<32> session) {
        clone(CloneType.I2E, session);
    }

    @id(0x01000004) action tell() {
        digest<level_t>(2, {hdr.tag.value[7:0], (int<8>)hdr.tag.value[15:8]});
    }

    @id(0x01000005) action police() {
        per_port.execute_meter((bit<32>)standard_metadata.ingress_port, meta.port_color);
    }

    @id(0x01000006) action drop() {
        mark_to_drop(standard_metadata);
    }

    @id(0x02000001) table stations {
        key = {
            hdr.ethernet.dst: exact;
        }
        actions = {
            forward;
            @defaultonly drop;
        }
        default_action = drop;
        meters = station_meter;
        counters = station_counter;
        support_timeout = true;
        size = 16;
    }

    @id(0x02000002) table sources {
        key = {
            hdr.ethernet.src: exact;
        }
        actions = {
            NoAction;
            learn;
        }
        default_action = learn;
        support_timeout = true;
        size = 16;
    }

    @id(0x02000003) table mirrors {
        key = {
            hdr.ethernet.type: exact;
        }
        actions = {
            mirror;
            NoAction;
        }
        default_action = NoAction;
        size = 16;
    }

    apply {
        police();
        if (hdr.tag.isValid()) {
            tell();
        }
        sources.apply();
        mirrors.apply();
        stations.apply();
        if (meta.color == 2 || meta.port_color == 2) {
            drop();
        }
    }
}

control egress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    apply {}
}

control update_checksums(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), update_checksums(), deparse()) main;
