/* Where a packet comes in: by a host's port, by a link to another switch, or by a port that the configuration does not name.
 *
 *      packet --> port --miss--> unnamed: dropped, counted, whatever it is
 *                  |
 *           host_port, fabric_port --> membership --> origin --RoCE v2 of another's--> spoofed: dropped, counted
 *
 * What comes by a link has been looked at where it came into the fabric.
 */
#ifndef EDGES_P4
#define EDGES_P4

#include <v1model.p4>
#include "include/headers.p4"

/* Ingress: who is behind the port. */
control Edges(inout metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) unnamed;

    action host_port(ipv4_t ip) {
        meta.host_ip = ip;
    }

    action fabric_port() {
        meta.fabric_port = true;
    }

    /* Nobody that we know of: no address could be checked, and no mark. */
    action nobody() {
        meta.verdict = DISCARD;
        unnamed.count(meta.in_port);
    }

    table port {
        key = { standard_metadata.ingress_port: exact @name("ingress_port"); }
        actions = { host_port; fabric_port; @defaultonly nobody; }
        const default_action = nobody;
        size = MAX_PORTS;
    }

    apply {
        port.apply();
    }
}

#endif
