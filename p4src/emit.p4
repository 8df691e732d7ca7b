/* Egress: puts a sum into a flow's own connection. */
#ifndef EMIT_P4
#define EMIT_P4

#include <v1model.p4>
#include "include/headers.p4"

/* All of the first chunk but its bytes 5 and 16. */
#define KEPT_BY_STAMP 2048w0xffffffffff00ffffffffffffffffffff00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff

control Emit(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    /* Flow of rank `rank`: as its own packet would look, had it carried the sum. */
    action to_flow(bit<8> rank,
                   bit<8> psn_shift,
                   mac_t src_mac,
                   mac_t dst_mac,
                   ipv4_t src_ip,
                   ipv4_t dst_ip,
                   bit<16> udp_src_port,
                   qpn_t dest_qp) {
        meta.rank = rank;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.udp.src_port = udp_src_port;
        hdr.bth.dest_qp = dest_qp;
        hdr.bth.psn = (psn_t)(meta.first_psns >> psn_shift >> psn_shift >> psn_shift) + (psn_t)meta.index;
    }

    table emit {
        key = {
            meta.group:                   exact @name("group");
            standard_metadata.egress_rid: exact @name("rid");
        }
        actions = { to_flow; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_FLOWS;
    }

    /* The aggregation header says that this is a result (flags, byte 5) and whose flow it is on (rank, byte 16). BMv2
     * shifts by at most 255 bits at a time: 1912 = 8 * 239. */
    action stamp() {
        lanes_t marks = (((lanes_t)meta.result_flags) << 88) | (lanes_t)meta.rank;
        marks = marks << meta.stamp_shift << meta.stamp_shift << meta.stamp_shift << meta.stamp_shift;
        marks = marks << meta.stamp_shift << meta.stamp_shift << meta.stamp_shift << meta.stamp_shift;
        hdr.chunk[0].lanes = (hdr.chunk[0].lanes & KEPT_BY_STAMP) | marks;
    }

    apply {
        if (meta.verdict == EMIT_GROUP) {
            emit.apply();
        }
        hdr.bth.reserved = BTH_SUMMED;
        if (meta.index == 0) {
            stamp();
            if (meta.result_flags & FLAG_MISMATCH != 0) {
                /* All there will be of this message: a NIC hands over whole ones only. */
                hdr.bth.opcode = SEND_ONLY;
            }
        }
        /* NICs differ in where they ask for acknowledgements, and this packet is one rank's: nobody waits in vain. */
        if (hdr.bth.opcode == SEND_LAST || hdr.bth.opcode == SEND_ONLY) {
            hdr.bth.ack_req = 1;
        }
    }
}

#endif
