// Types that controllers see as other numbers or as strings, in every place where P4Runtime has values.
//
//     p4c-bm2-ss --p4v 16 --p4runtime-files translated.p4info.txtpb -o translated.json translated.p4
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

@p4runtime_translation("p4.org/psa/v1/PortId_t", bit<32>)
type bit<9> port_t;

@p4runtime_translation("", string)
type bit<9> port_id_t;

@p4runtime_translation("", string)
@p4runtime_translation_mappings({ {"", 0}, {"blue", 7} })
type bit<10> vrf_t;

@p4runtime_translation("example.org/tiny", string)
type bit<2> tiny_t;

// Shares its names with tiny_t.
@p4runtime_translation("example.org/tiny", string)
type bit<8> roomy_t;

@controller_header("packet_in")
header packet_in_t {
    @id(1) port_id_t ingress_port;
    @id(2) port_t number;
    @id(3) @padding bit<6> unused_pad;
}

@controller_header("packet_out")
header packet_out_t {
    @id(1) port_id_t egress_port;
    @id(2) port_t ingress_port;
    @id(3) @padding bit<6> unused_pad;
}

header data_t {
    bit<8> kind;
    bit<8> color;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    data_t data;
}

struct metadata_t {
    port_t port;
    port_id_t name;
    vrf_t vrf;
    tiny_t tiny;
    roomy_t roomy;
    bit<8> color;
}

struct seen_t {
    vrf_t vrf;
    port_t port;
    bit<8> kind;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        meta.port = (port_t) standard.ingress_port;
        transition select(standard.ingress_port) {
            CPU_PORT: from_controller;
            default: data;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        meta.port = hdr.packet_out.ingress_port;
        transition data;
    }
    state data {
        packet.extract(hdr.data);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control In(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    @id(0x12000001) counter<port_t>(512, CounterType.packets) per_port;
    @id(0x16000001) register<vrf_t, bit<32>>(4) last;

    @id(0x01000001) action nop() {}
    @id(0x01000002) action send(port_t port) {
        standard.egress_spec = (bit<9>) port;
        per_port.count(port);
    }
    @id(0x01000003) action send_to(port_id_t port) {
        standard.egress_spec = (bit<9>) port;
    }
    @id(0x01000004) action set_vrf(vrf_t vrf) {
        meta.vrf = vrf;
        last.write(0, vrf);
        digest<seen_t>(1, {vrf, meta.port, hdr.data.kind});
    }
    @id(0x01000005) action set_tiny(tiny_t tiny, roomy_t roomy) {
        meta.tiny = tiny;
        meta.roomy = roomy;
    }
    @id(0x01000006) action paint(bit<0> nothing, bit<8> color) {
        meta.color = color;
    }

    // Numbers of 32 bits for 9.
    @id(0x02000001) table ports {
        key = { meta.port: exact @name("port"); }
        actions = { set_vrf; set_tiny; paint; nop; }
        default_action = nop();
    }
    @id(0x02000002) table masks {
        key = { meta.port: ternary @name("port"); meta.port: range @name("range"); }
        actions = { paint; nop; }
        default_action = nop();
    }
    @id(0x02000003) table prefixes {
        key = { meta.port: lpm @name("port"); }
        actions = { paint; nop; }
        default_action = nop();
    }
    @id(0x02000004) table fixed {
        key = { meta.port: exact @name("port"); }
        actions = { nop; }
        const entries = { (port_t) 300: nop(); }
        const default_action = nop();
    }
    // Strings.
    @id(0x02000005) table routes {
        key = { meta.vrf: exact @name("vrf"); meta.name: optional @name("name"); }
        actions = { send; send_to; nop; }
        default_action = nop();
    }
    @id(0x02000006) table whole {
        key = { meta.vrf: lpm @name("vrf"); meta.name: ternary @name("name"); meta.tiny: range @name("tiny"); }
        actions = { nop; }
        default_action = nop();
    }
    @id(0x02000008) table tiny {
        key = { meta.tiny: exact @name("tiny"); }
        actions = { nop; }
        default_action = nop();
    }

    @id(0x11000001) action_selector(HashAlgorithm.crc16, 64, 10) balance;
    @id(0x02000007) table balanced {
        key = { hdr.data.kind: exact @name("kind"); meta.port: selector; }
        actions = { send_to; nop; }
        implementation = balance;
    }

    apply {
        meta.name = (port_id_t) (bit<9>) meta.port;
        ports.apply();
        masks.apply();
        prefixes.apply();
        fixed.apply();
        whole.apply();
        tiny.apply();
        routes.apply();
        balanced.apply();
        if (hdr.packet_out.isValid() && (bit<9>) hdr.packet_out.egress_port != 0) {
            standard.egress_spec = (bit<9>) hdr.packet_out.egress_port;
        }
        hdr.packet_out.setInvalid();
        hdr.data.color = meta.color;
    }
}

control Out(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (standard.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.name;
            hdr.packet_in.number = meta.port;
            hdr.packet_in.unused_pad = 0;
        }
    }
}

control Sum(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.data);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Sum(), Deparse()) main;
