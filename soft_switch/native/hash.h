// The hash and checksum algorithms of BMv2 (behavioral-model, src/bm_sim/calculations.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vector.h"

namespace p4 {

template <class T>
struct CrcTable {
    T entry[256];
    // Reflected: the polynomial's bits are reversed too.
    explicit CrcTable(T polynomial) {
        for (int i = 0; i < 256; i++) {
            T r = T(i);
            for (int j = 0; j < 8; j++) r = T(r & 1 ? (r >> 1) ^ polynomial : r >> 1);
            entry[i] = r;
        }
    }
};

struct Crc32Tables {
    uint32_t slice[8][256];
    Crc32Tables() {
        const CrcTable<uint32_t> first(0xEDB88320u);
        for (int i = 0; i < 256; i++) slice[0][i] = first.entry[i];
        for (int k = 1; k < 8; k++)
            for (int i = 0; i < 256; i++)
                slice[k][i] = slice[k - 1][i] >> 8 ^ slice[0][slice[k - 1][i] & 0xFF];
    }
};

static const Crc32Tables crc32_tables;  // filled in when the library is opened

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

#ifdef P4_CLMUL
// Folding by carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009; the constants are those of the reflected polynomial 0x04C11DB7.
P4_INLINE Vec128 fold(Vec128 x, Vec128 k, Vec128 data) { return clmul<0, 0>(x, k) ^ clmul<1, 1>(x, k) ^ data; }

#ifdef P4_CLMUL_512
P4_INLINE Vec512 fold(Vec512 x, Vec512 k, Vec512 data) { return clmul<0, 0>(x, k) ^ clmul<1, 1>(x, k) ^ data; }
#endif

// n is a multiple of 16, at least 64.
inline uint32_t crc32_folded(uint32_t crc, const uint8_t* p, size_t n) {
    const Vec128 k12 = vec_128(0x01c6e41596, 0x0154442bd4), k34 = vec_128(0x00ccaa009e, 0x01751997d0);
    Vec128 x0, x1, x2, x3;
#ifdef P4_CLMUL_512
    if (n >= 256) {
        const Vec512 k = four_times(vec_128(0x01322d1430, 0x011542778a)), one = four_times(k12);
        Vec512 y0 = load_512(p), y1 = load_512(p + 64), y2 = load_512(p + 128), y3 = load_512(p + 192);
        y0 ^= Vec512{(long long)crc};
        p += 256, n -= 256;
        for (; n >= 256; p += 256, n -= 256) {
            y0 = fold(y0, k, load_512(p));
            y1 = fold(y1, k, load_512(p + 64));
            y2 = fold(y2, k, load_512(p + 128));
            y3 = fold(y3, k, load_512(p + 192));
        }
        y0 = fold(y0, one, y1);
        y0 = fold(y0, one, y2);
        y0 = fold(y0, one, y3);
        for (; n >= 64; p += 64, n -= 64) y0 = fold(y0, one, load_512(p));
        x0 = Vec128{y0[0], y0[1]}, x1 = Vec128{y0[2], y0[3]}, x2 = Vec128{y0[4], y0[5]}, x3 = Vec128{y0[6], y0[7]};
    } else
#endif
    {
        x0 = load_128(p) ^ vec_128(0, crc), x1 = load_128(p + 16), x2 = load_128(p + 32), x3 = load_128(p + 48);
        p += 64, n -= 64;
        for (; n >= 64; p += 64, n -= 64) {
            x0 = fold(x0, k12, load_128(p));
            x1 = fold(x1, k12, load_128(p + 16));
            x2 = fold(x2, k12, load_128(p + 32));
            x3 = fold(x3, k12, load_128(p + 48));
        }
    }
    x0 = fold(x0, k34, x1);
    x0 = fold(x0, k34, x2);
    x0 = fold(x0, k34, x3);
    for (; n >= 16; p += 16, n -= 16) x0 = fold(x0, k34, load_128(p));
    // 128 to 64 bits, then Barrett reduction to 32.
    const Vec128 low32 = vec_128(0xFFFFFFFF, 0xFFFFFFFF);
    x0 = shift_bytes<8>(x0) ^ clmul<0, 1>(x0, k34);
    x1 = clmul<0, 0>(x0 & low32, vec_128(0, 0x0163cd6124));
    x0 = shift_bytes<4>(x0) ^ x1;
    const Vec128 poly = vec_128(0x01f7011641, 0x01db710641);
    x1 = clmul<0, 1>(x0 & low32, poly);
    x1 = clmul<0, 0>(x1 & low32, poly);
    return uint32_t(uint64_t((x0 ^ x1)[0]) >> 32);
}

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

static const CrcTable<uint16_t> crc16_table{0xA001};

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
        uint64_t swapped = 0;  // the sum is the same in the other byte order, RFC 1071 (2)(B)
        for (; n >= 8; p += 8, n -= 8) {
            uint64_t v;
            std::memcpy(&v, p, 8);
            swapped += (v & 0xFFFFFFFF) + (v >> 32);
        }
        while (swapped >> 16) swapped = (swapped & 0xFFFF) + (swapped >> 16);
        sum += __builtin_bswap16(uint16_t(swapped));
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
