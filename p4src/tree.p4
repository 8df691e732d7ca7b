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

/* Ingress, for tree packets: whose they are, and for which slot. */
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
                meta.brings = SUM_OF_ALL;
            } else if (hdr.tree.kind == TREE_ASK) {
                meta.brings = QUESTION;
            }
            meta.placed = hdr.chunk[0].isValid()
                && (hdr.tree.kind == TREE_RESULT
                    || (hdr.tree.kind == TREE_PARTIAL && meta.from_leaf)
                    || (hdr.tree.kind == TREE_ASK && meta.from_spine))
                && hdr.tree.op != OP_PASS && hdr.tree.op <= OP_MAX_HALF
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

/* Ingress: to which spine a rack's sum goes. */
control Up(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_FLOWS, CounterType.packets_and_bytes) no_uplink;

    bit<8> bucket = meta.message[7:0] & (BUCKETS - 1);
    bool back = false;
    bit<16> again_group = AGAIN_GROUP + ((bit<16>)standard_metadata.ingress_port << 2);

    action to_spine(port_t port, bit<16> index) {
        standard_metadata.egress_spec = port;
        again_group = again_group + index;
    }

    action none() {
        meta.verdict = DISCARD;
        no_uplink.count(meta.flow);
    }

    table uplink {
        key = {
            meta.group: exact @name("group");
            bucket:     exact @name("bucket");
        }
        actions = { to_spine; none; }
        const default_action = none;
        size = TREE_ENTRIES;
    }

    apply {
        if (meta.brings == QUESTION) {
            /* Whoever asks is told. */
            standard_metadata.egress_spec = standard_metadata.ingress_port;
        } else {
            back = meta.verdict == SEND_UP_AND_BACK;
            uplink.apply();
            if (back && meta.verdict == DISCARD) {
                meta.verdict = NOT_READY;
                standard_metadata.egress_spec = standard_metadata.ingress_port;
            } else if (back) {
                standard_metadata.mcast_grp = again_group;
            }
        }
    }
}

/* Egress, on a leaf: a host's packet, or a question, becomes what its slot holds. */
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

/* Egress: the addresses of both ends of a link between switches. */
control TreeOut(inout headers_t hdr, in standard_metadata_t standard_metadata) {
    action over(mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
    }

    action reply() {
        hdr.tree.kind = TREE_ECHO_REPLY;
    }

    table link {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { over; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_PORTS;
    }

    apply {
        link.apply();
        if (hdr.tree.kind == TREE_ECHO_REQUEST) {
            reply();
        }
    }
}

#endif
