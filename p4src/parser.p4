/* Ethernet / IPv4 / UDP 4791 / BTH / AETH or 0..16 chunks of 256 bytes / ICRC. Only Acknowledges and SENDs whose payload is
 * made of whole chunks are parsed further than the BTH: nothing else is ours, and everything else is forwarded as it is.
 * Between leaf and spine: Ethernet / IPv4 / UDP 53300 / tree header / 0..16 chunks / ICRC. */
#ifndef PARSER_P4
#define PARSER_P4

#include <v1model.p4>
#include "include/headers.p4"

/* The CPU port is chosen when a switch starts (--cpu-port); ours all start with this one. */
#define CPU_PORT 255

parser PacketParser(packet_in packet,
                    out headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    bit<16> payload;

    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition accept;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default:        accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        /* Neither options nor fragments (more to come, or an offset) can be RoCE v2 of ours. A host may read them all the same, so
         * what could be RoCE behind our back goes no further. Later fragments are nothing without the first. */
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments,
                          hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): parse_udp;
            (4, 5, 0, 0, PROTOCOL_TCP): parse_tcp;
            (4, 5, 1, 0, PROTOCOL_UDP): parse_first_fragment;
            (_, _, _, 0, PROTOCOL_UDP): parse_disguised;
            default:                    accept;
        }
    }

    state parse_first_fragment {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            ROCE_V2_PORT: parse_disguised;
            default:      accept;
        }
    }

    state parse_disguised {
        meta.disguised = true;
        transition accept;
    }

    state parse_tcp {
        packet.extract(hdr.tcp);
        meta.l4_ports = hdr.tcp.src ++ hdr.tcp.dst;
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.udp);
        meta.l4_ports = hdr.udp.src_port ++ hdr.udp.dst_port;
        transition select(hdr.udp.dst_port, hdr.ipv4.dst[31:16]) {
            (ROCE_V2_PORT, _):       parse_bth;
            (TREE_PORT, LINK_LOCAL): check_tree;
            default:                 accept;
        }
    }

    state check_tree {
        payload = hdr.udp.length - TREE_OVERHEAD;
        meta.chunks = payload[15:8];
        meta.chunks_left = payload[15:8];
        transition select(payload, hdr.ipv4.total_length - hdr.udp.length) {
            (0x0000 &&& 0xf0ff, 20): parse_tree; /* 0 to 15 chunks */
            (0x1000, 20):            parse_tree; /* 16 chunks */
            default:                 accept;     /* no switch of ours sent it: there is no route for it */
        }
    }

    state parse_tree {
        packet.extract(hdr.tree);
        transition select(meta.chunks) {
            0:       parse_icrc;
            default: parse_chunk;
        }
    }

    state parse_bth {
        packet.extract(hdr.bth);
        payload = hdr.udp.length - ROCE_OVERHEAD;
        meta.chunks = payload[15:8];
        meta.chunks_left = payload[15:8];
        transition select(hdr.bth.opcode) {
            SEND_FIRST:  check_payload;
            SEND_MIDDLE: check_payload;
            SEND_LAST:   check_payload;
            SEND_ONLY:   check_payload;
            ACKNOWLEDGE: check_aeth;
            default:     accept;
        }
    }

    state check_aeth {
        transition select(payload, hdr.ipv4.total_length - hdr.udp.length) {
            (AETH_BYTES, 20): parse_aeth;
            default:          accept;
        }
    }

    state parse_aeth {
        packet.extract(hdr.aeth);
        packet.extract(hdr.icrc);
        transition accept;
    }

    state check_payload {
        transition select(payload, hdr.ipv4.total_length - hdr.udp.length) {
            (0x0000, _):               accept;      /* no payload */
            (0x0000 &&& 0xf0ff, 20):   parse_chunk; /* 1 to 15 chunks */
            (0x1000, 20):              parse_chunk; /* 16 chunks */
            default:                   accept;
        }
    }

    state parse_chunk {
        packet.extract(hdr.chunk.next);
        meta.chunks_left = meta.chunks_left - 1;
        transition select(meta.chunks_left) {
            0:       parse_icrc;
            default: parse_chunk;
        }
    }

    state parse_icrc {
        packet.extract(hdr.icrc);
        meta.whole_chunks = true;
        transition accept;
    }
}

#endif
