/* Egress: puts a sum into a flow's own connection. */
#ifndef EMIT_P4
#define EMIT_P4

#include <v1model.p4>
#include "include/headers.p4"

/* All of the first chunk but its bytes 5 and 16. */
#define KEPT_BY_STAMP 2048w0xffffffffff00ffffffffffffffffffff00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff

control Emit(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    bit<16> replica = standard_metadata.egress_rid;
    rank_set_t leaf = 0;
    rank_set_t predecessor = 0;
    psn_t psn = 0;

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
        meta.psn_valid = meta.psn_valid || psn_shift != meta.psn_shift;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.udp.src_port = udp_src_port;
        hdr.bth.dest_qp = dest_qp;
        hdr.bth.psn = (psn_t)(meta.first_psns >> psn_shift >> psn_shift >> psn_shift) + (psn_t)meta.index;
    }

    /* To a leaf. `predecessor_bit` and `psn_shift` are of the leaf before it on the ring, whose exit flow enters its rack. */
    action to_leaf(rank_set_t leaf_bit, rank_set_t predecessor_bit, bit<8> psn_shift) {
        leaf = leaf_bit;
        predecessor = predecessor_bit;
        psn = (psn_t)(meta.first_psns >> psn_shift >> psn_shift >> psn_shift);
    }

    table emit {
        key = {
            meta.group: exact @name("group");
            replica:    exact @name("rid");
        }
        actions = { to_flow; to_leaf; @defaultonly NoAction; }
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

    /* What came from a spine leaves as the host packet that it stands for. */
    action out_of_tree() {
        hdr.bth.setValid();
        hdr.bth.opcode = hdr.tree.opcode;
        hdr.bth.solicited = 0;
        hdr.bth.mig_req = 0;
        hdr.bth.pad_count = 0;
        hdr.bth.transport_version = 0;
        hdr.bth.partition_key = 0xffff;
        hdr.bth.resv8a = 0;
        hdr.bth.ack_req = 0;
        hdr.tree.setInvalid();
        hdr.udp.dst_port = ROCE_V2_PORT;
        hdr.udp.length = hdr.udp.length - TREE_LONGER;
        hdr.ipv4.total_length = hdr.ipv4.total_length - TREE_LONGER;
    }

    /* The sum of all leaves; or the question who has it, to those that have not contributed. */
    action result() {
        hdr.tree.kind = TREE_RESULT;
        hdr.tree.flags = meta.result_flags & FLAG_MISMATCH;
        hdr.tree.psn = 0;
    }

    /* The predecessor has told it; else the register has what an older message left. */
    action tell_psn() {
        hdr.tree.flags = hdr.tree.flags | FLAG_PSN_VALID;
        hdr.tree.psn = psn;
    }

    apply {
        if (hdr.tree.isValid() && !meta.from_leaf) {
            out_of_tree();
        }
        if (meta.from_leaf && meta.verdict == EMIT_ALONE) {
            replica = (bit<16>)meta.rank + 1;
        }
        if (meta.from_leaf || meta.verdict == EMIT_GROUP) {
            emit.apply();
        }
        if (meta.from_leaf && hdr.tree.isValid()) {
            result();
            if (meta.bitmap & predecessor != 0) {
                tell_psn();
            }
            if (meta.verdict == ASK_LEAVES) {
                hdr.tree.kind = TREE_ASK;
                if (meta.bitmap & leaf != 0) {
                    meta.verdict = DISCARD;
                }
            }
        } else if (hdr.bth.isValid()) {
            if (meta.from_spine && !meta.psn_valid) {
                /* The flow that enters: its sender will ask, and its own leaf will answer. */
                meta.verdict = DISCARD;
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
}

#endif
