// Integers of more than 64 bits as words, least significant first. Values are modulo 2^(64*N); where a value can
// be negative it is in two's complement. The loops are straight so that the compiler turns them into vector code.
#pragma once
#include <cstdint>
#include <cstring>

#include "vector.h"

namespace p4 {

template <int N>
struct Wide {
    uint64_t w[N];
};

template <int N, class F>
P4_INLINE Wide<N> each(F f) {
    Wide<N> r;
    for (int i = 0; i < N; i++) r.w[i] = f(i);
    return r;
}

template <int N, class F>
P4_INLINE void each_into(Wide<N>& to, F f) {
    for (int i = 0; i < N; i++) to.w[i] = f(i);
}

// Words beyond the end of a shorter value: its sign, or zero.
template <int N, int M>
P4_INLINE Wide<N> resize(const Wide<M>& a, bool is_signed) {
    Wide<N> r;
    const uint64_t fill = is_signed ? uint64_t(int64_t(a.w[M - 1]) >> 63) : 0;
    for (int i = 0; i < N; i++) r.w[i] = i < M ? a.w[i < M ? i : 0] : fill;
    return r;
}

template <int N>
P4_INLINE Wide<N> from_unsigned(uint64_t value) {
    Wide<N> r{};
    r.w[0] = value;
    return r;
}

template <int N>
P4_INLINE Wide<N> from_signed(int64_t value) {
    Wide<N> r;
    r.w[0] = uint64_t(value);
    for (int i = 1; i < N; i++) r.w[i] = uint64_t(value >> 63);
    return r;
}

template <int N>
P4_INLINE Wide<N> from_words(const uint64_t* words) {
    Wide<N> r;
    std::memcpy(r.w, words, sizeof r.w);
    return r;
}

template <int N>
P4_INLINE Wide<N> add(const Wide<N>& a, const Wide<N>& b) {
    Wide<N> r;
    unsigned long long carry = 0;
    for (int i = 0; i < N; i++) {
        unsigned long long sum;
        const bool first = __builtin_uaddll_overflow(a.w[i], b.w[i], &sum);
        const bool second = __builtin_uaddll_overflow(sum, carry, &sum);
        r.w[i] = sum;
        carry = first | second;
    }
    return r;
}

template <int N>
P4_INLINE Wide<N> sub(const Wide<N>& a, const Wide<N>& b) {
    Wide<N> r;
    unsigned long long borrow = 0;
    for (int i = 0; i < N; i++) {
        unsigned long long difference;
        const bool first = __builtin_usubll_overflow(a.w[i], b.w[i], &difference);
        const bool second = __builtin_usubll_overflow(difference, borrow, &difference);
        r.w[i] = difference;
        borrow = first | second;
    }
    return r;
}

template <int N>
inline Wide<N> mul(const Wide<N>& a, const Wide<N>& b) {
    Wide<N> r{};
    for (int i = 0; i < N; i++) {
        uint64_t carry = 0;
        for (int j = 0; i + j < N; j++) {
            const unsigned __int128 t = (unsigned __int128)a.w[i] * b.w[j] + r.w[i + j] + carry;
            r.w[i + j] = uint64_t(t);
            carry = uint64_t(t >> 64);
        }
    }
    return r;
}

template <int N>
P4_INLINE bool bit(const Wide<N>& a, unsigned index) {
    return a.w[index / 64] >> (index % 64) & 1;
}

template <int N>
P4_INLINE Wide<N> shl(const Wide<N>& a, uint64_t amount) {
    Wide<N> r{};
    if (amount >= 64u * N) return r;
    const int words = int(amount / 64), bits = int(amount % 64);
    for (int i = N - 1; i >= words; i--) {
        uint64_t value = a.w[i - words] << bits;
        if (bits && i > words) value |= a.w[i - words - 1] >> (64 - bits);
        r.w[i] = value;
    }
    return r;
}

// A constant amount: both parts of every word come from fixed places, so that the loop vectorises.
template <int N, unsigned A>
P4_INLINE Wide<N> shl_by(const Wide<N>& a) {
    constexpr int words = A / 64, bits = A % 64;
    Wide<N> r;
    for (int i = 0; i < N; i++) {
        uint64_t value = i >= words ? a.w[i >= words ? i - words : 0] << bits : 0;
        if (bits != 0 && i > words) value |= a.w[i > words ? i - words - 1 : 0] >> ((64 - bits) & 63);
        r.w[i] = value;
    }
    return r;
}

template <int N>
P4_INLINE Wide<N> shr(const Wide<N>& a, uint64_t amount, bool is_signed) {
    Wide<N> r;
    const uint64_t fill = is_signed ? uint64_t(int64_t(a.w[N - 1]) >> 63) : 0;
    const uint64_t words = amount / 64;
    const int bits = int(amount % 64);
    for (int i = 0; i < N; i++) {
        const uint64_t low = uint64_t(i) + words < N ? a.w[i + words] : fill;
        const uint64_t high = uint64_t(i) + words + 1 < N ? a.w[i + words + 1] : fill;
        r.w[i] = bits ? low >> bits | high << (64 - bits) : low;
    }
    return r;
}

// Word i of `a` shifted to the right by A bits.
template <unsigned A, int N>
P4_INLINE uint64_t word_at(const Wide<N>& a, int i = 0) {
    constexpr int words = A / 64, bits = A % 64;
    const int j = i + words;
    const uint64_t low = j < N ? a.w[j < N ? j : 0] : 0;
    if (bits == 0) return low;
    const uint64_t high = j + 1 < N ? a.w[j + 1 < N ? j + 1 : 0] : 0;
    return low >> bits | high << ((64 - bits) & 63);
}

// COUNT words of `a` shifted to the right by A bits.
template <int COUNT, unsigned A, int N>
P4_INLINE Wide<COUNT> part(const Wide<N>& a) {
    Wide<COUNT> r;
    for (int i = 0; i < COUNT; i++) r.w[i] = word_at<A>(a, i);
    return r;
}

template <int N>
P4_INLINE bool equal(const Wide<N>& a, const Wide<N>& b) {
    uint64_t difference = 0;
    for (int i = 0; i < N; i++) difference |= a.w[i] ^ b.w[i];
    return difference == 0;
}

template <int N>
P4_INLINE bool is_zero(const Wide<N>& a) {
    uint64_t any = 0;
    for (int i = 0; i < N; i++) any |= a.w[i];
    return any == 0;
}

template <int N>
P4_INLINE bool less(const Wide<N>& a, const Wide<N>& b, bool is_signed) {
    const uint64_t flip = is_signed ? uint64_t(1) << 63 : 0;
    const uint64_t x = a.w[N - 1] ^ flip, y = b.w[N - 1] ^ flip;
    if (x != y) return x < y;
    for (int i = N - 2; i >= 0; i--)
        if (a.w[i] != b.w[i]) return a.w[i] < b.w[i];
    return false;
}

// Only the low `width` bits stay.
template <int N>
P4_INLINE Wide<N> cut(Wide<N> a, unsigned width) {
    if (width < 64u * N) {
        const int top = int(width / 64);
        a.w[top] &= (uint64_t(1) << (width % 64)) - 1;
        for (int i = top + 1; i < N; i++) a.w[i] = 0;
    }
    return a;
}

// The low `width` bits as a signed number.
template <int N>
P4_INLINE Wide<N> sign_extend(Wide<N> a, unsigned width) {
    if (width < 64u * N && bit(a, width - 1)) {
        const int top = int(width / 64);
        a.w[top] |= ~((uint64_t(1) << (width % 64)) - 1);
        for (int i = top + 1; i < N; i++) a.w[i] = ~uint64_t(0);
    } else {
        a = cut(a, width);
    }
    return a;
}

P4_INLINE uint64_t sign_extend(uint64_t value, unsigned width) {
    return width >= 64 ? value : uint64_t(int64_t(value << (64 - width)) >> (64 - width));
}

P4_INLINE uint64_t shl(uint64_t a, uint64_t amount) { return amount < 64 ? a << amount : 0; }
P4_INLINE uint64_t shr(uint64_t a, uint64_t amount) { return amount < 64 ? a >> amount : 0; }
P4_INLINE uint64_t sar(uint64_t a, uint64_t amount) {
    return uint64_t(int64_t(a) >> (amount < 63 ? amount : 63));
}

// Division of unsigned numbers; by zero (which BMv2 does not survive) the quotient and the remainder are 0.
P4_INLINE uint64_t quotient(uint64_t a, uint64_t b) { return b ? a / b : 0; }
P4_INLINE uint64_t remainder(uint64_t a, uint64_t b) { return b ? a % b : 0; }

template <int N>
inline Wide<N> divide(const Wide<N>& a, const Wide<N>& b, bool want_remainder) {
    Wide<N> q{}, r{};
    if (is_zero(b)) return q;
    for (int i = 64 * N - 1; i >= 0; i--) {
        const bool out = bit(r, 64 * N - 1);
        r = shl_by<N, 1>(r);
        r.w[0] |= bit(a, unsigned(i));
        if (out || !less(r, b, false)) {
            r = sub(r, b);
            q.w[i / 64] |= uint64_t(1) << (i % 64);
        }
    }
    return want_remainder ? r : q;
}

}  // namespace p4
