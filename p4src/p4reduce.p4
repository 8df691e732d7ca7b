/* Slot-based gradient aggregation on RoCE v2 packets, without ending the hosts' connections (docs/protocol.md).
 *
 *   PacketParser -> Ingress: Edges -> Membership, Origin | Tree -> ICRC check -> Placement -> Slots -> Forward
 *                              |          |        |                    |             |           |
 *                           unnamed    foreign  spoofed            Acknowledged    unplaced    EMIT_GROUP: one replica a flow;
 *                                                                                              SEND_UP: to a spine
 *                -> Egress:  Emit (addresses, QP, PSN of the flow), IntoTree or NotReady (an RNR NAK) -> ICRC -> PacketDeparser
 */
#include <core.p4>
#include <v1model.p4>

#include "include/sizes.p4"
#include "include/headers.p4"
#include "parser.p4"
#include "edges.p4"
#include "membership.p4"
#include "origin.p4"
#include "tree.p4"
#include "icrc.p4"
#include "acknowledged.p4"
#include "placement.p4"
#include "slots.p4"
#include "up.p4"
#include "forward.p4"
#include "query.p4"
#include "emit.p4"
#include "into_tree.p4"
#include "tree_out.p4"
#include "not_ready.p4"
#include "without_payload.p4"
#include "deparser.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<112>>(MAX_SLOTS) slot_state;
    register<bit<48>>(MAX_SLOTS) claimed_at;
    register<bit<FIRST_PSNS_BITS>>(MAX_SLOTS) first_psns;
    register<bit<AWAITED_BITS>>(MAX_FLOWS) awaited_psns;
    register<bit<RECORD_BITS>>(MAX_FLOWS) latest_message;
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_rx;
    counter(MAX_PORTS, CounterType.packets_and_bytes) bad_echo;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) bad_icrc;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) unplaced;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) passed;

    Edges() edges;
    Membership() membership;
    Origin() origin;
    Tree() tree;
    Icrc() icrc;
    Acknowledged() acknowledged;
    Placement() placement;
    Slots() slots;
    Up() up;
    Forward() forward;
    Query() query;

    bit<32> expected_icrc = 0;
    bit<8> icrc_over = 0;

    apply {
        if (hdr.packet_out.isValid()) {
            query.apply(hdr, standard_metadata, slot_state, claimed_at);
        } else {
            meta.in_port = (bit<32>)standard_metadata.ingress_port;
            port_rx.count(meta.in_port);
            edges.apply(meta, standard_metadata);
            if (meta.verdict == FORWARD) {
                if (hdr.bth.isValid()) {
                    membership.apply(hdr, meta, standard_metadata);
                }
                if (meta.verdict == FORWARD) {
                    origin.apply(hdr, meta, standard_metadata);
                }
                if (hdr.tree.isValid()) {
                    tree.apply(hdr, meta, standard_metadata);
                }
            }
            icrc_over = meta.chunks;
            if (meta.member == ACK_FLOW) {
                icrc_over = ICRC_AETH;
            }
            if ((meta.member == DATA_FLOW && meta.whole_chunks && meta.check_icrc == 1)
                    || (meta.member == ACK_FLOW && meta.track == 1 && hdr.aeth.isValid() && hdr.icrc.isValid())
                    || (hdr.tree.isValid() && meta.verdict != DISCARD)) {
                icrc.apply(hdr, icrc_over, expected_icrc);
                meta.corrupted = expected_icrc != hdr.icrc.value;
                if (meta.member == ACK_FLOW && !meta.corrupted) {
                    acknowledged.apply(hdr, meta, awaited_psns, latest_message);
                }
            }
            if (meta.member == DATA_FLOW || hdr.tree.isValid()) {
                if (meta.corrupted) {
                    if (meta.verdict == FORWARD) {
                        bad_icrc.count(meta.flow);
                    } else {
                        bad_echo.count(meta.in_port);
                    }
                    meta.verdict = DISCARD;
                } else if (meta.member == DATA_FLOW && meta.whole_chunks) {
                    placement.apply(hdr, meta, latest_message, first_psns);
                }
                if (meta.verdict == FORWARD) {
                    if (!meta.placed) {
                        unplaced.count(meta.flow);
                        meta.verdict = DISCARD;
                    } else if (meta.op == OP_PASS) {
                        passed.count(meta.flow);
                    } else {
                        slots.apply(hdr, meta, standard_metadata, slot_state, claimed_at, awaited_psns, first_psns);
                    }
                }
            }
            if (meta.verdict == SEND_UP || meta.verdict == SEND_UP_AND_BACK) {
                up.apply(meta, standard_metadata);
            } else if (meta.verdict == NOT_READY || (meta.verdict == EMIT_ALONE && meta.from_leaf)) {
                standard_metadata.egress_spec = standard_metadata.ingress_port;
            } else if (meta.verdict == EMIT_GROUP || meta.verdict == ASK_LEAVES) {
                standard_metadata.mcast_grp = meta.group;
            } else if (meta.verdict == FORWARD || meta.verdict == EMIT_ALONE) {
                forward.apply(hdr, meta, standard_metadata);
            }
            if (meta.verdict == DISCARD) {
                mark_to_drop(standard_metadata);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_tx;

    Emit() emit;
    IntoTree() into_tree;
    TreeOut() tree_out;
    NotReady() not_ready;
    WithoutPayload() without_payload;
    Icrc() icrc;

    bit<8> icrc_over = meta.chunks;
    bit<32> icrc_value = 0; /* not the header's field itself: Icrc would get a copy of all headers then */

    apply {
        if (meta.verdict == SEND_UP_AND_BACK) {
            meta.verdict = standard_metadata.egress_rid == RID_UP ? SEND_UP : NOT_READY;
        }
        if (meta.verdict == EMIT_GROUP || meta.verdict == EMIT_ALONE || meta.verdict == ASK_LEAVES) {
            emit.apply(hdr, meta, standard_metadata);
        } else if (meta.verdict == SEND_UP) {
            into_tree.apply(hdr, meta);
        } else if (meta.verdict == NOT_READY) {
            not_ready.apply(hdr, meta);
            icrc_over = ICRC_AETH;
        }
        if (hdr.tree.isValid()) {
            tree_out.apply(hdr, standard_metadata);
        }
        if (meta.verdict != FORWARD && meta.verdict != DISCARD && meta.verdict != TO_CPU) {
            /* RoCE v2 has none; what was damaged on the way, or was another packet's, must not stay. */
            hdr.udp.checksum = 0;
            icrc.apply(hdr, icrc_over, icrc_value);
            hdr.icrc.value = icrc_value;
        }
        if (meta.verdict == NOT_READY) {
            without_payload.apply(hdr);
        }
        if (meta.verdict == DISCARD
                || (meta.flood && standard_metadata.egress_port == standard_metadata.ingress_port)) {
            mark_to_drop(standard_metadata);
        } else {
            port_tx.count((bit<32>)standard_metadata.egress_port);
        }
    }
}

V1Switch(PacketParser(), NoVerification(), SwitchIngress(), SwitchEgress(), Ipv4Checksum(), PacketDeparser()) main;
