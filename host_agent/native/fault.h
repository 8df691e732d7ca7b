// What contradicts what was posted; whoever finds it out has it made a fatal event.
#pragma once

#include <cstdint>

namespace p4r {

struct Fault {
    uint32_t code = 0;  // P4R_NOT_A_RESULT, ...; 0: none
    char text[256] = "";
    bool has_header = false;
    uint8_t header[64] = {};

    // `chunk`: the aggregation header at fault, or null. Always false, for `return fault.set(...)`.
    __attribute__((format(printf, 4, 5))) bool set(uint32_t code, const uint8_t *chunk, const char *format, ...);
};

}  // namespace p4r
