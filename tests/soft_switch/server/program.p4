// A program with one of everything the P4Runtime server knows. It parses nothing, applies all tables in turn,
// and `always` has the last word on the port. Compiled with
//   p4c-bm2-ss -o program.json --p4runtime-files program.p4info.txtpb program.p4
#include <core.p4>
#include <v1model.p4>

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> _pad;
    bit<16> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> _pad;
    bit<8> queue;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
}

struct meta_t {
    bit<32> src;
    bit<32> dst;
    bit<8> protocol;
    bit<16> dst_port;
    bit<6> dscp;
    bit<12> vlan;
    bit<4> class;
}

parser parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    @id(0x12000001) counter(8, CounterType.packets_and_bytes) per_port;
    @id(0x13000001) direct_counter(CounterType.packets_and_bytes) ipv4_counter;
    @id(0x13000002) direct_counter(CounterType.packets_and_bytes) class_counter;
    @id(0x16000001) register<bit<12>>(4) seen;
    @id(0x16000002) register<int<12>>(2) offset;
    @id(0x16000003) register<bit<2048>>(2) chunk;

    @id(0x01000001) action forward(bit<9> port, bit<48> mac) {
        standard_metadata.egress_spec = port;
    }

    @id(0x01000002) action drop() {
        mark_to_drop(standard_metadata);
    }

    @id(0x01000004) action count() {
        per_port.count((bit<32>)standard_metadata.ingress_port);
    }

    @id(0x01000005) action set_class(bit<4> class) {
        meta.class = class;
    }

    @id(0x02000001) table ipv4_lpm {
        key = {
            meta.dst: lpm @name("hdr.ipv4.dst");
        }
        actions = {
            forward;
            drop;
            @defaultonly NoAction;
            @tableonly count;
        }
        default_action = NoAction;
        counters = ipv4_counter;
        size = 4;
    }

    @id(0x02000002) table vlans {
        key = {
            meta.vlan: exact @name("meta.vlan") @id(2);
            standard_metadata.ingress_port: exact @id(1);
        }
        actions = {
            forward;
            NoAction;
        }
        default_action = NoAction;
        size = 1024;
    }

    @id(0x02000003) table acl {
        key = {
            standard_metadata.ingress_port: exact;
            meta.src: ternary @name("hdr.ipv4.src");
            meta.protocol: optional @name("hdr.ipv4.protocol");
            meta.dst_port: range @name("hdr.udp.dst_port");
        }
        actions = {
            forward;
            drop;
        }
        default_action = drop;
        size = 1024;
    }

    @id(0x02000004) table classes {
        key = {
            meta.dscp: ternary @name("hdr.ipv4.dscp");
        }
        actions = {
            drop;
            set_class;
        }
        const default_action = drop;
        const entries = {
            0x2e: set_class(7);
            0x0f &&& 0x38: set_class(1);
        }
        counters = class_counter;
    }

    @id(0x02000005) table always {
        actions = {
            forward;
            drop;
        }
        default_action = forward(1, 0x020000000001);
        size = 1024;
    }

    @id(0x02000006) table preset {
        key = {
            meta.dst: lpm @name("hdr.ipv4.dst");
            meta.protocol: optional @name("hdr.ipv4.protocol");
            meta.dst_port: range @name("hdr.udp.dst_port");
        }
        actions = {
            drop;
            set_class;
        }
        default_action = drop;
        entries = {
            (0x0a000000 &&& 0xff000000, 17, 4791..4792): set_class(3);
            (_, _, _): drop();
        }
        size = 1024;
    }

    apply {
        bit<12> last;
        int<12> shift;
        bit<2048> data;
        seen.read(last, 0);
        offset.read(shift, 0);
        chunk.read(data, 0);
        meta.vlan = last + (bit<12>)shift + data[11:0];
        classes.apply();
        preset.apply();
        ipv4_lpm.apply();
        vlans.apply();
        acl.apply();
        always.apply();
    }
}

control egress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard_metadata) {
    @id(0x12000002) counter(2, CounterType.packets) drops;

    apply {
        if (standard_metadata.egress_port == 400) {
            drops.count(1);
        }
    }
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
