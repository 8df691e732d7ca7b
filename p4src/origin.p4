/* Ingress: a host sends RoCE v2 as itself, and never as a switch. A leaf knows the peers of other racks by their addresses, and hosts
 * know the peers of a ring that is summed by none of us by theirs. By BTH_SUMMED, our agents know a sum from what a host has sent. */
#ifndef ORIGIN_P4
#define ORIGIN_P4

#include <v1model.p4>
#include "include/headers.p4"

control Origin(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(MAX_PORTS, CounterType.packets_and_bytes) spoofed;

    apply {
        if (meta.disguised
                || (hdr.bth.isValid() && !meta.fabric_port
                    && (hdr.ipv4.src != meta.host_ip || hdr.bth.reserved & BTH_SUMMED != 0))) {
            spoofed.count(meta.in_port);
            meta.member = FOREIGN;
            meta.verdict = DISCARD;
        }
    }
}

#endif
