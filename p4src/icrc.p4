/* The invariant CRC of a RoCE v2 packet: CRC-32 over eight bytes of ones (in place of the LRH) and the packet from the IP header
 * on, with the fields that routers may change as ones (InfiniBand spec, annex A17.3.3). It is sent least significant byte first.
 *
 * On a tree packet, the first eight bytes of the tree header take the place of the ones, and the others that of the BTH.
 *
 * A field list is fixed when the program is compiled, so there is one action for every number of chunks, for either kind of packet,
 * and one for an AETH. They list the fields themselves: to put those of the BTH into one variable took BMv2 a microsecond.
 */
#ifndef ICRC_P4
#define ICRC_P4

#include <v1model.p4>
#include "include/headers.p4"

#define ICRC_AETH 17 /* in place of a number of chunks */

#define ICRC_IP_UDP \
    hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_length, hdr.ipv4.identification, \
    hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, \
    8w0xff, hdr.ipv4.protocol, 16w0xffff, hdr.ipv4.src, hdr.ipv4.dst, \
    hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, 16w0xffff

#define ICRC_BTH \
    64w0xffffffffffffffff, ICRC_IP_UDP, \
    hdr.bth.opcode, hdr.bth.solicited, hdr.bth.mig_req, hdr.bth.pad_count, hdr.bth.transport_version, hdr.bth.partition_key, \
    8w0xff, hdr.bth.dest_qp, hdr.bth.ack_req, hdr.bth.reserved, hdr.bth.psn

#define ICRC_TREE \
    hdr.tree.version, hdr.tree.kind, hdr.tree.opcode, hdr.tree.op, hdr.tree.index, hdr.tree.flags, hdr.tree.reserved, \
    ICRC_IP_UDP, \
    hdr.tree.generation, hdr.tree.message, hdr.tree.reserved_too, hdr.tree.psn

#define ICRC_CHUNKS_1 hdr.chunk[0].lanes
#define ICRC_CHUNKS_2 ICRC_CHUNKS_1, hdr.chunk[1].lanes
#define ICRC_CHUNKS_3 ICRC_CHUNKS_2, hdr.chunk[2].lanes
#define ICRC_CHUNKS_4 ICRC_CHUNKS_3, hdr.chunk[3].lanes
#define ICRC_CHUNKS_5 ICRC_CHUNKS_4, hdr.chunk[4].lanes
#define ICRC_CHUNKS_6 ICRC_CHUNKS_5, hdr.chunk[5].lanes
#define ICRC_CHUNKS_7 ICRC_CHUNKS_6, hdr.chunk[6].lanes
#define ICRC_CHUNKS_8 ICRC_CHUNKS_7, hdr.chunk[7].lanes
#define ICRC_CHUNKS_9 ICRC_CHUNKS_8, hdr.chunk[8].lanes
#define ICRC_CHUNKS_10 ICRC_CHUNKS_9, hdr.chunk[9].lanes
#define ICRC_CHUNKS_11 ICRC_CHUNKS_10, hdr.chunk[10].lanes
#define ICRC_CHUNKS_12 ICRC_CHUNKS_11, hdr.chunk[11].lanes
#define ICRC_CHUNKS_13 ICRC_CHUNKS_12, hdr.chunk[12].lanes
#define ICRC_CHUNKS_14 ICRC_CHUNKS_13, hdr.chunk[13].lanes
#define ICRC_CHUNKS_15 ICRC_CHUNKS_14, hdr.chunk[14].lanes
#define ICRC_CHUNKS_16 ICRC_CHUNKS_15, hdr.chunk[15].lanes

#define ICRC_OVER(n) \
    action over_ ## n() { \
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_BTH, ICRC_CHUNKS_ ## n }, 33w0x100000000); \
    } \
    action tree_over_ ## n() { \
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_TREE, ICRC_CHUNKS_ ## n }, 33w0x100000000); \
    }

control Icrc(in headers_t hdr, in bit<8> chunks, out bit<32> icrc) {
    bit<32> crc = 0;

    action tree_over_0() {
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_TREE }, 33w0x100000000);
    }

    action over_aeth() {
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_BTH, hdr.aeth.syndrome, hdr.aeth.msn }, 33w0x100000000);
    }

    ICRC_OVER(1)
    ICRC_OVER(2)
    ICRC_OVER(3)
    ICRC_OVER(4)
    ICRC_OVER(5)
    ICRC_OVER(6)
    ICRC_OVER(7)
    ICRC_OVER(8)
    ICRC_OVER(9)
    ICRC_OVER(10)
    ICRC_OVER(11)
    ICRC_OVER(12)
    ICRC_OVER(13)
    ICRC_OVER(14)
    ICRC_OVER(15)
    ICRC_OVER(16)

    table by_chunks {
        key = { chunks: exact @name("chunks"); }
        actions = {
            over_aeth;
            over_1;
            over_2;
            over_3;
            over_4;
            over_5;
            over_6;
            over_7;
            over_8;
            over_9;
            over_10;
            over_11;
            over_12;
            over_13;
            over_14;
            over_15;
            over_16;
            @defaultonly NoAction;
        }
        const default_action = NoAction;
        const entries = {
            1: over_1();
            2: over_2();
            3: over_3();
            4: over_4();
            5: over_5();
            6: over_6();
            7: over_7();
            8: over_8();
            9: over_9();
            10: over_10();
            11: over_11();
            12: over_12();
            13: over_13();
            14: over_14();
            15: over_15();
            16: over_16();
            ICRC_AETH: over_aeth();
        }
    }

    table tree_by_chunks {
        key = { chunks: exact @name("chunks"); }
        actions = {
            tree_over_0;
            tree_over_1;
            tree_over_2;
            tree_over_3;
            tree_over_4;
            tree_over_5;
            tree_over_6;
            tree_over_7;
            tree_over_8;
            tree_over_9;
            tree_over_10;
            tree_over_11;
            tree_over_12;
            tree_over_13;
            tree_over_14;
            tree_over_15;
            tree_over_16;
            @defaultonly NoAction;
        }
        const default_action = NoAction;
        const entries = {
            0: tree_over_0();
            1: tree_over_1();
            2: tree_over_2();
            3: tree_over_3();
            4: tree_over_4();
            5: tree_over_5();
            6: tree_over_6();
            7: tree_over_7();
            8: tree_over_8();
            9: tree_over_9();
            10: tree_over_10();
            11: tree_over_11();
            12: tree_over_12();
            13: tree_over_13();
            14: tree_over_14();
            15: tree_over_15();
            16: tree_over_16();
        }
    }

    apply {
        if (hdr.tree.isValid()) {
            tree_by_chunks.apply();
        } else if (hdr.bth.isValid()) {
            by_chunks.apply();
        }
        icrc = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];
    }
}

#endif
