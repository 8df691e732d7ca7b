// Packets that take another way: clones, resubmitted and recirculated ones, replicas; digests, truncation, and
// every field of standard_metadata. What happens is asked for by the packet, and what was seen is written into it.
#include <core.p4>
#include <v1model.p4>

typedef bit<8> op_t;

const op_t CLONE_I = 0x01;      // clone in ingress, keep nothing
const op_t CLONE_KEEP = 0x02;   // clone in ingress, keep list 1
const op_t RESUBMIT = 0x04;
const op_t DIGEST = 0x08;
const op_t MULTICAST = 0x10;
const op_t DROP = 0x20;         // at the end of ingress
const op_t TRUNCATE = 0x40;     // in ingress, to `length`
const op_t EXIT = 0x80;         // after all that is asked for, without setting egress_spec

const op_t CLONE_E = 0x01;      // clone in egress, keep nothing
const op_t CLONE_E_KEEP = 0x02; // clone in egress, keep list 2
const op_t RECIRCULATE = 0x04;
const op_t DROP_E = 0x08;
const op_t TRUNCATE_E = 0x10;
const op_t ADD = 0x20;          // add a header in egress
const op_t DIGEST_TWICE = 0x40; // in ingress: another digest after the first
const op_t PRIORITY = 0x80;     // in ingress: priority 1

header command_t {
    op_t ingress_op;
    op_t egress_op;
    bit<8> rounds;   // counts down with each resubmission or recirculation
    bit<8> port;
    bit<16> session;
    bit<16> group;
    bit<16> length;
    bit<32> value;
}

// What the parser, ingress and egress see of a packet, in this order.
header seen_t {
    bit<16> parser_port;
    bit<32> parser_instance;
    bit<16> port;
    bit<32> instance;
    bit<32> packet_length;
    bit<32> kept;
    bit<16> kept_too;
    bit<16> egress_port;
    bit<32> egress_instance;
    bit<32> egress_length;
    bit<32> egress_kept;
    bit<16> egress_kept_too;
    bit<16> rid;
    bit<16> spec;
    bit<8> error_code;
    bit<8> queued;
    bit<8> priority;
}

struct headers_t {
    command_t command;
    seen_t seen;
    seen_t added;
}

struct learn_t {
    bit<32> value;
    bit<9> port;
    bit<1> flag;
}

struct other_t {
    bit<300> wide;
    bit<8> ingress_op;
}

struct metadata_t {
    @field_list(1, 2)
    bit<32> kept;
    @field_list(2)
    bit<9> kept_too;
    bit<16> parser_port;
    bit<32> parser_instance;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        meta.parser_port = (bit<16>)std.ingress_port;
        meta.parser_instance = std.instance_type;
        packet.extract(hdr.command);
        packet.extract(hdr.seen);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8, CounterType.packets_and_bytes) entered;  // by instance_type

    apply {
        entered.count(std.instance_type);
        if (!hdr.seen.isValid()) {
            mark_to_drop(std);
            exit;
        }
        hdr.seen.parser_port = meta.parser_port;
        hdr.seen.parser_instance = meta.parser_instance;
        hdr.seen.port = (bit<16>)std.ingress_port;
        hdr.seen.instance = std.instance_type;
        hdr.seen.packet_length = std.packet_length;
        hdr.seen.kept = meta.kept;
        hdr.seen.kept_too = (bit<16>)meta.kept_too;
        if (std.parser_error != error.NoError) {
            hdr.seen.error_code = 1;
        }
        meta.kept = meta.kept + hdr.command.value;
        meta.kept_too = (bit<9>)hdr.command.value;
        std.egress_spec = (bit<9>)hdr.command.port;
        if (hdr.command.ingress_op & CLONE_I != 0) {
            clone(CloneType.I2E, (bit<32>)hdr.command.session);
        }
        if (hdr.command.ingress_op & CLONE_KEEP != 0) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.command.session, 1);
        }
        if (hdr.command.ingress_op & RESUBMIT != 0 && meta.kept < 3 * hdr.command.value) {
            resubmit_preserving_field_list(1);
        }
        if (hdr.command.ingress_op & DIGEST != 0) {
            digest<learn_t>(1, {hdr.command.value, std.ingress_port, 1w1});
            if (hdr.command.egress_op & DIGEST_TWICE != 0) {
                digest<other_t>(1, {(bit<300>)hdr.command.value << 250, hdr.command.ingress_op});
            }
        }
        if (hdr.command.ingress_op & MULTICAST != 0) {
            std.mcast_grp = hdr.command.group;
        }
        if (hdr.command.egress_op & PRIORITY != 0) {
            std.priority = 1;
        }
        if (hdr.command.ingress_op & TRUNCATE != 0) {
            truncate((bit<32>)hdr.command.length);
        }
        if (hdr.command.ingress_op & DROP != 0) {
            mark_to_drop(std);
        }
        if (hdr.command.ingress_op & EXIT != 0) {
            exit;
        }
        hdr.command.length = hdr.command.length + 1;
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8, CounterType.packets_and_bytes) left;

    apply {
        left.count(std.instance_type);
        hdr.seen.egress_port = (bit<16>)std.egress_port;
        hdr.seen.egress_instance = std.instance_type;
        hdr.seen.egress_length = std.packet_length;
        hdr.seen.egress_kept = meta.kept;
        hdr.seen.egress_kept_too = (bit<16>)meta.kept_too;
        hdr.seen.rid = std.egress_rid;
        hdr.seen.spec = (bit<16>)std.egress_spec;
        hdr.seen.priority = (bit<8>)std.priority;
        if (std.enq_qdepth != 0 || std.deq_qdepth != 0) {
            hdr.seen.queued = 1;
        }
        if (hdr.command.egress_op & ADD != 0) {
            hdr.added.setValid();
            hdr.added.kept = 0xADDED;
        }
        // Whatever is cloned is cloned once.
        if (std.instance_type != 2) {
            if (hdr.command.egress_op & CLONE_E != 0) {
                clone(CloneType.E2E, (bit<32>)hdr.command.session);
            }
            if (hdr.command.egress_op & CLONE_E_KEEP != 0) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.command.session, 2);
            }
        }
        if (hdr.command.egress_op & RECIRCULATE != 0 && hdr.command.rounds != 0) {
            hdr.command.rounds = hdr.command.rounds - 1;
            meta.kept = meta.kept + 7;
            recirculate_preserving_field_list(2);
        }
        if (hdr.command.egress_op & TRUNCATE_E != 0) {
            truncate((bit<32>)hdr.command.length);
        }
        if (hdr.command.egress_op & DROP_E != 0) {
            mark_to_drop(std);
        }
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
        packet.emit(hdr.seen);
        packet.emit(hdr.added);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
