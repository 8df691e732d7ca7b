// The hash and checksum algorithms of BMv2 (behavioral-model, src/bm_sim/calculations.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__PCLMUL__) && defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace p4 {

template <class T>
struct CrcTable {
    T entry[256];
    // Reflected: the polynomial's bits are reversed too.
    constexpr explicit CrcTable(T polynomial) : entry{} {
        for (int i = 0; i < 256; i++) {
            T r = T(i);
            for (int j = 0; j < 8; j++) r = T(r & 1 ? (r >> 1) ^ polynomial : r >> 1);
            entry[i] = r;
        }
    }
};

struct Crc32Tables {
    uint32_t slice[8][256];
    constexpr Crc32Tables() : slice{} {
        const CrcTable<uint32_t> first(0xEDB88320u);
        for (int i = 0; i < 256; i++) slice[0][i] = first.entry[i];
        for (int k = 1; k < 8; k++)
            for (int i = 0; i < 256; i++)
                slice[k][i] = slice[k - 1][i] >> 8 ^ slice[0][slice[k - 1][i] & 0xFF];
    }
};

static constexpr Crc32Tables crc32_tables{};

inline uint32_t crc32_sliced(uint32_t crc, const uint8_t* p, size_t n) {
    const auto& t = crc32_tables.slice;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        std::memcpy(&v, p, 8);
        v ^= crc;
        crc = t[7][v & 0xFF] ^ t[6][v >> 8 & 0xFF] ^ t[5][v >> 16 & 0xFF] ^ t[4][v >> 24 & 0xFF] ^
              t[3][v >> 32 & 0xFF] ^ t[2][v >> 40 & 0xFF] ^ t[1][v >> 48 & 0xFF] ^ t[0][v >> 56];
    }
    for (; n; p++, n--) crc = t[0][(crc ^ *p) & 0xFF] ^ crc >> 8;
    return crc;
}

#if defined(__PCLMUL__) && defined(__SSE4_1__)
#define P4_FOLD(x, k, data)                                                              \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00),                        \
                                _mm_clmulepi64_si128(x, k, 0x11)),                       \
                  data)

// Folding by carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009; the constants are those of the reflected polynomial 0x04C11DB7.
// n is a multiple of 16, at least 64.
inline uint32_t crc32_folded(uint32_t crc, const uint8_t* p, size_t n) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    const __m128i k12 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i x0 = _mm_xor_si128(_mm_loadu_si128(q), _mm_cvtsi32_si128(int(crc)));
    __m128i x1 = _mm_loadu_si128(q + 1), x2 = _mm_loadu_si128(q + 2), x3 = _mm_loadu_si128(q + 3);
    q += 4, n -= 64;
    for (; n >= 64; q += 4, n -= 64) {
        x0 = P4_FOLD(x0, k12, _mm_loadu_si128(q));
        x1 = P4_FOLD(x1, k12, _mm_loadu_si128(q + 1));
        x2 = P4_FOLD(x2, k12, _mm_loadu_si128(q + 2));
        x3 = P4_FOLD(x3, k12, _mm_loadu_si128(q + 3));
    }
    x0 = P4_FOLD(x0, k34, x1);
    x0 = P4_FOLD(x0, k34, x2);
    x0 = P4_FOLD(x0, k34, x3);
    for (; n >= 16; q++, n -= 16) x0 = P4_FOLD(x0, k34, _mm_loadu_si128(q));
    // 128 to 64 bits, then Barrett reduction to 32.
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
    x0 = _mm_xor_si128(_mm_srli_si128(x0, 8), _mm_clmulepi64_si128(x0, k34, 0x10));
    x1 = _mm_clmulepi64_si128(_mm_and_si128(x0, low32), _mm_set_epi64x(0, 0x0163cd6124), 0x00);
    x0 = _mm_xor_si128(_mm_srli_si128(x0, 4), x1);
    const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    x1 = _mm_clmulepi64_si128(_mm_and_si128(x0, low32), poly, 0x10);
    x1 = _mm_clmulepi64_si128(_mm_and_si128(x1, low32), poly, 0x00);
    return uint32_t(_mm_extract_epi32(_mm_xor_si128(x0, x1), 1));
}
#undef P4_FOLD

inline uint32_t crc32_update(uint32_t crc, const uint8_t* p, size_t n) {
    if (n >= 64) {
        const size_t folded = n & ~size_t(15);
        crc = crc32_folded(crc, p, folded);
        p += folded, n -= folded;
    }
    return crc32_sliced(crc, p, n);
}
#else
inline uint32_t crc32_update(uint32_t crc, const uint8_t* p, size_t n) { return crc32_sliced(crc, p, n); }
#endif

// Each algorithm takes bytes in pieces of any length: add(bytes, n) any number of times, then value().
struct Crc32 {
    uint32_t state = 0xFFFFFFFFu;
    void add(const uint8_t* p, size_t n) { state = crc32_update(state, p, n); }
    uint64_t value() const { return ~state; }
};

static constexpr CrcTable<uint16_t> crc16_table{0xA001};

struct Crc16 {
    uint16_t state = 0;
    void add(const uint8_t* p, size_t n) {
        for (; n; p++, n--) state = uint16_t(crc16_table.entry[(state ^ *p) & 0xFF] ^ state >> 8);
    }
    uint64_t value() const { return state; }
};

// Polynomial 0x1021, not reflected.
struct CrcCcitt {
    uint16_t state = 0xFFFF;
    void add(const uint8_t* p, size_t n) {
        for (; n; p++, n--) {
            uint16_t x = uint16_t(state >> 8 ^ *p);
            x ^= x >> 4;
            state = uint16_t(state << 8 ^ x << 12 ^ x << 5 ^ x);
        }
    }
    uint64_t value() const { return state; }
};

// The Internet checksum, RFC 1071.
struct Csum16 {
    uint64_t sum = 0;
    bool odd = false;
    void add(const uint8_t* p, size_t n) {
        if (odd && n) sum += *p++, n--, odd = false;
        for (; n >= 4; p += 4, n -= 4)
            sum += uint32_t(p[0]) << 8 | p[1], sum += uint32_t(p[2]) << 8 | p[3];
        for (; n >= 2; p += 2, n -= 2) sum += uint32_t(p[0]) << 8 | p[1];
        if (n) sum += uint32_t(*p) << 8, odd = true;
    }
    uint64_t value() const {
        uint64_t s = sum;
        while (s >> 16) s = (s & 0xFFFF) + (s >> 16);
        return uint16_t(~s);
    }
};

struct Xor16 {
    uint16_t state = 0;
    bool odd = false;
    void add(const uint8_t* p, size_t n) {
        for (; n; p++, n--, odd = !odd) state ^= uint16_t(odd ? *p : *p << 8);
    }
    uint64_t value() const { return state; }
};

// The first eight bytes as a number.
struct Identity {
    uint64_t state = 0;
    int count = 0;
    void add(const uint8_t* p, size_t n) {
        for (; n && count < 8; p++, n--, count++) state = state << 8 | *p;
    }
    uint64_t value() const { return state; }
};

}  // namespace p4
