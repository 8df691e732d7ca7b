// Arithmetic: each packet's operands through every operator, for widths of a word, more and less.
#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<32> a;
    bit<32> b;
    int<16> s;
    int<16> t;
    bit<7> n;
    int<9> m;
    bit<8> shift;
    bit<128> w;
    bit<128> x;
    bit<520> y;
    bit<520> z;
}

header narrow_t {
    bit<32> sum;
    bit<32> difference;
    bit<32> product;
    bit<32> added_sat;
    bit<32> subtracted_sat;
    bit<32> left;
    bit<32> right;
    bit<32> logic;
    int<16> s_sum;
    int<16> s_difference;
    int<16> s_product;
    int<16> s_added_sat;
    int<16> s_subtracted_sat;
    int<16> s_left;
    int<16> s_right;
    int<16> s_negative;
    bit<7> n_sum;
    int<9> m_shift;
    bit<16> compared;
    bit<40> joined;
    bit<13> sliced;
    bit<3> small;
    int<32> extended;
    int<32> widened;
    bit<32> chosen;
    bit<8> cast_down;
}

header wide_t {
    bit<128> sum;
    bit<128> difference;
    bit<128> product;
    bit<128> added_sat;
    bit<128> subtracted_sat;
    bit<128> left;
    bit<128> right;
    bit<128> logic;
    bit<520> y_sum;
    bit<520> y_difference;
    bit<520> y_left;
    bit<520> y_right;
    bit<520> y_logic;
    bit<520> y_joined;
    bit<8> compared;
}

struct headers_t {
    operands_t operands;
    narrow_t narrow;
    wide_t wide;
}

struct metadata_t {}

parser ValuesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control ValuesVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ValuesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = std.ingress_port;
        if (!hdr.operands.isValid()) {
            exit;
        }
        bit<32> a = hdr.operands.a;
        bit<32> b = hdr.operands.b;
        int<16> s = hdr.operands.s;
        int<16> t = hdr.operands.t;
        bit<8> shift = hdr.operands.shift;
        hdr.narrow.setValid();
        hdr.narrow.sum = a + b;
        hdr.narrow.difference = a - b;
        hdr.narrow.product = a * b;
        hdr.narrow.added_sat = a |+| b;
        hdr.narrow.subtracted_sat = a |-| b;
        hdr.narrow.left = a << shift;
        hdr.narrow.right = a >> shift;
        hdr.narrow.logic = (a & b) ^ (~a | b);
        hdr.narrow.s_sum = s + t;
        hdr.narrow.s_difference = s - t;
        hdr.narrow.s_product = s * t;
        hdr.narrow.s_added_sat = s |+| t;
        hdr.narrow.s_subtracted_sat = s |-| t;
        hdr.narrow.s_left = s << shift;
        hdr.narrow.s_right = s >> shift;
        hdr.narrow.s_negative = -s;
        hdr.narrow.n_sum = hdr.operands.n + (bit<7>)a;
        hdr.narrow.m_shift = hdr.operands.m >> 3;
        hdr.narrow.compared = 0;
        if (a < b) { hdr.narrow.compared[0:0] = 1; }
        if (a <= b) { hdr.narrow.compared[1:1] = 1; }
        if (a > b) { hdr.narrow.compared[2:2] = 1; }
        if (a == b) { hdr.narrow.compared[3:3] = 1; }
        if (s < t) { hdr.narrow.compared[4:4] = 1; }
        if (s <= t) { hdr.narrow.compared[5:5] = 1; }
        if (s > t) { hdr.narrow.compared[6:6] = 1; }
        if (s >= t) { hdr.narrow.compared[7:7] = 1; }
        if (s == t) { hdr.narrow.compared[8:8] = 1; }
        if (hdr.operands.m < 0) { hdr.narrow.compared[9:9] = 1; }
        if (a != b && (s != t || a[7:0] == 1)) { hdr.narrow.compared[10:10] = 1; }
        hdr.narrow.joined = a ++ shift;
        hdr.narrow.sliced = a[20:8];
        hdr.narrow.small = b[31:29];
        hdr.narrow.extended = (int<32>)s;
        hdr.narrow.widened = (int<32>)hdr.operands.m;
        hdr.narrow.chosen = s < 0 ? a : b;
        hdr.narrow.cast_down = (bit<8>)hdr.operands.w;
        bit<128> w = hdr.operands.w;
        bit<128> x = hdr.operands.x;
        bit<520> y = hdr.operands.y;
        bit<520> z = hdr.operands.z;
        hdr.wide.setValid();
        hdr.wide.sum = w + x;
        hdr.wide.difference = w - x;
        hdr.wide.product = w * x;
        hdr.wide.added_sat = w |+| x;
        hdr.wide.subtracted_sat = w |-| x;
        hdr.wide.left = w << shift;
        hdr.wide.right = w >> shift;
        hdr.wide.logic = (w & ~x) | (w ^ x);
        hdr.wide.y_sum = y + z;
        hdr.wide.y_difference = y - z;
        hdr.wide.y_left = y << shift;
        hdr.wide.y_right = y >> shift;
        hdr.wide.y_logic = (y ^ z) & ~y;
        hdr.wide.y_joined = y[199:0] ++ w ++ z[519:328];
        hdr.wide.compared = 0;
        if (w < x) { hdr.wide.compared[0:0] = 1; }
        if (w == x) { hdr.wide.compared[1:1] = 1; }
        if (y >= z) { hdr.wide.compared[2:2] = 1; }
        if (y != z) { hdr.wide.compared[3:3] = 1; }
    }
}

control ValuesEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control ValuesUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ValuesDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.narrow);
        packet.emit(hdr.wide);
    }
}

V1Switch(ValuesParser(), ValuesVerify(), ValuesIngress(), ValuesEgress(), ValuesUpdate(), ValuesDeparser()) main;
