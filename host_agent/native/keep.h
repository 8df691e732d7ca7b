// A copy of a tensor whose place its sum takes, made in the same pass that looks for its largest magnitude.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p4r {

// `target` gets the `n` elements of `source`. The float32 bit pattern of max |x|, 0 for int32.
uint32_t keep(int element_type, size_t element_bytes, const void *source, size_t n, void *target);

}  // namespace p4r
