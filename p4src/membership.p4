/* Which job, if any, a RoCE v2 packet belongs to.
 *
 *      packet --> flow --hit--> data flow | ACK flow
 *                  |
 *                 miss --> member_qp --hit--> foreign: dropped, counted
 *                            |
 *                           miss --> forwarded as in any router
 */
#ifndef MEMBERSHIP_P4
#define MEMBERSHIP_P4

#include <v1model.p4>
#include "include/headers.p4"

control Membership(inout headers_t hdr,
                   inout metadata_t meta,
                   in standard_metadata_t standard_metadata) {
    counter(MAX_FLOWS, CounterType.packets_and_bytes) foreign;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) acks;

    /* Data of rank `rank`, on its way to its successor on the ring. Its bit and its shift are those of its place among the job's
     * workers in this rack. */
    action data_flow(flow_index_t flow,
                     bit<16> job,
                     generation_t generation,
                     bit<8> rank,
                     rank_set_t rank_bit,
                     rank_set_t all_ranks,
                     slot_t region,
                     bit<32> window_mask,
                     bit<8> packets_shift,
                     bit<8> psn_shift,
                     bit<16> group,
                     bit<1> check_icrc,
                     psn_t first_psn,
                     qpn_t ack_qp,
                     bit<8> rnr_syndrome,
                     bit<1> two_level,
                     bit<8> exit_psn_shift) {
        meta.member = DATA_FLOW;
        meta.flow = (bit<32>)flow;
        meta.job = job;
        meta.generation = generation;
        meta.rank = rank;
        meta.rank_bit = rank_bit;
        meta.all_ranks = all_ranks;
        meta.region = region;
        meta.window_mask = window_mask;
        meta.packets_shift = packets_shift;
        meta.psn_shift = psn_shift;
        meta.group = group;
        meta.check_icrc = check_icrc;
        meta.first_psn = first_psn;
        meta.ack_qp = ack_qp;
        meta.rnr_syndrome = rnr_syndrome;
        meta.at = (at_t)two_level;
        meta.exit_psn_shift = exit_psn_shift;
    }

    /* Acknowledgements of flow `flow`, from the successor back. They pass through untouched. */
    action ack_flow(flow_index_t flow, generation_t generation, bit<1> track, psn_t first_psn) {
        meta.member = ACK_FLOW;
        meta.flow = (bit<32>)flow;
        meta.generation = generation;
        meta.track = track;
        meta.first_psn = first_psn;
    }

    /* Between a worker in this rack and its peer in another, whose leaf has done what is to be done, or will. */
    action pass_on() {
        meta.member = PASSING;
    }

    table flow {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.ipv4.src:                   exact @name("src_ip");
            hdr.ipv4.dst:                   exact @name("dst_ip");
            hdr.bth.dest_qp:                exact @name("dest_qp");
        }
        actions = { data_flow; ack_flow; pass_on; NoAction; }
        const default_action = NoAction;
        size = FLOW_ENTRIES;
    }

    /* The QP is a job's, and this packet came from the wrong port or address. */
    action not_from_its_peer(flow_index_t of_flow) {
        meta.member = FOREIGN;
        meta.flow = (bit<32>)of_flow;
    }

    table member_qp {
        key = {
            hdr.ipv4.dst:    exact @name("dst_ip");
            hdr.bth.dest_qp: exact @name("dest_qp");
        }
        actions = { not_from_its_peer; NoAction; }
        const default_action = NoAction;
        size = MEMBER_QP_ENTRIES;
    }

    apply {
        if (!flow.apply().hit) {
            member_qp.apply();
        }
        if (hdr.bth.opcode == CONGESTION_NOTIFICATION) {
            /* It says only that a mark was seen, and slows its receiver's NIC down: either way, as in any router. */
            if (meta.member != FOREIGN) {
                meta.member = NO_MEMBER;
            }
        } else if (meta.member == ACK_FLOW) {
            if (hdr.bth.opcode == ACKNOWLEDGE) {
                acks.count(meta.flow);
            } else {
                meta.member = FOREIGN;
            }
        }
        if (meta.member == FOREIGN) {
            meta.verdict = DISCARD;
            foreign.count(meta.flow);
        }
    }
}

#endif
