// Kernels between the user's tensors and the wire that p4r.h does not offer to others. As with those there, their bits do
// not depend on the floating-point mode of the thread that calls them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p4r {

void encode_ordered_half(int element_type, const void *source, size_t n, uint8_t *lanes, bool invert);
void decode_ordered_half(int element_type, const uint8_t *lanes, size_t n, void *target, bool invert);
uint8_t block_exponent(int element_type, const void *source, size_t n);

}  // namespace p4r
