// All match kinds, priorities, default actions, entries of the program's own, and what runs after a table.
#include <core.p4>
#include <v1model.p4>

header key_t {
    bit<8> which;
    bit<32> a;
    bit<16> b;
    bit<128> wide;
}

header result_t {
    bit<8> action_number;
    bit<32> value;
    bit<128> wide;
    bit<8> after;
}

struct headers_t {
    key_t key;
    result_t result;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.key);
        hdr.result.setValid();
        hdr.result.action_number = 0;
        hdr.result.value = 0;
        hdr.result.wide = 0;
        hdr.result.after = 0;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) matched;

    action one(bit<32> value) {
        hdr.result.action_number = 1;
        hdr.result.value = value;
    }
    action two(bit<32> value, bit<128> wide) {
        hdr.result.action_number = 2;
        hdr.result.value = value;
        hdr.result.wide = wide;
    }
    action miss(bit<32> value) {
        hdr.result.action_number = 3;
        hdr.result.value = value;
    }
    action drop() {
        mark_to_drop(std);
    }

    table exact_match {
        key = { hdr.key.a : exact @name("a"); hdr.key.b : exact @name("b"); }
        actions = { one; two; miss; NoAction; }
        default_action = miss(99);
        counters = matched;
        size = 16;
    }
    table longest_prefix {
        key = { hdr.key.a : lpm @name("a"); }
        actions = { one; miss; }
        default_action = miss(98);
        size = 64;
    }
    table prefix_and_exact {
        key = { hdr.key.b : exact @name("b"); hdr.key.wide : lpm @name("wide"); }
        actions = { one; NoAction; }
        size = 64;
    }
    table ternary_match {
        key = { hdr.key.a : ternary @name("a"); hdr.key.wide : ternary @name("wide"); }
        actions = { one; two; NoAction; }
        size = 64;
    }
    table range_match {
        key = { hdr.key.b : range @name("b"); hdr.key.a : ternary @name("a"); }
        actions = { one; drop; NoAction; }
        size = 64;
    }
    table optional_match {
        key = { hdr.key.a : optional @name("a"); hdr.key.b : optional @name("b"); }
        actions = { one; NoAction; }
        size = 64;
    }
    table own_entries {
        key = { hdr.key.a : ternary @name("a"); hdr.key.b : range @name("b"); }
        actions = { one; two; NoAction; }
        const default_action = one(7);
        const entries = {
            (0x100 &&& 0xF00, 5 .. 10): one(100);
            (0x120 &&& 0xFF0, _): two(200, 128w1 << 100);
            (_, 3): one(300);
        }
    }

    apply {
        std.egress_spec = 3;
        if (hdr.key.which == 0) {
            if (exact_match.apply().hit) { hdr.result.after = 1; } else { hdr.result.after = 2; }
        } else if (hdr.key.which == 1) {
            switch (longest_prefix.apply().action_run) {
                one: { hdr.result.after = 11; }
                miss: { hdr.result.after = 12; }
            }
        } else if (hdr.key.which == 2) {
            prefix_and_exact.apply();
        } else if (hdr.key.which == 3) {
            switch (ternary_match.apply().action_run) {
                two: { hdr.result.after = 13; }
                default: { hdr.result.after = 14; }
            }
        } else if (hdr.key.which == 4) {
            range_match.apply();
        } else if (hdr.key.which == 5) {
            optional_match.apply();
        } else if (hdr.key.which == 6) {
            own_entries.apply();
        }
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.result);
    }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
