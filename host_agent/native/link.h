// What the C interface needs of whatever threads post operations to and wait for.
#pragma once

#include <cstdint>

#include "monitor.h"
#include "p4r.h"

struct p4r_link {
    virtual ~p4r_link() = default;
    virtual p4r::Monitor &monitor() = 0;
    virtual uint64_t post(const p4r_operation &op, const char **wrong) = 0;  // 0: refused
    virtual p4r_counters counters() = 0;
    virtual p4r_progress progress() = 0;
};
