/* Slot-based gradient aggregation on RoCE v2 packets, without ending the hosts' connections (docs/protocol.md).
 *
 *   PacketParser -> Ingress: Membership -> ICRC check -> Placement -> Slots -> Forward
 *                                   |                       |           |
 *                                foreign                 unplaced    EMIT_GROUP: one replica a flow
 *                -> Egress:  Emit (addresses, QP, PSN, ICRC of the flow) -> PacketDeparser
 */
#include <core.p4>
#include <v1model.p4>

#include "include/sizes.p4"
#include "include/headers.p4"
#include "parser.p4"
#include "membership.p4"
#include "icrc.p4"
#include "placement.p4"
#include "slots.p4"
#include "forward.p4"
#include "query.p4"
#include "emit.p4"
#include "deparser.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<112>>(MAX_SLOTS) slot_state;
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_rx;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) bad_icrc;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) unplaced;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) passed;

    Membership() membership;
    Icrc() icrc;
    Placement() placement;
    Slots() slots;
    Forward() forward;
    Query() query;

    bit<32> expected_icrc = 0;

    apply {
        if (hdr.packet_out.isValid()) {
            query.apply(hdr, standard_metadata, slot_state);
        } else {
            port_rx.count((bit<32>)standard_metadata.ingress_port);
            if (hdr.bth.isValid()) {
                membership.apply(hdr, meta, standard_metadata);
            }
            if (meta.member == DATA_FLOW) {
                if (meta.whole_chunks) {
                    if (meta.check_icrc == 1) {
                        icrc.apply(hdr, meta, expected_icrc);
                    }
                    if (meta.check_icrc == 1 && expected_icrc != hdr.icrc.value) {
                        bad_icrc.count((bit<32>)meta.flow);
                        meta.verdict = DISCARD;
                    } else {
                        placement.apply(hdr, meta);
                    }
                }
                if (meta.verdict != DISCARD) {
                    if (!meta.placed) {
                        unplaced.count((bit<32>)meta.flow);
                        meta.verdict = DISCARD;
                    } else if (meta.op == OP_PASS) {
                        passed.count((bit<32>)meta.flow);
                    } else {
                        slots.apply(hdr, meta, slot_state);
                    }
                }
            }
            if (meta.verdict == DISCARD) {
                mark_to_drop(standard_metadata);
            } else if (meta.verdict == EMIT_GROUP) {
                standard_metadata.mcast_grp = meta.group;
            } else {
                forward.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_tx;

    Emit() emit;

    apply {
        if (meta.verdict == EMIT_GROUP || meta.verdict == EMIT_ALONE) {
            emit.apply(hdr, meta, standard_metadata);
        }
        if (meta.flood && standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        } else {
            port_tx.count((bit<32>)standard_metadata.egress_port);
        }
    }
}

V1Switch(PacketParser(), NoVerification(), SwitchIngress(), SwitchEgress(), Ipv4Checksum(), PacketDeparser()) main;
