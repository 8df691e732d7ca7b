/* What is on the wire. Layouts are documented in docs/protocol.md; host_agent/wire/ holds the Python side and
 * tests/p4src/test_build.py holds the two together. */
#ifndef HEADERS_P4
#define HEADERS_P4

#include "sizes.p4"

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;
typedef bit<9>  port_t;
typedef bit<24> psn_t;
typedef bit<24> qpn_t;
typedef bit<32> message_t;
typedef bit<32> generation_t;
typedef bit<16> flow_index_t;
typedef bit<32> rank_set_t;      /* bit r: rank r has contributed */
typedef bit<32> slot_t;
typedef bit<CHUNK_BITS> lanes_t; /* 64 signed 32-bit lanes, big endian */

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8>  PROTOCOL_TCP = 6;
const bit<8>  PROTOCOL_UDP = 17;
const bit<16> ROCE_V2_PORT = 4791;

/* Between leaf and spine: link-local addresses (RFC 3927), so that no host's traffic can be meant. */
const bit<16> TREE_PORT = 53300;
const bit<16> LINK_LOCAL = 0xa9fe; /* 169.254.0.0/16 */

/* BTH opcodes of the reliable connection service (InfiniBand spec vol. 1, 9.2). */
const bit<8> SEND_FIRST  = 0x00;
const bit<8> SEND_MIDDLE = 0x01;
const bit<8> SEND_LAST   = 0x02;
const bit<8> SEND_ONLY   = 0x04;
const bit<8> ACKNOWLEDGE = 0x11;
const bit<8> CONGESTION_NOTIFICATION = 0x81; /* CNP of RoCE v2 (annex A17) */

const bit<16> ROCE_OVERHEAD = 8 + 12 + 4; /* UDP, BTH, ICRC */
const bit<16> TREE_OVERHEAD = 8 + 20 + 4; /* UDP, tree header, ICRC */
const bit<16> TREE_LONGER = 8; /* than a BTH */
const bit<16> AETH_BYTES = 4;

/* AETH syndromes: what the three upper bits say, and one with all its bits (InfiniBand spec vol. 1, 9.7.5.2). */
const bit<8> AETH_KIND = 0xe0;
const bit<8> AETH_ACK = 0x00;
const bit<8> AETH_RNR_NAK = 0x20;
const bit<8> AETH_NAK_SEQUENCE_ERROR = 0x60;

const bit<32> AGGREGATION_MAGIC = 0x50345244; /* "P4RD" */
const bit<8>  AGGREGATION_VERSION = 1;

/* What the switch does with a message's lanes. */
const bit<8> OP_PASS = 0;        /* forward untouched: ring phases */
const bit<8> OP_SUM  = 1;
const bit<8> OP_MAX  = 2;
const bit<8> OP_SUM_HALF = 3; /* of binary16: p4src/accumulator.p4 */
const bit<8> OP_MAX_HALF = 4; /* of lanes of 16 bits */
const bit<8> OP_LAST = OP_MAX_HALF; /* none above it is known; a slot has 3 bits for it */

/* In BTH's reserved bits, which receivers ignore: set on every packet of a result, so that our own hosts never take
 * another packet for one, whatever path it came. No host may send it. */
const bit<7> BTH_SUMMED = 0x40;

const bit<8> FLAG_RESULT   = 0x01; /* of a slot: it holds the sum of all workers */
const bit<8> FLAG_MISMATCH = 0x02;
const bit<8> FLAG_PSN_VALID = 0x04; /* on a tree packet: its PSN means something */

/* What a tree packet is. */
const bit<8> TREE_VERSION = 1;
const bit<8> TREE_PARTIAL      = 1; /* up: the sum of a rack's workers */
const bit<8> TREE_RESULT       = 2; /* down: the sum of all; up: the same, from a leaf that was asked */
const bit<8> TREE_ASK          = 3; /* down: who has this? */
const bit<8> TREE_ECHO_REQUEST = 4; /* from the controller through a link, */
const bit<8> TREE_ECHO_REPLY   = 5; /* and back */

