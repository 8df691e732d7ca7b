// float16 and bfloat16 blocks to float32 and back, rounding to nearest even. Source and target may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace p4r {

void float16_to_float32(const uint8_t *source, size_t n, float *target);
void float32_to_float16(const float *source, size_t n, uint8_t *target);
void bfloat16_to_float32(const uint8_t *source, size_t n, float *target);
void float32_to_bfloat16(const float *source, size_t n, uint8_t *target);
float float16_value(uint16_t bits);

}  // namespace p4r
