/* Ingress: to which spine a rack's sum goes. */
#ifndef UP_P4
#define UP_P4

#include <v1model.p4>
#include "include/headers.p4"

control Up(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(MAX_FLOWS, CounterType.packets_and_bytes) no_uplink;

    bit<8> bucket = meta.message[7:0] & (BUCKETS - 1);
    bool back = false;
    bit<16> again_group = AGAIN_GROUP + ((bit<16>)standard_metadata.ingress_port << 2);

    action to_spine(port_t port, bit<16> index) {
        standard_metadata.egress_spec = port;
        again_group = again_group + index;
    }

    action none() {
        meta.verdict = DISCARD;
        no_uplink.count(meta.flow);
    }

    table uplink {
        key = {
            meta.group: exact @name("group");
            bucket:     exact @name("bucket");
        }
        actions = { to_spine; none; }
        const default_action = none;
        size = TREE_ENTRIES;
    }

    apply {
        if (meta.brings == ASK) {
            /* Whoever asks is told. */
            standard_metadata.egress_spec = standard_metadata.ingress_port;
        } else {
            back = meta.verdict == SEND_UP_AND_BACK;
            uplink.apply();
            if (back && meta.verdict == DISCARD) {
                meta.verdict = NOT_READY;
                standard_metadata.egress_spec = standard_metadata.ingress_port;
            } else if (back) {
                standard_metadata.mcast_grp = again_group;
            }
        }
    }
}

#endif
