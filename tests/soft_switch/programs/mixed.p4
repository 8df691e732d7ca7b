// Much of the language in one program, to be compared with BMv2 on random packets: subparsers, stacks that are
// compared, copied, pushed and popped, a stack of headers with varbit fields, hashes, checksums, switch statements.
#include <core.p4>
#include <v1model.p4>

enum bit<8> Kind { LABELS = 1, OPTIONS = 2, WIDE = 0x40 }

error { Odd, TooMany }

header top_t {
    Kind kind;
    bit<8> number;
    bit<4> what;
    int<4> small;
}

header label_t {
    bit<20> label;
    bit<3> traffic_class;
    bit<1> bottom;
    bit<8> ttl;
}

header wide_t {
    bit<3> a;
    bit<77> b;
    int<16> c;
    bit<160> d;
}

header option_t {
    bit<8> length;
    varbit<80> data;
}

header report_t {
    bit<8> error_code;
    bit<8> checksum_error;
    bit<16> crc16;
    bit<32> crc32;
    bit<64> identity;
    bit<16> xor16;
    bit<8> flags;
    bit<32> last;
    bit<16> options_sum;
    bit<16> payload_sum;
    bit<8> ran;
    bit<8> csum16;
    bit<8> branch;
}

struct headers_t {
    report_t report;
    top_t top;
    label_t[3] labels;
    label_t[3] spare;
    option_t[2] options;
    wide_t wide;
    wide_t other;
}

struct peeked_t {
    bit<5> first;
    bit<11> second;
}

struct metadata_t {
    bit<8> count;
    peeked_t peeked;
}

