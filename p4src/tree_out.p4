/* Egress: the addresses of both ends of a link between switches. */
#ifndef TREE_OUT_P4
#define TREE_OUT_P4

#include <v1model.p4>
#include "include/headers.p4"

control TreeOut(inout headers_t hdr, in standard_metadata_t standard_metadata) {
    action over(mac_t src_mac, mac_t dst_mac, ipv4_t src_ip, ipv4_t dst_ip) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
    }

    action reply() {
        hdr.tree.kind = TREE_ECHO_REPLY;
    }

    table link {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { over; @defaultonly NoAction; }
        const default_action = NoAction;
        size = MAX_PORTS;
    }

    apply {
        link.apply();
        if (hdr.tree.kind == TREE_ECHO_REQUEST) {
            reply();
        }
    }
}

#endif