header ethernet_t {
    mac_t   dst;
    mac_t   src;
    bit<16> ether_type;
}

header ipv4_header_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<1>  reserved;
    bit<1>  dont_fragment;
    bit<1>  more_fragments;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ipv4_t  src;
    ipv4_t  dst;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

header bth_t {
    bit<8>  opcode;
    bit<1>  solicited;
    bit<1>  mig_req;
    bit<2>  pad_count;
    bit<4>  transport_version;
    bit<16> partition_key;
    bit<8>  resv8a;              /* FECN, BECN and reserved bits: masked in the ICRC */
    qpn_t   dest_qp;
    bit<1>  ack_req;
    bit<7>  reserved;
    psn_t   psn;
}

/* Leaf to spine and back, in place of the BTH. The ICRC's order is: identity, IPv4, UDP, contents, chunks. */
header tree_t {
    bit<8>       version;
    bit<8>       kind;
    bit<8>       opcode;         /* BTH's, of the host packet that this stands for */
    bit<8>       op;             /* but OP_PASS */
    bit<8>       index;          /* of the packet in its message */
    bit<8>       flags;
    bit<16>      reserved;
    generation_t generation;
    message_t    message;        /* of an echo: what tells it from others */
    bit<8>       reserved_too;
    psn_t        psn;            /* this packet's on the flow that leaves (up) or enters (down) the rack */
}

/* Source and destination port of TCP. */
header tcp_ports_t {
    bit<16> src;
    bit<16> dst;
}

/* Of an Acknowledge, after the BTH. */
header aeth_t {
    bit<8>  syndrome;
    bit<24> msn;                 /* messages that the receiver has completed */
}

header chunk_t {
    lanes_t lanes;
}

header icrc_t {
    bit<32> value;               /* CRC-32, least significant byte first */
}

const bit<8> PACKET_IN_ECHO = 2;

/* To the program from the controller: send a frame out of a port (op 0), or answer with the state of a slot (op 1). */
@controller_header("packet_out")
header packet_out_t {
    bit<8>  op;
    bit<16> port;
    bit<32> index;
}

/* From the program to the controller: the answer (op 1), or an echo that came back (op 2). */
@controller_header("packet_in")
header packet_in_t {
    bit<8>       op;
    bit<32>      index;
    generation_t generation;     /* the slot's tag */
    message_t    message;
    rank_set_t   bitmap;
    bit<8>       chunks;
    bit<8>       flags;
    bit<48>      age;            /* microseconds since the slot was claimed */
}

struct headers_t {
    packet_out_t        packet_out;
    packet_in_t         packet_in;
    ethernet_t          ethernet;
    ipv4_header_t       ipv4;
    udp_t               udp;
    tcp_ports_t         tcp;
    tree_t              tree;
    bth_t               bth;
    aeth_t              aeth;
    chunk_t[MAX_CHUNKS] chunk;
    icrc_t              icrc;
}

/* What becomes of a packet after ingress. */
typedef bit<4> verdict_t;
const verdict_t FORWARD    = 0;  /* as any router would */
const verdict_t DISCARD    = 1;  /* dropped, and counted where that was decided */
const verdict_t EMIT_ALONE = 2;  /* forwarded with the stored sum in place of its payload */
const verdict_t EMIT_GROUP = 3;  /* the sum, to every flow of the job */
const verdict_t NOT_READY  = 4;  /* back to its sender, as an RNR NAK */
const verdict_t SEND_UP    = 5;  /* the slot's sum, to a spine */
const verdict_t SEND_UP_AND_BACK = 6; /* SEND_UP and NOT_READY */
const verdict_t ASK_LEAVES = 7;  /* to the leaves that have not contributed */
const verdict_t REFLECT    = 8;  /* back through the link it came by */
const verdict_t TO_CPU     = 9;

