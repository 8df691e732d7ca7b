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

// As many bytes as can be put in reverse order at once; 0: no instruction does it.
#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
#define P4_REVERSE 64
#elif defined(__AVX2__)
#define P4_REVERSE 32
#elif defined(__SSSE3__)
#define P4_REVERSE 16
#else
#define P4_REVERSE 0
#endif

#if P4_REVERSE
typedef unsigned char Bytes __attribute__((vector_size(P4_REVERSE)));

// Reverses P4_REVERSE bytes.
P4_INLINE void reverse_bytes(void* to, const void* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
#if P4_REVERSE == 64
    constexpr int T = 63;
#elif P4_REVERSE == 32
    constexpr int T = 31;
#else
    constexpr int T = 15;
#endif
#define P4_EIGHT(i) T - (i), T - (i)-1, T - (i)-2, T - (i)-3, T - (i)-4, T - (i)-5, T - (i)-6, T - (i)-7
#if P4_REVERSE == 64
#define P4_ORDER P4_EIGHT(0), P4_EIGHT(8), P4_EIGHT(16), P4_EIGHT(24), P4_EIGHT(32), P4_EIGHT(40), P4_EIGHT(48), P4_EIGHT(56)
#elif P4_REVERSE == 32
#define P4_ORDER P4_EIGHT(0), P4_EIGHT(8), P4_EIGHT(16), P4_EIGHT(24)
#else
#define P4_ORDER P4_EIGHT(0), P4_EIGHT(8)
#endif
#if defined(__clang__)
    v = __builtin_shufflevector(v, v, P4_ORDER);
#else
    v = __builtin_shuffle(v, Bytes{P4_ORDER});
#endif
#undef P4_ORDER
#undef P4_EIGHT
    std::memcpy(to, &v, sizeof v);
}
#endif

}  // namespace p4
