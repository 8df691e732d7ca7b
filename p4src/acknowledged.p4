/* Ingress, for an acknowledgement whose ICRC is right: remember what it says, if it is about what was sent.
 *
 * A NIC that repeats by itself gives up after a few timeouts, and behind a straggler nobody acknowledges. So what it
 * repeats too early is answered with an RNR NAK (not_ready.p4), after which it waits and goes on for ever (docs/protocol.md).
 *
 * An RNR NAK acknowledges all packets before its own. Therefore only the one packet is answered whose predecessors the
 * receiver has acknowledged, all of them: the awaited one. That is remembered from the acknowledgements that pass.
 */
#ifndef ACKNOWLEDGED_P4
#define ACKNOWLEDGED_P4

#include <v1model.p4>
#include "include/headers.p4"
#include "placement.p4"

/* generation 32 | the PSN that the receiver awaits 24 */
#define AWAITED_GENERATION(a) a[55:24]
#define AWAITED_PSN(a)        a[23:0]

control Acknowledged(in headers_t hdr,
                     in metadata_t meta,
                     register<bit<AWAITED_BITS>> awaited_psns,
                     register<bit<RECORD_BITS>> latest_message) {
    bit<AWAITED_BITS> awaited = 0;
    bit<RECORD_BITS> latest = 0; /* of the flow's messages */
    psn_t awaits = 0;
    psn_t ahead = 0;             /* of what is known */
    psn_t open = 0;              /* how much was sent that is not known to be acknowledged */

    action read() {
        awaited_psns.read(awaited, meta.flow);
        latest_message.read(latest, meta.flow);
    }

    action compare(psn_t known) {
        ahead = awaits - known;
        open = RECORD_PSN(latest) + (psn_t)RECORD_PACKETS(latest) - known;
    }

    action store() {
        awaited_psns.write(meta.flow, meta.generation ++ awaits);
    }

    apply {
        if (hdr.aeth.syndrome & AETH_KIND == AETH_ACK
                || hdr.aeth.syndrome & AETH_KIND == AETH_RNR_NAK
                || hdr.aeth.syndrome == AETH_NAK_SEQUENCE_ERROR) {
            awaits = hdr.bth.psn;
            if (hdr.aeth.syndrome & AETH_KIND == AETH_ACK) {
                awaits = hdr.bth.psn + 1;
            }
            read();
            if (AWAITED_GENERATION(awaited) == meta.generation) {
                compare(AWAITED_PSN(awaited));
            } else {
                compare(meta.first_psn);
            }
            /* Late ones say what is known, and strays from another job what was never sent. */
            if (RECORD_GENERATION(latest) == meta.generation && open[23:23] == 0 && ahead != 0 && ahead <= open) {
                store();
            }
        }
    }
}

#endif
