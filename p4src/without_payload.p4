/* Egress, when the ICRC is there: an RNR NAK has no payload. */
#ifndef WITHOUT_PAYLOAD_P4
#define WITHOUT_PAYLOAD_P4

#include <v1model.p4>
#include "include/headers.p4"

control WithoutPayload(inout headers_t hdr) {
    action remove() {
        hdr.chunk[0].setInvalid();
        hdr.chunk[1].setInvalid();
        hdr.chunk[2].setInvalid();
        hdr.chunk[3].setInvalid();
        hdr.chunk[4].setInvalid();
        hdr.chunk[5].setInvalid();
        hdr.chunk[6].setInvalid();
        hdr.chunk[7].setInvalid();
        hdr.chunk[8].setInvalid();
        hdr.chunk[9].setInvalid();
        hdr.chunk[10].setInvalid();
        hdr.chunk[11].setInvalid();
        hdr.chunk[12].setInvalid();
        hdr.chunk[13].setInvalid();
        hdr.chunk[14].setInvalid();
        hdr.chunk[15].setInvalid();
    }

    apply {
        remove();
    }
}

#endif
