/* Egress: what was to be added already goes back to its sender, as an RNR NAK from its peer. */
#ifndef NOT_READY_P4
#define NOT_READY_P4

#include <v1model.p4>
#include "include/headers.p4"

control NotReady(inout headers_t hdr, in metadata_t meta) {
    action answer() {
        mac_t sender = hdr.ethernet.src;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = sender;

        ipv4_t address = hdr.ipv4.src;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = address;
        hdr.ipv4.total_length = 20 + ROCE_OVERHEAD + AETH_BYTES;
        hdr.ipv4.ttl = 64;
        hdr.udp.length = ROCE_OVERHEAD + AETH_BYTES;

        /* The PSN stays: it is the one that is awaited. */
        hdr.bth.opcode = ACKNOWLEDGE;
        hdr.bth.solicited = 0;
        hdr.bth.pad_count = 0;
        hdr.bth.resv8a = 0;
        hdr.bth.dest_qp = meta.ack_qp;
        hdr.bth.ack_req = 0;
        hdr.bth.reserved = 0;

        hdr.aeth.setValid();
        hdr.aeth.syndrome = meta.rnr_syndrome;
        hdr.aeth.msn = meta.message[23:0];
    }

    apply {
        answer();
    }
}

#endif
