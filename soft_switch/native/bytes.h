// Between fields and the bytes of a packet: big endian, most significant bit first, any bit offset.
#pragma once
#include "vector.h"
#include "wide.h"

namespace p4 {

// A big endian number of N bytes (1 to 8); reads exactly N bytes.
template <int N>
P4_INLINE uint64_t load_be(const uint8_t* p) {
    static_assert(N >= 1 && N <= 8);
    if constexpr (N == 8) {
        uint64_t v;
        std::memcpy(&v, p, 8);
        return __builtin_bswap64(v);
    } else if constexpr (N == 4) {
        uint32_t v;
        std::memcpy(&v, p, 4);
        return __builtin_bswap32(v);
    } else if constexpr (N == 2) {
        uint16_t v;
        std::memcpy(&v, p, 2);
        return __builtin_bswap16(v);
    } else if constexpr (N == 1) {
        return *p;
    } else if constexpr (N > 4) {
        return load_be<4>(p) << (8 * (N - 4)) | load_be<N - 4>(p + 4);
    } else {
        return load_be<2>(p) << 8 | p[2];
    }
}

template <int N>
P4_INLINE void store_be(uint8_t* p, uint64_t value) {
    static_assert(N >= 1 && N <= 8);
    if constexpr (N == 8) {
        const uint64_t v = __builtin_bswap64(value);
        std::memcpy(p, &v, 8);
    } else if constexpr (N == 4) {
        const uint32_t v = __builtin_bswap32(uint32_t(value));
        std::memcpy(p, &v, 4);
    } else if constexpr (N == 2) {
        const uint16_t v = __builtin_bswap16(uint16_t(value));
        std::memcpy(p, &v, 2);
    } else if constexpr (N == 1) {
        *p = uint8_t(value);
    } else if constexpr (N > 4) {
        store_be<4>(p, value >> (8 * (N - 4)));
        store_be<N - 4>(p + 4, value);
    } else {
        store_be<2>(p, value >> 8);
        p[2] = uint8_t(value);
    }
}

// A big endian number of BYTES bytes.
template <int BYTES>
P4_INLINE void load_be_wide(Wide<(BYTES + 7) / 8>& to, const uint8_t* p) {
    constexpr int N = (BYTES + 7) / 8, rest = BYTES % 8;
    for (int i = 0; i < BYTES / 8; i++) to.w[i] = load_be<8>(p + BYTES - 8 * (i + 1));
    if constexpr (rest != 0) to.w[N - 1] = load_be<rest>(p);
}

template <int BYTES>
P4_INLINE void store_be_wide(uint8_t* p, const Wide<(BYTES + 7) / 8>& from) {
    constexpr int N = (BYTES + 7) / 8, rest = BYTES % 8;
    for (int i = 0; i < BYTES / 8; i++) store_be<8>(p + BYTES - 8 * (i + 1), from.w[i]);
    if constexpr (rest != 0) store_be<rest>(p, from.w[N - 1]);
}

// A number of WIDTH bits that starts OFFSET (0 to 7) bits into p.
template <int OFFSET, int WIDTH>
P4_INLINE uint64_t load_bits(const uint8_t* p) {
    static_assert(OFFSET < 8 && WIDTH <= 64);
    constexpr int bytes = (OFFSET + WIDTH + 7) / 8, after = 8 * bytes - OFFSET - WIDTH;
    constexpr uint64_t mask = WIDTH == 64 ? ~uint64_t(0) : (uint64_t(1) << (WIDTH % 64)) - 1;
    if constexpr (WIDTH == 0)
        return 0;  // and p may be the end of the packet
    else if constexpr (bytes <= 8)
        return load_be<bytes>(p) >> after & mask;
    else
        return (load_be<8>(p) << (8 - after) | uint64_t(p[8]) >> after) & mask;
}

template <int OFFSET, int WIDTH>
P4_INLINE void load_bits_wide(Wide<(WIDTH + 63) / 64>& to, const uint8_t* p) {
    constexpr int N = (WIDTH + 63) / 64;
    if constexpr (OFFSET == 0 && WIDTH % 8 == 0) {
        load_be_wide<WIDTH / 8>(to, p);
    } else {
        constexpr int bytes = (OFFSET + WIDTH + 7) / 8, after = 8 * bytes - OFFSET - WIDTH;
        Wide<(bytes + 7) / 8> all;
        load_be_wide<bytes>(all, p);
        to = cut(part<N, after>(all), WIDTH);
    }
}

// A varbit field: whole bytes, as they are in the packet.
template <int MAX>
struct Varbit {
    uint32_t size;
    uint8_t bytes[MAX];
};

template <int OFFSET, int MAX>
P4_INLINE void load_varbit(Varbit<MAX>& to, const uint8_t* p, uint32_t size) {
    to.size = size;
    if constexpr (OFFSET == 0) {
        std::memcpy(to.bytes, p, size);
    } else {
        for (uint32_t i = 0; i < size; i++) to.bytes[i] = uint8_t(p[i] << OFFSET | p[i + 1] >> (8 - OFFSET));
    }
}

// Or a varbit field into p, which holds zeros there.
template <int MAX>
P4_INLINE void or_varbit(uint8_t* p, unsigned offset, const Varbit<MAX>& from) {
    p += offset / 8, offset %= 8;
    for (uint32_t i = 0; i < from.size; i++) {
        p[i] |= uint8_t(from.bytes[i] >> offset);
        if (offset) p[i + 1] |= uint8_t(from.bytes[i] << (8 - offset));
    }
}

// As BMv2 compares: as numbers, whatever their lengths.
template <int A, int B>
inline bool equal(const Varbit<A>& a, const Varbit<B>& b) {
    uint32_t i = 0, j = 0;
    for (; a.size - i > b.size - j; i++)
        if (a.bytes[i]) return false;
    for (; b.size - j > a.size - i; j++)
        if (b.bytes[j]) return false;
    return std::memcmp(a.bytes + i, b.bytes + j, a.size - i) == 0;
}

// Or the low WIDTH bits of `value` into p, which holds zeros there.
template <int WIDTH>
P4_INLINE void or_bits(uint8_t* p, unsigned offset, uint64_t value) {
    p += offset / 8;
    const unsigned end = offset % 8 + WIDTH;
    if (WIDTH < 64) value &= (uint64_t(1) << (WIDTH % 64)) - 1;
    const unsigned bytes = (end + 7) / 8, after = 8 * bytes - end;
    unsigned __int128 shifted = (unsigned __int128)value << after;
    for (unsigned i = bytes; i-- > 0; shifted >>= 8) p[i] |= uint8_t(shifted);
}

template <int WIDTH>
inline void or_bits_wide(uint8_t* p, unsigned offset, const Wide<(WIDTH + 63) / 64>& value) {
    constexpr int top = WIDTH % 64 ? WIDTH % 64 : 64, N = (WIDTH + 63) / 64;
    or_bits<top>(p, offset, value.w[N - 1]);
    offset += top;
    for (int i = N - 2; i >= 0; i--, offset += 64) or_bits<64>(p, offset, value.w[i]);
}

}  // namespace p4