/* Who a RoCE v2 packet belongs to. */
typedef bit<3> member_t;
const member_t NO_MEMBER = 0;
const member_t DATA_FLOW = 1;    /* rank r to its successor */
const member_t ACK_FLOW  = 2;    /* the acknowledgements back */
const member_t FOREIGN   = 3;    /* aimed at a job's QP, but not from where its peer is; or from nobody that it says it is from */
const member_t PASSING   = 4;    /* between a member here and its peer in another rack, whose leaf deals with it */

/* What a packet brings to its slot. */
typedef bit<2> brings_t;
const brings_t CONTRIBUTION = 0; /* of a rank; on a spine, a rack's partial */
const brings_t RESULT       = 2; /* the sum of all workers */
const brings_t ASK          = 3; /* the question for it */

/* Where the switch stands in the packet's job. */
typedef bit<2> at_t;
const at_t RACK  = 0;            /* all workers are behind it */
const at_t LEAF  = 1;            /* some of them are */
const at_t SPINE = 2;            /* leaves are */

/* What the accumulators work with (accumulator.p4): once for all chunks. BMv2 clears each field of the metadata for each packet and
 * copies it for each replica, whether it is used or not; as variables of Accumulator, they were there sixteen times. */
struct work_t {
    lanes_t chosen;              /* in lanes that something is done to, a bit, then as many ones as it takes */
    lanes_t shift;
    lanes_t number;
    lanes_t negative;
    lanes_t first;
    lanes_t second;
}

struct metadata_t {
    work_t       work;
    bit<32>      in_port;        /* where it came in, as wide as an index into counters */
    verdict_t    verdict;
    member_t     member;
    bool         flood;
    bool         disguised;      /* it may be RoCE v2, but in a form that cannot be checked here */
    bool         whole_chunks;   /* the payload was parsed into chunks and an ICRC */
    bool         corrupted;      /* the ICRC was checked, and is wrong */
    bit<8>       chunks;
    bit<8>       chunks_left;
    bit<32>      l4_ports;       /* of UDP or TCP: for ECMP */
    bit<16>      ecmp_group;     /* 0: one way only */
    bit<16>      ecmp_index;
    bool         fabric_port;    /* the packet came from another switch */
    ipv4_t       host_ip;        /* the packet came from this host; 0: from another switch */
    /* from the flow table */
    bit<32>      flow;           /* as wide as an index into counters and registers */
    bit<16>      job;
    generation_t generation;
    bit<8>       rank;
    rank_set_t   rank_bit;
    rank_set_t   all_ranks;
    slot_t       region;         /* the job's first slot */
    bit<32>      window_mask;    /* 2W - 1 */
    bit<8>       packets_shift;  /* log2 P */
    bit<8>       psn_shift;      /* 8 * rank */
    bit<16>      group;          /* multicast group: one replica a flow, with rid rank + 1 */
    bit<1>       check_icrc;
    psn_t        first_psn;      /* of the flow's QP: awaited before anything was acknowledged */
    qpn_t        ack_qp;         /* the sender's QP */
    bit<8>       rnr_syndrome;   /* RNR NAK and timer for what comes too early; 0: its sender wants none */
    bit<1>       track;          /* remember what the acknowledgement says */
    at_t         at;
    bit<8>       exit_psn_shift; /* 8 * local rank of the flow that leaves the rack */
    /* of a tree packet */
    bool         from_leaf;
    bool         from_spine;
    brings_t     brings;
    psn_t        psn;
    bool         psn_valid;
    bit<8>       tree_flags;
    /* from placement: which packet of which message this is */
    bool         placed;
    message_t    message;
    bit<8>       packets;        /* in the message */
    bit<8>       index;          /* of this packet in the message */
    bit<8>       op;
    bit<152>     signature;
    bit<FIRST_PSNS_BITS> first_psns;
    /* from the slot rules */
    bit<8>       result_flags;
    rank_set_t   bitmap;
    bit<8>       up_kind;        /* of what is sent up */
    bit<8>       stamp_shift;    /* an eighth of the way to where egress puts flags and rank */
}

#endif
