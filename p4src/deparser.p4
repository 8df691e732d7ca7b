#ifndef DEPARSER_P4
#define DEPARSER_P4

#include <v1model.p4>
#include "include/headers.p4"

/* Nothing to verify: routers may drop on a bad IPv4 checksum, but the ICRC guards what we add. */
control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Ipv4Checksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.tcp);
        packet.emit(hdr.tree);
        packet.emit(hdr.bth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.chunk);
        packet.emit(hdr.icrc);
    }
}

#endif
