// Indirect tables: an action profile, selectors with several hashes, one that two tables share, and what goes with
// tables: a range of more than 64 bits, idle timeouts.
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
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control TestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    @name("profile") action_profile(4) profile;
    @name("crc16") @max_group_size(8) action_selector(HashAlgorithm.crc16, 64, 16) crc16;
    @name("crc32") action_selector(HashAlgorithm.crc32, 64, 32) crc32;
    @name("identity") action_selector(HashAlgorithm.identity, 64, 32) identity;

    action one(bit<32> value) {
        hdr.result.action_number = 1;
        hdr.result.value = value;
    }
    action two(bit<32> value, bit<128> wide) {
        hdr.result.action_number = 2;
        hdr.result.value = value;
        hdr.result.wide = wide;
    }
    action drop() {
        mark_to_drop(std);
    }

    table by_member {
        key = { hdr.key.a : exact; }
        actions = { one; two; }
        implementation = profile;
        size = 16;
    }
    table by_crc16 {
        key = { hdr.key.a : exact; hdr.key.b : selector; hdr.key.wide : selector; }
        actions = { one; two; drop; }
        implementation = crc16;
        size = 16;
    }
    table by_crc32 {
        key = { hdr.key.a : lpm; hdr.key.b : selector; hdr.key.wide : selector; }
        actions = { one; two; }
        implementation = crc32;
        size = 16;
    }
    table also_by_crc32 {
        key = { hdr.key.a : ternary; hdr.key.b : selector; hdr.key.wide : selector; }
        actions = { two; one; }
        implementation = crc32;
        size = 16;
    }
    table by_identity {
        key = { hdr.key.a : exact; hdr.key.b : selector; }
        actions = { one; two; }
        implementation = identity;
        support_timeout = true;
        size = 16;
    }
    table wide_range {
        key = { hdr.key.wide : range; hdr.key.b : range; hdr.key.a : ternary; }
        actions = { one; two; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table aged {
        key = { hdr.key.a : exact; }
        actions = { one; }
        support_timeout = true;
        size = 4096;
    }

    apply {
        std.egress_spec = 3;
        hdr.result.setValid();
        hdr.result.action_number = 0;
        hdr.result.value = 0;
        hdr.result.wide = 0;
        hdr.result.after = 0;
        if (hdr.key.which == 0) {
            if (by_member.apply().hit) { hdr.result.after = 1; }
        } else if (hdr.key.which == 1) {
            switch (by_crc16.apply().action_run) {
                one: { hdr.result.after = 11; }
                two: { hdr.result.after = 12; }
            }
        } else if (hdr.key.which == 2) {
            switch (by_crc32.apply().action_run) {
                one: { hdr.result.after = 21; }
                two: { hdr.result.after = 22; }
            }
        } else if (hdr.key.which == 3) {
            switch (also_by_crc32.apply().action_run) {
                one: { hdr.result.after = 31; }
                two: { hdr.result.after = 32; }
            }
        } else if (hdr.key.which == 4) {
            by_identity.apply();
        } else if (hdr.key.which == 5) {
            wide_range.apply();
        } else {
            aged.apply();
        }
        hdr.key.setInvalid();
    }
}

control TestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(TestParser(), Verify(), TestIngress(), TestEgress(), Update(), TestDeparser()) main;
