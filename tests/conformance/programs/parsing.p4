// Parsers: stacks, unions, varbit, lookahead, advance, verify, selects with masks and ranges, value sets, errors.
#include <core.p4>
#include <v1model.p4>

error {
    BadKind,
    BadLength
}

header kind_t {
    bit<8> kind;
}

header label_t {
    bit<15> value;
    bit<1> last;
}

header option_t {
    bit<8> length;
    varbit<96> data;
}

header short_t {
    bit<8> tag;
    bit<8> value;
}

header long_t {
    bit<8> tag;
    bit<40> value;
}

header_union either_t {
    short_t brief;
    long_t long;
}

header trailer_t {
    bit<4> high;
    bit<12> low;
}

header report_t {
    bit<8> code;
    bit<8> valid;
    bit<8> labels;
    bit<16> seen;
    bit<32> length;
}

struct headers_t {
    report_t report;
    kind_t kind;
    label_t[3] labels;
    option_t option;
    either_t either;
    either_t[2] pair;
    trailer_t trailer;
}

struct metadata_t {
    bit<16> seen;
    bit<8> labels;
}

parser ParsingParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<8>>(4) special;

    state start {
        meta.seen = 0;
        meta.labels = 0;
        packet.extract(hdr.kind);
        transition select(hdr.kind.kind) {
            0: accept;
            1: labels;
            2: option;
            3: either;
            4: pair;
            5: peek;
            6: skip;
            7 &&& 0x0F: trailer;
            0x80..0x8F: trailer;
            special: special_kind;
            default: bad_kind;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.labels = meta.labels + 1;
        transition select(hdr.labels.last.last) {
            0: labels;
            default: trailer;
        }
    }
    state option {
        bit<8> length = packet.lookahead<bit<8>>();
        verify(length <= 14, error.BadLength);
        packet.extract(hdr.option, (bit<32>)length << 3);
        transition select(packet.lookahead<bit<4>>()) {
            0xF: bad_kind;
            default: trailer;
        }
    }
    state either {
        transition select(packet.lookahead<bit<8>>()) {
            1: brief;
            2: long;
            default: accept;
        }
    }
    state brief {
        packet.extract(hdr.either.brief);
        transition trailer;
    }
    state long {
        packet.extract(hdr.either.long);
        transition trailer;
    }
    state pair {
        transition select(packet.lookahead<bit<8>>()) {
            1: pair_brief;
            2: pair_long;
            default: trailer;
        }
    }
    state pair_brief {
        packet.extract(hdr.pair.next.brief);
        transition pair;
    }
    state pair_long {
        packet.extract(hdr.pair.next.long);
        transition pair;
    }
    state peek {
        bit<20> seen = packet.lookahead<bit<20>>();
        meta.seen = seen[15:0];
        transition select(seen[19:16], seen[15:8]) {
            (0, _): accept;
            (1, 0x10 &&& 0xF0): trailer;
            (2..9, 5): skip;
            (_, 0..0x7F): trailer;
            default: bad_kind;
        }
    }
    state skip {
        packet.advance(24);
        transition trailer;
    }
    state special_kind {
        meta.seen = 0xABCD;
        packet.advance(8);
        transition accept;
    }
    state bad_kind {
        verify(false, error.BadKind);
        transition accept;
    }
    state trailer {
        packet.extract(hdr.trailer);
        transition accept;
    }
}

control ParsingVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ParsingIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.code = 0xFF;
        if (std.parser_error == error.NoError) {
            hdr.report.code = 0;
        } else if (std.parser_error == error.PacketTooShort) {
            hdr.report.code = 1;
        } else if (std.parser_error == error.NoMatch) {
            hdr.report.code = 2;
        } else if (std.parser_error == error.StackOutOfBounds) {
            hdr.report.code = 3;
        } else if (std.parser_error == error.HeaderTooShort) {
            hdr.report.code = 4;
        } else if (std.parser_error == error.ParserTimeout) {
            hdr.report.code = 5;
        } else if (std.parser_error == error.ParserInvalidArgument) {
            hdr.report.code = 6;
        } else if (std.parser_error == error.BadKind) {
            hdr.report.code = 7;
        } else if (std.parser_error == error.BadLength) {
            hdr.report.code = 8;
        }
        hdr.report.valid = 0;
        if (hdr.kind.isValid()) { hdr.report.valid[0:0] = 1; }
        if (hdr.labels[0].isValid()) { hdr.report.valid[1:1] = 1; }
        if (hdr.labels[2].isValid()) { hdr.report.valid[2:2] = 1; }
        if (hdr.option.isValid()) { hdr.report.valid[3:3] = 1; }
        if (hdr.either.brief.isValid()) { hdr.report.valid[4:4] = 1; }
        if (hdr.either.isValid()) { hdr.report.valid[5:5] = 1; }
        if (hdr.pair[1].long.isValid()) { hdr.report.valid[6:6] = 1; }
        if (hdr.trailer.isValid()) { hdr.report.valid[7:7] = 1; }
        hdr.report.labels = meta.labels;
        hdr.report.seen = meta.seen;
        hdr.report.length = std.packet_length;
        if (hdr.labels[0].isValid() && hdr.labels[0].value == 1) {
            hdr.labels.pop_front(1);
        } else if (hdr.labels[0].isValid() && hdr.labels[0].value == 2) {
            hdr.labels.push_front(2);
            hdr.labels[0].setValid();
            hdr.labels[0] = { 0x7FFF, 1 };
        } else if (hdr.labels[0].isValid() && hdr.labels[0].value == 3) {
            hdr.labels[1] = hdr.labels[0];
        }
        if (hdr.either.brief.isValid() && hdr.either.brief.value == 9) {
            hdr.either.long.setValid();
            hdr.either.long = { 0x77, 0x0102030405 };
        }
        if (hdr.trailer.isValid() && hdr.trailer.high == 3) {
            hdr.trailer.setInvalid();
        }
    }
}

control ParsingEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control ParsingUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ParsingDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(ParsingParser(), ParsingVerify(), ParsingIngress(), ParsingEgress(), ParsingUpdate(),
         ParsingDeparser()) main;
