// Meters of packets and bytes, one by index and one for each entry of a table, and its direct counter.
#include <core.p4>
#include <v1model.p4>

header command_t {
    bit<8> kind;
    bit<32> index;
    bit<8> packets_color;
    bit<8> bytes_color;
    bit<8> entry_color;
    bit<8> hit;
}

struct headers_t {
    command_t command;
}

struct metadata_t {
    bit<8> color;
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
    meter(8, MeterType.packets) by_packets;
    meter(8, MeterType.bytes) by_bytes;
    direct_meter<bit<8>>(MeterType.bytes) of_entry;
    direct_counter(CounterType.packets_and_bytes) entry_counter;

    action metered() {
        of_entry.read(meta.color);
        entry_counter.count();
        hdr.command.hit = 1;
    }
    action reset_color() {
        of_entry.read(meta.color);
        entry_counter.count();
        meta.color = 9;
    }
    table entries {
        key = { hdr.command.kind: exact; }
        actions = { metered; reset_color; }
        meters = of_entry;
        counters = entry_counter;
        size = 16;
    }
    apply {
        bit<8> color = 7;
        by_packets.execute_meter<bit<8>>(hdr.command.index, color);
        hdr.command.packets_color = color;
        bit<8> other;
        by_bytes.execute_meter<bit<8>>(hdr.command.index, other);
        hdr.command.bytes_color = other;
        entries.apply();
        hdr.command.entry_color = meta.color;
        std.egress_spec = 1;
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
