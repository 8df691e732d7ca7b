/* What is not aggregated is forwarded as in any router, ARP as in a switch. Nothing else is: hosts take VLAN tags off, and would
 * find in such a frame a packet that nobody has looked at. */
#ifndef FORWARD_P4
#define FORWARD_P4

#include <v1model.p4>
#include "include/headers.p4"

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) no_route;

    action drop() {
        mark_to_drop(standard_metadata);
        no_route.count(meta.in_port);
    }

    action next_hop(port_t port, mac_t src_mac, mac_t dst_mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    /* One of `size` ways, the same for all packets of a connection. */
    action ecmp(bit<16> group, bit<8> size) {
        meta.ecmp_group = group;
        hash(meta.ecmp_index, HashAlgorithm.crc16, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, meta.l4_ports }, size);
    }

    table route {
        key = { hdr.ipv4.dst: lpm @name("dst_ip"); }
        actions = { next_hop; ecmp; drop; }
        const default_action = drop;
        size = ROUTE_ENTRIES;
    }

    table ecmp_member {
        key = {
            meta.ecmp_group:      exact @name("group");
            meta.ecmp_index[7:0]: exact @name("index");
        }
        actions = { next_hop; drop; }
        const default_action = drop;
        size = ECMP_ENTRIES;
    }

    action to_port(port_t port) {
        standard_metadata.egress_spec = port;
    }

    /* To every port but the one it came from. */
    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
        meta.flood = true;
    }

    table mac {
        key = { hdr.ethernet.dst: exact @name("dst_mac"); }
        actions = { to_port; flood; drop; }
        const default_action = drop;
        size = ROUTE_ENTRIES;
    }

    apply {
        if (!hdr.ipv4.isValid()) {
            if (hdr.ethernet.isValid() && hdr.ethernet.ether_type == ETHERTYPE_ARP) {
                mac.apply();
            } else {
                drop();
            }
        } else if (hdr.ipv4.ttl > 1) {
            route.apply();
            if (meta.ecmp_group != 0) {
                ecmp_member.apply();
            }
        } else {
            drop();
        }
    }
}

#endif