parser LabelParser(packet_in packet, out label_t label, inout metadata_t meta) {
    state start {
        packet.extract(label);
        meta.count = meta.count + 1;
        transition accept;
    }
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    LabelParser() label_parser;

    state start {
        packet.extract(hdr.top);
        meta.peeked = packet.lookahead<peeked_t>();
        verify(hdr.top.what != 15, error.Odd);
        transition select(hdr.top.kind, hdr.top.number, hdr.top.small) {
            (Kind.LABELS, 0 .. 3, _): labels;
            (Kind.OPTIONS, _, _): options;
            (Kind.WIDE, 0x10 &&& 0x30, _): wide;
            (Kind.WIDE, _, 3): other;
            (_, 200 .. 255, _): skip;
            (_, 7, _): by_subparser;
            default: accept;
        }
    }
    state by_subparser {
        label_parser.apply(packet, hdr.spare[1], meta);
        transition accept;
    }
    state labels {
        verify(meta.count < 3, error.TooMany);
        meta.count = meta.count + 1;
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.bottom, hdr.labels.last.traffic_class) {
            (0, _): labels;
            (1, 2): wide;
            default: accept;
        }
    }
    state options {
        transition select(packet.lookahead<bit<8>>()) {
            1 .. 9: option;
            10 &&& 0xFE: option;
            default: accept;
        }
    }
    state option {
        bit<8> length = packet.lookahead<bit<8>>();
        packet.extract(hdr.options.next, (bit<32>)(length << 3));
        transition options;
    }
    state wide {
        packet.extract(hdr.wide);
        transition select(hdr.wide.c) {
            5: other;
            default: accept;
        }
    }
    state other {
        packet.extract(hdr.other);
        transition accept;
    }
    state skip {
        packet.advance((bit<32>)hdr.top.number - 200);
        packet.extract(hdr.spare.next);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.top.isValid() && hdr.top.kind == Kind.OPTIONS,
            { hdr.top.kind, hdr.top.number, hdr.top.what, hdr.top.small, hdr.options[0].data },
            hdr.report.options_sum, HashAlgorithm.csum16);
        verify_checksum(hdr.labels[0].isValid(),
            { hdr.labels[0].ttl, hdr.labels[1].ttl, hdr.labels[2].traffic_class, 5w3, hdr.labels[0].label, 4w0 },
            hdr.labels[0].label, HashAlgorithm.xor16);
    }
}

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    bit<8> ran = 0;
    bit<3> traffic_class = 0;

    action one() {
        ran = 1;
    }
    action two(bit<8> value) {
        ran = value;
        exit;
    }
    table numbers {
        key = { hdr.top.number: exact; hdr.top.small: ternary; traffic_class: exact; }
        actions = { one; two; NoAction; }
        const entries = {
            (1, _, 0): one();
            (2, 4, 0): two(9);
            (3, 5, 1): one();
        }
        const default_action = NoAction;
    }

    action calculate() {
        hash(hdr.report.csum16, HashAlgorithm.csum16, 8w3, { hdr.top, 5w0 }, 8w77);
        hash(hdr.report.crc32, HashAlgorithm.crc32_custom, 32w7, { hdr.top.what }, 64w4294967295);
    }

    action compare() {
        hdr.report.flags[0:0] = (bit<1>)(meta.peeked.first > 9);
        hdr.report.flags[1:1] = (bit<1>)(hdr.labels[0] == hdr.labels[1]);
        hdr.report.flags[2:2] = (bit<1>)(hdr.labels == hdr.spare);
        hdr.report.flags[3:3] = (bit<1>)(hdr.wide == hdr.other);
        hdr.report.flags[4:4] = (bit<1>)(hdr.top.small < 0);
    }

    apply {
        std.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.checksum_error = (bit<8>)std.checksum_error;
        if (std.parser_error == error.PacketTooShort) { hdr.report.error_code = 1; }
        if (std.parser_error == error.StackOutOfBounds) { hdr.report.error_code = 3; }
        if (std.parser_error == error.HeaderTooShort) { hdr.report.error_code = 4; }
        if (std.parser_error == error.ParserInvalidArgument) { hdr.report.error_code = 6; }
        if (std.parser_error == error.Odd) { hdr.report.error_code = 10; }
        if (std.parser_error == error.TooMany) { hdr.report.error_code = 11; }
        if (!hdr.top.isValid()) { return; }
        calculate();
        compare();
        if (hdr.labels[0].isValid()) {
            hash(hdr.report.crc16, HashAlgorithm.crc16, 16w0,
                { hdr.top.kind, hdr.top.what, hdr.top.small, hdr.labels[0] }, 32w65536);
        }
        if (hdr.options[0].isValid()) {
            hash(hdr.report.crc16, HashAlgorithm.crc16_custom, 16w0,
                { hdr.top.kind, hdr.top.what, hdr.options[0].data, hdr.top.small }, 32w65536);
        }
        if (hdr.wide.isValid()) {
            hash(hdr.report.crc32, HashAlgorithm.crc32, 32w7, { hdr.top, hdr.wide.b, 3w5 }, 64w4294967296);
        }
        if (hdr.labels[1].isValid()) {
            traffic_class = hdr.labels[1].traffic_class;
            hash(hdr.report.identity, HashAlgorithm.identity, 64w1,
                { hdr.top.number, hdr.labels[0].label, 4w0 }, 64w1000003);
            hash(hdr.report.xor16, HashAlgorithm.xor16, 16w0,
                { hdr.top, hdr.labels[0], hdr.labels[1] }, 32w65535);
        }
        switch (hdr.top.number) {
            0: { hdr.report.branch = 1; }
            1:
            2: { hdr.report.branch = 2; }
            default: { hdr.report.branch = 3; }
        }
        switch (numbers.apply().action_run) {
            one: { hdr.report.ran = 11; }
            two: { hdr.report.ran = 22; }
            NoAction: { hdr.report.ran = 33; }
        }
        hdr.report.ran = hdr.report.ran ^ ran;
        if (hdr.wide.isValid() && hdr.wide.c < -3) {
            hdr.other = hdr.wide;
            hdr.other.c = hdr.wide.c |-| 32767;
            hdr.other.d[100:50] = hdr.wide.d[51:1];
        }
        if (hdr.options[0].isValid() && hdr.options[1].isValid() && hdr.options[0].data == hdr.options[1].data) {
            hdr.report.flags = hdr.report.flags | 64;
        }
        switch (hdr.top.what) {
            1: { hdr.labels.push_front(1); hdr.labels[0].setValid(); hdr.labels[0].ttl = 9; }
            2: { hdr.labels.push_front(2); }
            3: { hdr.labels.push_front(5); }
            4: { hdr.labels.pop_front(1); }
            5: { hdr.labels.pop_front(2); }
            6: { hdr.labels.pop_front(3); }
            7: { hdr.spare = hdr.labels; hdr.labels[0].setInvalid(); }
            8: { hdr.labels[1] = hdr.labels[0]; hdr.spare[2] = hdr.labels[2]; }
            9: {
                if (hdr.labels[1].isValid()) {
                    hdr.labels[hdr.top.number[0:0]].ttl = 77;
                    hdr.report.last = (bit<32>)hdr.labels[hdr.top.number[0:0]].label;
                }
            }
            10: { hdr.options[0] = hdr.options[1]; hdr.top.setInvalid(); }
            11: {
                hdr.options.push_front(1);
                hdr.options[0].setValid();
                if (hdr.options[1].isValid()) { hdr.options[0].data = hdr.options[1].data; }
            }
            12: { hdr.options.pop_front(1); }
            13: { hdr.options[0].setInvalid(); hdr.options[0].setValid(); hdr.options[0].length = 1; }
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.top.isValid() && hdr.top.what == 14) {
            hdr.report.last = std.packet_length;
        } else if (hdr.top.isValid() && hdr.top.what == 13) {
            hdr.report.setInvalid();
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.options[0].isValid(),
            { hdr.options[0].length, hdr.options[0].data, hdr.options[1].data, hdr.top.number },
            hdr.report.options_sum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.top.isValid() && hdr.wide.isValid(),
            { hdr.top.what, hdr.top.small, hdr.wide.a, 5w0 }, hdr.report.payload_sum, HashAlgorithm.csum16);
        update_checksum(hdr.other.isValid(), { hdr.other.d, hdr.other.a, hdr.other.b },
            hdr.other.c, HashAlgorithm.crc16);
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.top);
        packet.emit(hdr.labels);
        packet.emit(hdr.spare);
        packet.emit(hdr.options);
        packet.emit(hdr.wide);
        packet.emit(hdr.other);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
