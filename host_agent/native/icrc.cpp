#include "icrc.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace p4r {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;  // bit-reflected

struct Tables {
    uint32_t slice[16][256];

    Tables() {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
            slice[0][i] = crc;
        }
        for (int s = 1; s < 16; s++)
            for (uint32_t i = 0; i < 256; i++)
                slice[s][i] = (slice[s - 1][i] >> 8) ^ slice[0][slice[s - 1][i] & 0xff];
    }
};

const Tables tables;

// Slicing by 16; works on the register value (no inversion at either end).
uint32_t update_sliced(uint32_t crc, const uint8_t *data, size_t length) {
    const auto &t = tables.slice;
    while (length >= 16) {
        uint8_t block[16];
        memcpy(block, data, 16);
        for (int i = 0; i < 4; i++) block[i] ^= static_cast<uint8_t>(crc >> (8 * i));
        crc = 0;
        for (int i = 0; i < 16; i++) crc ^= t[15 - i][block[i]];
        data += 16;
        length -= 16;
    }
    while (length--) crc = (crc >> 8) ^ t[0][(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(__x86_64__)

// Folding with carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009. The constants are x^n mod P, bit-reflected, from its last page.
// length: a multiple of 16, at least 64.
__attribute__((target("pclmul,sse4.1"))) uint32_t update_folded(uint32_t crc, const uint8_t *data,
                                                                size_t length) {
    const __m128i fold_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i fold_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i fold_4 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
    const auto *in = reinterpret_cast<const __m128i *>(data);

    __m128i a = _mm_xor_si128(_mm_loadu_si128(in), _mm_cvtsi32_si128(static_cast<int>(crc)));
    __m128i b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    in += 4;
    length -= 64;
    for (; length >= 64; in += 4, length -= 64) {
        const __m128i a_low = _mm_clmulepi64_si128(a, fold_64, 0x00), a_high = _mm_clmulepi64_si128(a, fold_64, 0x11);
        const __m128i b_low = _mm_clmulepi64_si128(b, fold_64, 0x00), b_high = _mm_clmulepi64_si128(b, fold_64, 0x11);
        const __m128i c_low = _mm_clmulepi64_si128(c, fold_64, 0x00), c_high = _mm_clmulepi64_si128(c, fold_64, 0x11);
        const __m128i d_low = _mm_clmulepi64_si128(d, fold_64, 0x00), d_high = _mm_clmulepi64_si128(d, fold_64, 0x11);
        a = _mm_xor_si128(_mm_xor_si128(a_low, a_high), _mm_loadu_si128(in));
        b = _mm_xor_si128(_mm_xor_si128(b_low, b_high), _mm_loadu_si128(in + 1));
        c = _mm_xor_si128(_mm_xor_si128(c_low, c_high), _mm_loadu_si128(in + 2));
        d = _mm_xor_si128(_mm_xor_si128(d_low, d_high), _mm_loadu_si128(in + 3));
    }
    const __m128i rest[3] = {b, c, d};
    for (const __m128i &next : rest)
        a = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, fold_16, 0x00),
                                        _mm_clmulepi64_si128(a, fold_16, 0x11)), next);
    for (; length >= 16; in++, length -= 16)
        a = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, fold_16, 0x00),
                                        _mm_clmulepi64_si128(a, fold_16, 0x11)), _mm_loadu_si128(in));
    // 128 bits to 64, then Barrett reduction to 32.
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, fold_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_words), fold_4, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
    return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, quotient), 1));
}

const bool has_pclmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");

#else

uint32_t update_folded(uint32_t crc, const uint8_t *data, size_t length) {
    return update_sliced(crc, data, length);
}
const bool has_pclmul = false;

#endif

uint32_t update(uint32_t crc, const uint8_t *data, size_t length) {
    if (has_pclmul && length >= 64) {
        const size_t folded = length & ~size_t{15};
        crc = update_folded(crc, data, folded);
        data += folded;
        length -= folded;
    }
    return update_sliced(crc, data, length);
}

}  // namespace

uint32_t crc32(uint32_t crc, const uint8_t *data, size_t length) { return ~update(~crc, data, length); }

uint32_t icrc(const uint8_t *ip, size_t length) {
    constexpr size_t kHeaders = 20 + 8 + 12;  // IPv4, UDP, BTH
    if (length < kHeaders) return 0;          // callers check; never read past the packet
    uint8_t masked[8 + kHeaders];
    memset(masked, 0xff, 8);
    memcpy(masked + 8, ip, kHeaders);
    uint8_t *header = masked + 8;
    header[1] = 0xff;                // type of service
    header[8] = 0xff;                // time to live
    header[10] = header[11] = 0xff;  // IP checksum
    header[26] = header[27] = 0xff;  // UDP checksum
    header[32] = 0xff;               // BTH resv8a
    return ~update(update_sliced(~0u, masked, sizeof masked), ip + kHeaders, length - kHeaders);
}

}  // namespace p4r
