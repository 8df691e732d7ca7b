// What stays between packets, and what is computed over fields: registers, counters, hashes, checksums.
#include <core.p4>
#include <v1model.p4>

header command_t {
    bit<8> index;
    bit<16> value;
    bit<48> wide;
    bit<13> odd;
    bit<3> pad;
}

header flexible_t {
    bit<8> length;
    varbit<64> data;
}

header results_t {
    bit<16> before;
    bit<96> total;
    bit<16> crc16;
    bit<32> crc32;
    bit<16> csum16;
    bit<16> xor16;
    bit<32> identity;
    bit<16> crc16_custom;
    bit<32> crc32_custom;
    bit<8> bounded;
    bit<8> flags;
}

header sums_t {
    bit<16> given;
    bit<16> plain;
    bit<16> payload;
    bit<16> flexible;
    bit<32> crc;
}

struct headers_t {
    results_t results;
    command_t command;
    flexible_t flexible;
    sums_t sums;
}

struct metadata_t {}

parser StateParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.command);
        bit<8> length = packet.lookahead<bit<8>>();
        transition select(length) {
            0..8: flexible;
            default: sums;
        }
    }
    state flexible {
        packet.extract(hdr.flexible, (bit<32>)(packet.lookahead<bit<8>>() << 3));
        transition sums;
    }
    state sums {
        packet.extract(hdr.sums);
        transition accept;
    }
}

control StateVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.sums.isValid(), { hdr.command.value, hdr.command.wide, hdr.command.index, 8w0 },
            hdr.sums.given, HashAlgorithm.csum16);
    }
}

control StateIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<16>>(16) cells;
    register<bit<96>>(4) totals;
    counter(16, CounterType.packets_and_bytes) seen;
    counter(16, CounterType.bytes) sizes;

    apply {
        std.egress_spec = 1;
        if (!hdr.sums.isValid()) {
            exit;
        }
        hdr.results.setValid();
        hdr.results.flags = 0;
        bit<32> index = (bit<32>)hdr.command.index[3:0];
        seen.count(index);
        sizes.count((bit<32>)hdr.command.index);
        cells.read(hdr.results.before, index);
        cells.write(index, hdr.results.before + hdr.command.value);
        bit<96> total;
        totals.read(total, index & 3);
        total = total + (hdr.command.wide ++ 48w1);
        totals.write(index & 3, total);
        hdr.results.total = total;
        hash(hdr.results.crc16, HashAlgorithm.crc16, 16w0, { hdr.command.value, hdr.command.wide }, 32w65536);
        hash(hdr.results.crc32, HashAlgorithm.crc32, 32w7, { hdr.command.value, hdr.command.odd, hdr.command.pad },
            33w0x100000000);
        hash(hdr.results.csum16, HashAlgorithm.csum16, 16w0, { hdr.command.wide, hdr.command.index }, 32w65536);
        hash(hdr.results.xor16, HashAlgorithm.xor16, 16w0, { hdr.command.wide, hdr.command.index }, 32w65536);
        hash(hdr.results.identity, HashAlgorithm.identity, 32w0, { hdr.command.index, hdr.command.value }, 32w0xFFFFFFFF);
        hash(hdr.results.crc16_custom, HashAlgorithm.crc16_custom, 16w0, { hdr.command.odd }, 32w65536);
        hash(hdr.results.crc32_custom, HashAlgorithm.crc32_custom, 32w0, { hdr.command.odd, hdr.command.value }, 33w0x100000000);
        hash(hdr.results.bounded, HashAlgorithm.crc32, 8w10, { hdr.command.odd, hdr.command.wide }, 16w13);
        if (std.checksum_error == 1) { hdr.results.flags[0:0] = 1; }
        if (std.parser_error != error.NoError) { hdr.results.flags[1:1] = 1; }
        if (hdr.flexible.isValid()) { hdr.results.flags[2:2] = 1; }
    }
}

control StateEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<32>>(1) last;
    apply {
        bit<32> before;
        last.read(before, 0);
        if (hdr.results.isValid() && before == hdr.results.crc32) {
            hdr.results.flags[3:3] = 1;
        }
        if (hdr.results.isValid()) {
            last.write(0, hdr.results.crc32);
        }
    }
}

control StateUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.sums.isValid(), { hdr.command.value, hdr.command.wide, hdr.command.odd, hdr.command.pad },
            hdr.sums.plain, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.sums.isValid(), { hdr.command.index, hdr.command.index, hdr.command.value },
            hdr.sums.payload, HashAlgorithm.csum16);
        update_checksum(hdr.flexible.isValid() && hdr.sums.isValid(), { hdr.flexible.length, hdr.flexible.data },
            hdr.sums.flexible, HashAlgorithm.csum16);
        update_checksum(hdr.sums.isValid(), { hdr.command.wide, hdr.command.value }, hdr.sums.crc, HashAlgorithm.crc32);
    }
}

control StateDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(StateParser(), StateVerify(), StateIngress(), StateEgress(), StateUpdate(), StateDeparser()) main;
