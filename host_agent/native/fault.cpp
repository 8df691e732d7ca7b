#include "fault.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace p4r {

bool Fault::set(uint32_t why, const uint8_t *chunk, const char *format, ...) {
    code = why;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    has_header = chunk != nullptr;
    if (chunk != nullptr) memcpy(header, chunk, sizeof header);
    return false;
}

}  // namespace p4r
