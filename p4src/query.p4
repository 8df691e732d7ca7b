/* Registers cannot be read over P4Runtime on every target, so a packet-out asks and a packet-in answers. */
#ifndef QUERY_P4
#define QUERY_P4

#include <v1model.p4>
#include "include/headers.p4"

const bit<8> PACKET_OUT_SEND = 0;
const bit<8> PACKET_OUT_QUERY_SLOT = 1;

control Query(inout headers_t hdr,
              inout standard_metadata_t standard_metadata,
              register<bit<112>> slot_state,
              register<bit<48>> claimed_at) {
    bit<112> state = 0;
    bit<48> claimed = 0;

    action answer() {
        slot_state.read(state, hdr.packet_out.index);
        claimed_at.read(claimed, hdr.packet_out.index);
        hdr.packet_in.setValid();
        hdr.packet_in.op = hdr.packet_out.op;
        hdr.packet_in.index = hdr.packet_out.index;
        hdr.packet_in.generation = state[111:80];
        hdr.packet_in.message = state[79:48];
        hdr.packet_in.bitmap = state[47:16];
        hdr.packet_in.chunks = state[15:8] & 0x1f; /* slots.p4: the op is above them */
        hdr.packet_in.flags = state[7:0];
        hdr.packet_in.age = standard_metadata.ingress_global_timestamp - claimed;
        hdr.packet_out.setInvalid();
        standard_metadata.egress_spec = CPU_PORT;
    }

    action send() {
        standard_metadata.egress_spec = (port_t)hdr.packet_out.port;
        hdr.packet_out.setInvalid();
    }

    apply {
        if (hdr.packet_out.op == PACKET_OUT_QUERY_SLOT && hdr.packet_out.index < MAX_SLOTS) {
            answer();
        } else if (hdr.packet_out.op == PACKET_OUT_SEND) {
            send();
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}

#endif
