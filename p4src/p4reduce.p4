/* Slot-based gradient aggregation on RoCE v2 packets, without ending the hosts' connections (docs/protocol.md).
 *
 *   PacketParser -> Ingress: Membership -> ICRC check -> Placement -> Slots -> Forward
 *                                   |         |             |           |
 *                                foreign  Acknowledged   unplaced    EMIT_GROUP: one replica a flow
 *                -> Egress:  Emit (addresses, QP, PSN of the flow) or NotReady (an RNR NAK) -> ICRC -> PacketDeparser
 */
#include <core.p4>
#include <v1model.p4>

#include "include/sizes.p4"
#include "include/headers.p4"
#include "parser.p4"
#include "membership.p4"
#include "icrc.p4"
#include "placement.p4"
#include "stragglers.p4"
#include "slots.p4"
#include "forward.p4"
#include "query.p4"
#include "emit.p4"
#include "deparser.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<112>>(MAX_SLOTS) slot_state;
    register<bit<AWAITED_BITS>>(MAX_FLOWS) awaited_psns;
    register<bit<RECORD_BITS>>(MAX_FLOWS) latest_message;
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_rx;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) bad_icrc;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) unplaced;
    counter(MAX_FLOWS, CounterType.packets_and_bytes) passed;

    Membership() membership;
    Icrc() icrc;
    Acknowledged() acknowledged;
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
            if ((meta.member == DATA_FLOW && meta.whole_chunks && meta.check_icrc == 1)
                    || (meta.member == ACK_FLOW && meta.track == 1 && hdr.aeth.isValid() && hdr.icrc.isValid())) {
                icrc.apply(hdr, meta.chunks, expected_icrc);
                meta.corrupted = expected_icrc != hdr.icrc.value;
                if (meta.member == ACK_FLOW && !meta.corrupted) {
                    acknowledged.apply(hdr, meta, awaited_psns, latest_message);
                }
            }
            if (meta.member == DATA_FLOW) {
                if (meta.whole_chunks) {
                    if (meta.corrupted) {
                        bad_icrc.count((bit<32>)meta.flow);
                        meta.verdict = DISCARD;
                    } else {
                        placement.apply(hdr, meta, latest_message);
                    }
                }
                if (meta.verdict != DISCARD) {
                    if (!meta.placed) {
                        unplaced.count((bit<32>)meta.flow);
                        meta.verdict = DISCARD;
                    } else if (meta.op == OP_PASS) {
                        passed.count((bit<32>)meta.flow);
                    } else {
                        slots.apply(hdr, meta, standard_metadata, slot_state, awaited_psns);
                    }
                }
            }
            if (meta.verdict == DISCARD) {
                mark_to_drop(standard_metadata);
            } else if (meta.verdict == EMIT_GROUP) {
                standard_metadata.mcast_grp = meta.group;
            } else if (meta.verdict != NOT_READY) {
                forward.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) port_tx;

    Emit() emit;
    NotReady() not_ready;
    WithoutPayload() without_payload;
    Icrc() icrc;

    bit<8> chunks = 0;

    apply {
        if (meta.verdict == EMIT_GROUP || meta.verdict == EMIT_ALONE) {
            emit.apply(hdr, meta, standard_metadata);
            chunks = meta.chunks;
        } else if (meta.verdict == NOT_READY) {
            not_ready.apply(hdr, meta);
        }
        if (meta.verdict == EMIT_GROUP || meta.verdict == EMIT_ALONE || meta.verdict == NOT_READY) {
            icrc.apply(hdr, chunks, hdr.icrc.value);
        }
        if (meta.verdict == NOT_READY) {
            without_payload.apply(hdr);
        }
        if (meta.flood && standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        } else {
            port_tx.count((bit<32>)standard_metadata.egress_port);
        }
    }
}

V1Switch(PacketParser(), NoVerification(), SwitchIngress(), SwitchEgress(), Ipv4Checksum(), PacketDeparser()) main;
