// Registers, counters, hashes, multicast, and variables that only some packets set.
#include <core.p4>
#include <v1model.p4>

header command_t {
    bit<8> op;
    bit<32> index;
    bit<32> value;
    bit<2048> wide;
}

header digest_t {
    bit<32> crc32_value;
    bit<16> crc16_value;
    bit<16> csum16_value;
    bit<16> xor16_value;
    bit<32> bounded;
    bit<32> masked;
}

struct headers_t {
    command_t command;
    digest_t digest;
}

struct metadata_t {
    bit<32> sometimes;
    bit<16> replica;
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.command);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<32>>(8) cells;
    register<bit<2048>>(4) chunks;
    register<bit<1>>(64) flags;
    counter(16, CounterType.packets_and_bytes) seen;

    apply {
        if (!hdr.command.isValid()) {
            mark_to_drop(std);
            exit;
        }
        std.egress_spec = 4;
        seen.count(hdr.command.index);
        if (hdr.command.op == 1) {  // read; there is nothing to read beyond the last cell
            bit<32> got;
            cells.read(got, hdr.command.index);
            hdr.command.value = got;
        } else if (hdr.command.op == 2) {
            cells.write(hdr.command.index, hdr.command.value);
        } else if (hdr.command.op == 3) {  // fetch and add
            bit<32> before;
            cells.read(before, hdr.command.index);
            cells.write(hdr.command.index, before + hdr.command.value);
            hdr.command.value = before;
        } else if (hdr.command.op == 4) {
            bit<2048> sum;
            chunks.read(sum, hdr.command.index);
            sum = sum + hdr.command.wide;
            chunks.write(hdr.command.index, sum);
            hdr.command.wide = sum;
        } else if (hdr.command.op == 5) {
            bit<1> flag;
            flags.read(flag, hdr.command.index);
            flags.write(hdr.command.index, ~flag);
            hdr.command.value = (bit<32>)flag;
        } else if (hdr.command.op == 6) {
            hdr.digest.setValid();
            hash(hdr.digest.crc32_value, HashAlgorithm.crc32, 32w0,
                 { hdr.command.index, hdr.command.wide, hdr.command.value }, 33w0x100000000);
            hash(hdr.digest.crc16_value, HashAlgorithm.crc16, 16w0,
                 { hdr.command.index, hdr.command.value }, 17w0x10000);
            hash(hdr.digest.csum16_value, HashAlgorithm.csum16, 16w0,
                 { hdr.command.op, 8w0x5A, hdr.command.value }, 17w0x10000);
            hash(hdr.digest.xor16_value, HashAlgorithm.xor16, 16w0,
                 { hdr.command.index, hdr.command.value }, 17w0x10000);
            hash(hdr.digest.bounded, HashAlgorithm.crc32, 32w1000,
                 { hdr.command.index[12:0], hdr.command.value[30:0], 4w9 }, 32w77);
            hash(hdr.digest.masked, HashAlgorithm.identity, 32w0, { hdr.command.value }, 32w0x10000);
        } else if (hdr.command.op == 7) {
            random(hdr.command.value, 32w10, hdr.command.index);
        } else if (hdr.command.op == 8) {
            std.mcast_grp = (bit<16>)hdr.command.index;
            meta.sometimes = hdr.command.value;
        } else if (hdr.command.op == 9) {
            mark_to_drop(std);
        } else if (hdr.command.op == 10) {
            assert(hdr.command.value != 13);
        } else if (hdr.command.op == 11) {
            log_msg("value {} at {}", { hdr.command.value, hdr.command.index });
        } else if (hdr.command.op == 12) {
            truncate(hdr.command.index);
        } else if (hdr.command.op == 13) {
            std.egress_spec = 9;
            exit;
        }
        if (hdr.command.op >= 14) {
            std.egress_spec = 5;
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8, CounterType.packets) left;

    apply {
        left.count((bit<32>)std.egress_port);
        if (std.egress_rid != 0) {
            meta.replica = meta.replica + std.egress_rid;
            hdr.command.index = (bit<32>)meta.replica;
            if (std.egress_rid == 3) {
                mark_to_drop(std);
            }
        }
        if (hdr.command.op >= 14 || hdr.command.op == 8) {
            hdr.command.value = hdr.command.value + meta.sometimes + 1;
        }
    }
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
        packet.emit(hdr.digest);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
