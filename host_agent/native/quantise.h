// Kernels between the user's tensors and the wire: fixed point, byte order, and the ring's element-wise operations.
// Their bits do not depend on the floating-point mode of the thread that calls them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p4r {

void encode_lanes(int element_type, bool ordered, const void *source, size_t n, uint8_t *lanes, int exponent,
                  bool invert);
void decode_lanes(int element_type, bool ordered, const uint8_t *lanes, size_t n, void *target, int exponent,
                  uint32_t divisor, bool invert);
void encode_ordered_half(int element_type, const void *source, size_t n, uint8_t *lanes, bool invert);
void decode_ordered_half(const uint8_t *lanes, size_t n, void *target, bool invert);
void encode_half(int element_type, const void *source, size_t n, uint8_t *lanes, int exponent);
void decode_half(int element_type, const uint8_t *lanes, size_t n, void *target, int exponent, uint32_t divisor);
void leave_residual(void *values, size_t n, int exponent);
uint8_t block_exponent(int element_type, const void *source, size_t n);
void fold(int fold, int element_type, void *target, const void *source, size_t n);
void sum_rows(int element_type, const void *rows, size_t stride, size_t count, size_t n, uint32_t divisor,
              void *target);
void divide(int element_type, void *target, size_t n, uint32_t divisor);

}  // namespace p4r
