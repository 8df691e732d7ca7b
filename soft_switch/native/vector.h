// The vector instructions in use, as the compiler's own vector types and builtins: <immintrin.h> alone would take
// longer to compile than a small program.
#pragma once
#include <cstdint>
#include <cstring>

namespace p4 {

#define P4_INLINE inline __attribute__((always_inline))

// A carry-less product of 64-bit halves is there.
#if defined(__PCLMUL__) && defined(__SSE4_1__)
#define P4_CLMUL 1

typedef long long Vec128 __attribute__((vector_size(16)));

P4_INLINE Vec128 load_128(const uint8_t* p) {
    Vec128 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
P4_INLINE Vec128 vec_128(uint64_t high, uint64_t low) { return Vec128{(long long)low, (long long)high}; }

// HIGH_A, HIGH_B: whether the upper half of an operand is multiplied.
template <int HIGH_A, int HIGH_B>
P4_INLINE Vec128 clmul(Vec128 a, Vec128 b) {
    return __builtin_ia32_pclmulqdq128(a, b, HIGH_B << 4 | HIGH_A);
}

// The vector shifted to the right by so many bytes (4 or 8).
template <int BYTES>
P4_INLINE Vec128 shift_bytes(Vec128 v) {
    static_assert(BYTES == 4 || BYTES == 8);
    const uint64_t low = uint64_t(v[0]), high = uint64_t(v[1]);
    return BYTES == 8 ? vec_128(0, high) : vec_128(high >> 32, low >> 32 | high << 32);
}
#endif

// Four of those at once.
#if defined(P4_CLMUL) && defined(__VPCLMULQDQ__) && defined(__AVX512F__)
#define P4_CLMUL_512 1

typedef long long Vec512 __attribute__((vector_size(64)));

P4_INLINE Vec512 load_512(const uint8_t* p) {
    Vec512 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
P4_INLINE Vec512 four_times(Vec128 v) { return Vec512{v[0], v[1], v[0], v[1], v[0], v[1], v[0], v[1]}; }

template <int HIGH_A, int HIGH_B>
P4_INLINE Vec512 clmul(Vec512 a, Vec512 b) {
#if defined(__clang__)
    return __builtin_ia32_pclmulqdq512(a, b, HIGH_B << 4 | HIGH_A);
#else
    return __builtin_ia32_vpclmulqdq_v8di(a, b, HIGH_B << 4 | HIGH_A);
#endif
}
#endif

}  // namespace p4
