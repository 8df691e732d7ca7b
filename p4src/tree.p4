/* Jobs whose workers are in several racks (docs/protocol.md, "Several racks"). A leaf adds up its own rack's workers and sends the
 * partial sum to a spine, which adds up the leaves' by the same five rules; the sum of all comes back to each leaf.
 *
 *            leaf: all of the rack there           PARTIAL ──►  spine: all leaves there
 *            leaf: stores, emits on its flows      ◄── RESULT
 *            leaf: stored sum, or partial again    ◄── ASK      spine: a partial came again, others lack
 */
#ifndef TREE_P4
#define TREE_P4

#include <v1model.p4>
#include "include/headers.p4"

/* Ingress: whose a tree packet is, and for which slot. */
control Tree(inout headers_t hdr,
             inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) no_job; /* nor an echo: dropped */

    /* On a spine: from leaf `rank` of the job's. */
    action from_leaf(flow_index_t flow,
                     bit<8> rank,
                     rank_set_t rank_bit,
                     rank_set_t all_ranks,
                     slot_t region,
                     bit<32> window_mask,
                     bit<8> packets_shift,
                     bit<8> psn_shift,
                     bit<16> group) {
        meta.from_leaf = true;
        meta.at = SPINE;
        meta.flow = (bit<32>)flow;
        meta.rank = rank;
        meta.rank_bit = rank_bit;
        meta.all_ranks = all_ranks;
        meta.region = region;
        meta.window_mask = window_mask;
        meta.packets_shift = packets_shift;
        meta.psn_shift = psn_shift;
        meta.group = group;
    }

    /* On a leaf. `psn_shift` is that of the flow that leaves the rack: where the sums are emitted, the flow that enters takes its
     * place. */
    action from_spine(flow_index_t flow,
                      rank_set_t all_ranks,
                      slot_t region,
                      bit<32> window_mask,
                      bit<8> packets_shift,
                      bit<8> psn_shift,
                      bit<16> group) {
        meta.from_spine = true;
        meta.at = LEAF;
        meta.flow = (bit<32>)flow;
        meta.all_ranks = all_ranks;
        meta.region = region;
        meta.window_mask = window_mask;
        meta.packets_shift = packets_shift;
        meta.psn_shift = psn_shift;
        meta.exit_psn_shift = psn_shift;
        meta.group = group;
    }

    table job {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.tree.generation:            exact @name("generation");
        }
        actions = { from_leaf; from_spine; NoAction; }
        const default_action = NoAction;
        size = TREE_ENTRIES;
    }

    action read_header() {
        meta.generation = hdr.tree.generation;
        meta.message = hdr.tree.message;
        meta.index = hdr.tree.index;
        meta.op = hdr.tree.op;
        meta.psn = hdr.tree.psn;
        meta.psn_valid = hdr.tree.flags & FLAG_PSN_VALID != 0;
        meta.tree_flags = hdr.tree.flags & FLAG_MISMATCH;
        meta.signature = hdr.chunk[0].lanes[1911:1760];
    }

    action turn_around() {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        meta.verdict = REFLECT;
    }

    action to_controller() {
        hdr.packet_in.setValid();
        hdr.packet_in.op = PACKET_IN_ECHO;
        hdr.packet_in.index = hdr.tree.message;
        standard_metadata.egress_spec = CPU_PORT;
        meta.verdict = TO_CPU;
    }

    apply {
        if (!meta.fabric_port || hdr.tree.version != TREE_VERSION || !meta.whole_chunks) {
            meta.verdict = DISCARD;
        } else if (hdr.tree.kind == TREE_ECHO_REQUEST) {
            turn_around();
        } else if (hdr.tree.kind == TREE_ECHO_REPLY) {
            to_controller();
        } else if (job.apply().hit) {
            read_header();
            if (hdr.tree.kind == TREE_RESULT) {
                meta.brings = RESULT;
            } else if (hdr.tree.kind == TREE_ASK) {
                meta.brings = ASK;
            }
            meta.placed = hdr.chunk[0].isValid()
                && (hdr.tree.kind == TREE_RESULT
                    || (hdr.tree.kind == TREE_PARTIAL && meta.from_leaf)
                    || (hdr.tree.kind == TREE_ASK && meta.from_spine))
                && hdr.tree.op != OP_PASS && hdr.tree.op <= OP_LAST
                /* No leaf has a sum of any other (placement.p4), and slots compare serial numbers here, too. */
                && hdr.tree.message[31:31] == 0
                && hdr.tree.index < (8w1 << meta.packets_shift);
        } else {
            meta.verdict = DISCARD;
        }
        if (meta.verdict == DISCARD) {
            no_job.count(meta.in_port);
        }
    }
}

#endif
