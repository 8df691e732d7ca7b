// Tables of every match kind and mix; each says in the packet which action ran, with what.
#include <core.p4>
#include <v1model.p4>

header key_t {
    bit<8> a;
    bit<16> b;
    bit<32> c;
    bit<80> d;
    bit<12> e;
    bit<4> f;
}

header hits_t {
    bit<16> exact_;
    bit<16> lpm_;
    bit<16> ternary_;
    bit<16> range_;
    bit<16> optional_;
    bit<16> mixed;
    bit<16> prefixed;
    bit<16> fixed;
    bit<16> presence;
    bit<16> flags;
}

struct headers_t {
    hits_t hits;
    key_t key;
    key_t second;
}

struct metadata_t {}

parser MatchingParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.f) {
            15: second;
            default: accept;
        }
    }
    state second {
        packet.extract(hdr.second);
        transition accept;
    }
}

control MatchingVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control MatchingIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) ternary_hits;

    action exact_hit(bit<16> value) { hdr.hits.exact_ = value; }
    action lpm_hit(bit<16> value) { hdr.hits.lpm_ = value; }
    action ternary_hit(bit<16> value) { hdr.hits.ternary_ = value; }
    action range_hit(bit<16> value) { hdr.hits.range_ = value; }
    action optional_hit(bit<16> value) { hdr.hits.optional_ = value; }
    action mixed_hit(bit<16> value) { hdr.hits.mixed = value; }
    action prefixed_hit(bit<16> value) { hdr.hits.prefixed = value; }
    action fixed_hit(bit<16> value) { hdr.hits.fixed = value; }
    action presence_hit(bit<16> value) { hdr.hits.presence = value; }

    table exact_table {
        key = { hdr.key.a : exact; hdr.key.d : exact; }
        actions = { exact_hit; NoAction; }
        size = 16;
    }
    table lpm_table {
        key = { hdr.key.c : lpm; }
        actions = { lpm_hit; NoAction; }
        default_action = lpm_hit(0xDEAD);
        size = 16;
    }
    table ternary_table {
        key = { hdr.key.b : ternary; hdr.key.d : ternary; }
        actions = { ternary_hit; NoAction; }
        counters = ternary_hits;
        size = 16;
    }
    table range_table {
        key = { hdr.key.b : range; hdr.key.d : range; }
        actions = { range_hit; NoAction; }
        size = 16;
    }
    table optional_table {
        key = { hdr.key.a : optional; hdr.key.f : optional; }
        actions = { optional_hit; NoAction; }
        size = 16;
    }
    table mixed_table {
        key = {
            hdr.key.a : exact;
            hdr.key.c : lpm;
            hdr.key.b : ternary;
            hdr.key.e : range;
            hdr.key.f : optional;
        }
        actions = { mixed_hit; NoAction; }
        size = 16;
    }
    table prefixed_table {
        key = { hdr.key.f : exact; hdr.key.d : lpm; }
        actions = { prefixed_hit; NoAction; }
        size = 16;
    }
    table fixed_table {
        key = { hdr.key.a : ternary; hdr.key.e : range; }
        actions = { fixed_hit; NoAction; }
        const default_action = fixed_hit(0xFFFF);
        const entries = {
            (1, _): fixed_hit(1);
            (0x10 &&& 0xF0, 5..100): fixed_hit(2);
            (_, 0..7): fixed_hit(3);
            (0x80 &&& 0x80, _): fixed_hit(4);
        }
    }
    table presence_table {
        key = { hdr.second.isValid() : exact; hdr.key.e[3:0] : ternary; }
        actions = { presence_hit; NoAction; }
        size = 16;
    }

    apply {
        std.egress_spec = 1;
        if (!hdr.key.isValid()) {
            exit;
        }
        hdr.hits.setValid();
        hdr.hits = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        if (exact_table.apply().hit) { hdr.hits.flags[0:0] = 1; }
        switch (lpm_table.apply().action_run) {
            lpm_hit: { hdr.hits.flags[1:1] = 1; }
            default: { hdr.hits.flags[2:2] = 1; }
        }
        if (ternary_table.apply().miss) { hdr.hits.flags[3:3] = 1; }
        if (range_table.apply().hit) { hdr.hits.flags[4:4] = 1; }
        if (optional_table.apply().hit) { hdr.hits.flags[5:5] = 1; }
        mixed_table.apply();
        prefixed_table.apply();
        fixed_table.apply();
        presence_table.apply();
    }
}

control MatchingEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control MatchingUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control MatchingDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(MatchingParser(), MatchingVerify(), MatchingIngress(), MatchingEgress(), MatchingUpdate(),
         MatchingDeparser()) main;
