// Header stacks, look-ahead, select with masks, ranges and defaults, verify and errors of the program's own.
#include <core.p4>
#include <v1model.p4>

error {
    BadVersion
}

header start_t {
    bit<8> kind;
    bit<8> version;
}

header label_t {
    bit<20> label;
    bit<3> traffic_class;
    bit<1> bottom;
    bit<8> ttl;
}

header tail_t {
    bit<16> value;
}

header report_t {
    bit<8> error_code;
    bit<8> branch;
    bit<8> labels;
    bit<8> peeked;
    bit<32> length;
}

struct headers_t {
    report_t report;
    start_t first;
    label_t[4] stack;
    tail_t tail;
}

struct metadata_t {
    bit<8> branch;
    bit<8> peeked;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.first);
        verify(hdr.first.version < 128, error.BadVersion);
        transition select(hdr.first.kind, hdr.first.version) {
            (1, _): labels;
            (2 .. 9, 0 .. 15): in_range;
            (0x40 &&& 0xC0, _): masked;
            (0xFF, 7): peek;
            (0xFD, _): skip;
            (0xFC, 1 .. 3): in_range;
            default: other;
        }
    }
    state labels {
        packet.extract(hdr.stack.next);
        transition select(hdr.stack.last.bottom) {
            0: labels;
            1: after_labels;
        }
    }
    state after_labels {
        meta.branch = 1;
        packet.extract(hdr.tail);
        transition accept;
    }
    state in_range {
        meta.branch = 2;
        transition accept;
    }
    state masked {
        meta.branch = 3;
        packet.extract(hdr.tail);
        transition accept;
    }
    state peek {
        meta.branch = 4;
        meta.peeked = packet.lookahead<bit<24>>()[11:4];
        transition accept;
    }
    state skip {
        meta.branch = 5;
        packet.advance(24);
        packet.extract(hdr.tail);
        transition accept;
    }
    state other {
        meta.branch = 6;
        transition select(hdr.first.version) {
            5: accept;  // for anything else BMv2 ends the parser without an error
        }
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.branch = meta.branch;
        hdr.report.peeked = meta.peeked;
        hdr.report.length = std.packet_length;
        hdr.report.error_code = 255;
        if (std.parser_error == error.NoError) { hdr.report.error_code = 0; }
        if (std.parser_error == error.PacketTooShort) { hdr.report.error_code = 1; }
        if (std.parser_error == error.NoMatch) { hdr.report.error_code = 2; }
        if (std.parser_error == error.StackOutOfBounds) { hdr.report.error_code = 3; }
        if (std.parser_error == error.BadVersion) { hdr.report.error_code = 10; }
        hdr.report.labels = 0;
        if (hdr.stack[0].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (hdr.stack[1].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (hdr.stack[2].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (hdr.stack[3].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (std.parser_error == error.NoError && meta.branch == 1) {
            if (hdr.stack[0].label == 0xABCDE) {
                hdr.stack.push_front(1);
                hdr.stack[0].setValid();
                hdr.stack[0].label = 77;
                hdr.stack[0].ttl = hdr.stack[1].isValid() ? hdr.stack[1].ttl - 1 : 9;
            } else if (hdr.stack[0].label == 0x12345) {
                hdr.stack.pop_front(2);
            }
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.first);
        packet.emit(hdr.stack);
        packet.emit(hdr.tail);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
