#include "half.h"

#include <cstring>

#include "vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace p4r {
namespace {

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint16_t float16_bits(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));  // NaN
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
    if (magnitude < 0x38800000) {
        // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
        return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);  // to nearest even
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000) >> 13));
}

void to_float32_portable(const uint8_t *source, size_t n, float *target) {
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, source + 2 * i, 2);
        target[i] = float16_value(bits);
    }
}

void to_float16_portable(const float *source, size_t n, uint8_t *target) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t bits = float16_bits(source[i]);
        memcpy(target + 2 * i, &bits, 2);
    }
}

#if defined(__x86_64__)

const bool has_f16c = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");

__attribute__((target("avx,f16c"))) void to_float32_f16c(const uint8_t *source, size_t n, float *target) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(target + i,
                         _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(source + 2 * i))));
    to_float32_portable(source + 2 * i, n - i, target + i);
}

__attribute__((target("avx,f16c"))) void to_float16_f16c(const float *source, size_t n, uint8_t *target) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(target + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
    to_float16_portable(source + i, n - i, target + 2 * i);
}

#else

const bool has_f16c = false;
void to_float32_f16c(const uint8_t *source, size_t n, float *target) { to_float32_portable(source, n, target); }
void to_float16_f16c(const float *source, size_t n, uint8_t *target) { to_float16_portable(source, n, target); }

#endif

}  // namespace

float float16_value(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31;
    uint32_t mantissa = half & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | mantissa << 13);
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    return float_of(bits_of(magnitude) | sign);
}

void float16_to_float32(const uint8_t *source, size_t n, float *target) {
    has_f16c ? to_float32_f16c(source, n, target) : to_float32_portable(source, n, target);
}

void float32_to_float16(const float *source, size_t n, uint8_t *target) {
    has_f16c ? to_float16_f16c(source, n, target) : to_float16_portable(source, n, target);
}

P4R_VECTORISED void bfloat16_to_float32(const uint8_t *source, size_t n, float *target) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, source + 2 * i, 2);
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        memcpy(target + i, &bits, 4);
    }
}

P4R_VECTORISED void float32_to_bfloat16(const float *source, size_t n, uint8_t *target) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, source + i, 4);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest even
        const uint32_t quiet = bits >> 16 | 0x40;                         // NaN must not round to infinity
        const uint16_t half = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
        memcpy(target + 2 * i, &half, 2);
    }
}

}  // namespace p4r
