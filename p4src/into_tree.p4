/* Egress, on a leaf: a host's packet, or a question, becomes what its slot holds. */
#ifndef INTO_TREE_P4
#define INTO_TREE_P4

#include <v1model.p4>
#include "include/headers.p4"

control IntoTree(inout headers_t hdr, inout metadata_t meta) {
    action become() {
        hdr.tree.setValid();
        hdr.tree.opcode = hdr.bth.opcode;
        hdr.bth.setInvalid();
        hdr.udp.src_port = TREE_PORT;
        hdr.udp.dst_port = TREE_PORT;
        hdr.udp.length = hdr.udp.length + TREE_LONGER;
        hdr.ipv4.total_length = hdr.ipv4.total_length + TREE_LONGER;
    }

    action fill() {
        hdr.ipv4.ttl = 64;
        hdr.tree.version = TREE_VERSION;
        hdr.tree.kind = meta.up_kind;
        hdr.tree.op = meta.op;
        hdr.tree.index = meta.index;
        hdr.tree.flags = (meta.result_flags & FLAG_MISMATCH) | FLAG_PSN_VALID;
        hdr.tree.reserved = 0;
        hdr.tree.generation = meta.generation;
        hdr.tree.message = meta.message;
        hdr.tree.reserved_too = 0;
        hdr.tree.psn = (psn_t)(meta.first_psns >> meta.exit_psn_shift >> meta.exit_psn_shift >> meta.exit_psn_shift)
                       + (psn_t)meta.index;
    }

    apply {
        if (!hdr.tree.isValid()) {
            become();
        }
        fill();
    }
}

#endif
