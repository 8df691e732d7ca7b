// Header unions, stacks of unions, varbit fields, choices between headers.
#include <core.p4>
#include <v1model.p4>

header start_t {
    bit<8> kind;
    bit<8> length;
}

header report_t {
    bit<8> error_code;
    bit<8> flags;
    bit<16> sum;
    bit<32> length;
}

header byte_t {
    bit<8> value;
}

header short_t {
    bit<16> value;
}

header_union number_t {
    byte_t one;
    short_t two;
}

header options_t {
    bit<4> upper;
    varbit<64> data;
    bit<4> lower;
}

struct headers_t {
    report_t report;
    start_t first;
    number_t number;
    number_t[3] numbers;
    options_t options;
    options_t copy;
}

struct metadata_t {
    bit<16> sum;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.first);
        transition select(hdr.first.kind) {
            1: one;
            2: two;
            3 &&& 0x0F: many;
            4 .. 9: options;
            default: accept;
        }
    }
    state one {
        packet.extract(hdr.number.one);
        transition accept;
    }
    state two {
        packet.extract(hdr.number.two);
        transition accept;
    }
    state many {
        transition select(packet.lookahead<bit<8>>()) {
            0: accept;
            1: many_one;
            2: many_two;
        }
    }
    state many_one {
        packet.extract(hdr.numbers.next.one);
        transition many;
    }
    state many_two {
        packet.extract(hdr.numbers.next.two);
        transition many;
    }
    state options {
        packet.extract(hdr.options, (bit<32>)hdr.first.length);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.options.isValid(),
            { hdr.first.kind, hdr.first.length, hdr.options.upper, hdr.options.data, hdr.options.lower },
            hdr.report.sum, HashAlgorithm.csum16);
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        hdr.report.setValid();
        if (std.parser_error == error.PacketTooShort) { hdr.report.error_code = 1; }
        if (std.parser_error == error.StackOutOfBounds) { hdr.report.error_code = 3; }
        if (std.parser_error == error.HeaderTooShort) { hdr.report.error_code = 4; }
        if (std.parser_error == error.ParserInvalidArgument) { hdr.report.error_code = 6; }
        if (hdr.number.isValid()) { hdr.report.flags = hdr.report.flags | 1; }
        if (hdr.number.one.isValid()) {
            hdr.report.flags = hdr.report.flags | 2;
            if (hdr.number.one.value == 7) {
                hdr.number.two.setValid();
                hdr.number.two.value = 0x1234;
            } else if (hdr.number.one.value == 8) {
                hdr.number.one.setInvalid();
            }
        } else if (hdr.number.two.isValid()) {
            hdr.report.flags = hdr.report.flags | 4;
            if (hdr.number.two.value == 0xBEEF) {
                hdr.numbers[1].two = hdr.number.two;
                hdr.number.one.setValid();
                hdr.number.one.value = 0x55;
            }
        }
        if (hdr.numbers[0].one.isValid()) { hdr.report.flags = hdr.report.flags | 8; }
        if (hdr.numbers[2].two.isValid()) {
            hdr.report.flags = hdr.report.flags | 16;
            hdr.numbers[0].two = hdr.numbers[2].two;
        }
        if (hdr.options.isValid() && hdr.first.kind == 5) {
            hdr.copy = hdr.options;
            hdr.copy.upper = ~hdr.options.upper;
            if (hdr.copy.data == hdr.options.data) { hdr.report.flags = hdr.report.flags | 32; }
        } else if (hdr.options.isValid() && hdr.first.kind == 6) {
            hdr.copy.setValid();
            if (hdr.copy.data == hdr.options.data) { hdr.report.flags = hdr.report.flags | 64; }
            hdr.copy.data = hdr.options.data;
            if (hdr.copy == hdr.options) { hdr.report.flags = hdr.report.flags | 128; }
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply { hdr.report.length = std.packet_length; }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.first);
        packet.emit(hdr.number);
        packet.emit(hdr.numbers);
        packet.emit(hdr.options);
        packet.emit(hdr.copy);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
