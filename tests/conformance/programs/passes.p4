// Packets that go round: clones, resubmitted and recirculated ones, replicas; each pass leaves its mark.
#include <core.p4>
#include <v1model.p4>

header command_t {
    bit<8> op;          // bits: 1 clone I2E, 2 clone E2E, 4 resubmit, 8 recirculate, 16 multicast, 32 truncate, 64 drop
    bit<8> port;
    bit<8> session;
    bit<16> group;
    bit<8> passes;
    bit<16> kept;
    bit<32> ingress;
    bit<32> egress;
    bit<32> length;
    bit<16> instance;
}

struct headers_t {
    command_t command;
}

struct metadata_t {
    @field_list(1, 3)
    bit<16> kept;
    @field_list(2, 3)
    bit<8> passes;
    bit<8> lost;
}

parser PassesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.command);
        transition accept;
    }
}

control PassesVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control PassesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (!hdr.command.isValid()) {
            std.egress_spec = 1;
            exit;
        }
        std.egress_spec = (bit<9>)hdr.command.port;
        meta.passes = meta.passes + 1;
        hdr.command.ingress = hdr.command.ingress << 4 | (bit<32>)std.instance_type;
        hdr.command.kept = hdr.command.kept + meta.kept + (bit<16>)meta.lost;
        meta.kept = meta.kept + 0x0101;
        meta.lost = 7;
        bit<8> op = hdr.command.op;
        if (op & 1 != 0) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.command.session, 1);
        }
        if (op & 4 != 0 && meta.passes < 3 && std.instance_type != 4) {
            resubmit_preserving_field_list(2);
        }
        if (op & 16 != 0) {
            std.mcast_grp = hdr.command.group;
        }
        if (op & 64 != 0) {
            mark_to_drop(std);
        }
        hdr.command.passes = meta.passes;
    }
}

control PassesEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (!hdr.command.isValid()) {
            exit;
        }
        hdr.command.egress = hdr.command.egress << 4 | (bit<32>)std.instance_type;
        hdr.command.instance = std.egress_rid;
        hdr.command.length = std.packet_length;
        hdr.command.kept = hdr.command.kept ^ meta.kept;
        bit<8> op = hdr.command.op;
        if (op & 2 != 0 && std.instance_type != 2 && std.instance_type != 1) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.command.session, 3);
        }
        if (op & 8 != 0 && meta.passes < 4 && std.instance_type != 2 && std.instance_type != 1) {
            recirculate_preserving_field_list(3);
        }
        if (op & 32 != 0) {
            truncate(30);
        }
        if (std.egress_port == 6) {
            mark_to_drop(std);
        }
    }
}

control PassesUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control PassesDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(PassesParser(), PassesVerify(), PassesIngress(), PassesEgress(), PassesUpdate(), PassesDeparser()) main;
