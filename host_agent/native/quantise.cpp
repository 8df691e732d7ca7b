#include "quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "float_mode.h"
#include "half.h"
#include "p4r.h"
#include "vector.h"

namespace p4r {
namespace {

constexpr size_t kBlock = 512;    // elements converted at a time, on the stack
constexpr size_t kAligned = 64;  // a vector of AVX-512 does not cross two lines of the cache then

template <typename T>
inline T load(const uint8_t *p) {
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}

template <typename T>
inline void store(uint8_t *p, T value) {
    memcpy(p, &value, sizeof value);
}

inline uint32_t swap_lane(uint32_t v) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap32(v);
#else
    return v;
#endif
}

// 2^exponent as two factors, each a normal float: fixed point of subnormal tensors needs exponents beyond 127. Where
// a product may be subnormal it is the second, so that it is rounded once.
struct Scale {
    float first, second;

    explicit Scale(int exponent) {
        const int most = std::clamp(exponent, -126, 127), rest = std::clamp(exponent - most, -126, 127);
        first = std::ldexp(1.0f, exponent < 0 ? rest : most);
        second = std::ldexp(1.0f, exponent < 0 ? most : rest);
    }
};

P4R_VECTORISED void encode_int32(const uint8_t *source, size_t n, uint8_t *lanes, uint32_t flip) {
    for (size_t i = 0; i < n; i++) store(lanes + 4 * i, swap_lane(load<uint32_t>(source + 4 * i) ^ flip));
}

P4R_VECTORISED void encode_float32(const uint8_t *source, size_t n, uint8_t *lanes, float first, float second,
                                   uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const float scaled = load<float>(source + 4 * i) * first * second;
        const int32_t fixed = static_cast<int32_t>(__builtin_rintf(scaled));
        store(lanes + 4 * i, swap_lane(static_cast<uint32_t>(fixed) ^ flip));
    }
}

P4R_VECTORISED void decode_int32(const uint8_t *lanes, size_t n, uint8_t *target, uint32_t flip) {
    for (size_t i = 0; i < n; i++) store(target + 4 * i, swap_lane(load<uint32_t>(lanes + 4 * i)) ^ flip);
}

void decode_int32_average(const uint8_t *lanes, size_t n, uint8_t *target, int64_t divisor, uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const auto sum = static_cast<int32_t>(swap_lane(load<uint32_t>(lanes + 4 * i)) ^ flip);
        store(target + 4 * i, static_cast<int32_t>(sum / divisor));
    }
}

// Where 2^-exponent and so every result is a normal float32: rounded once, by the conversion.
P4R_VECTORISED void decode_float32(const uint8_t *lanes, size_t n, uint8_t *target, float scale, uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const auto sum = static_cast<int32_t>(swap_lane(load<uint32_t>(lanes + 4 * i)) ^ flip);
        store(target + 4 * i, static_cast<float>(sum) * scale);
    }
}

P4R_VECTORISED void decode_double(const uint8_t *lanes, size_t n, double *target, double scale, double divisor,
                                  uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const auto sum = static_cast<int32_t>(swap_lane(load<uint32_t>(lanes + 4 * i)) ^ flip);
        target[i] = static_cast<double>(sum) * scale / divisor;
    }
}

// Bit patterns that sort as signed integers as the floats do; NaN wins the MAX that the switch makes.
P4R_VECTORISED void encode_ordered(const uint8_t *source, size_t n, uint8_t *lanes, uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = load<uint32_t>(source + 4 * i), magnitude = bits & 0x7fffffff;
        const uint32_t ordered = bits & 0x80000000 ? bits ^ 0x7fffffff : bits;
        store(lanes + 4 * i, swap_lane(magnitude > 0x7f800000 ? 0x7fffffff : ordered ^ flip));
    }
}

P4R_VECTORISED void decode_ordered(const uint8_t *lanes, size_t n, uint8_t *target, uint32_t flip) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t ordered = swap_lane(load<uint32_t>(lanes + 4 * i)) ^ flip;
        const uint32_t bits = ordered & 0x80000000 ? ordered ^ 0x7fffffff : ordered;
        store(target + 4 * i, (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits);
    }
}

P4R_VECTORISED void order_halves(const uint8_t *source, size_t n, uint8_t *lanes, uint16_t infinity, uint16_t flip) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t bits = load<uint16_t>(source + 2 * i), magnitude = bits & 0x7fff;
        const uint16_t ordered = (bits & 0x8000 ? bits ^ 0x7fff : bits) ^ flip;
        store<uint16_t>(lanes + 2 * i, magnitude > infinity ? 0x7fff : ordered);
    }
}

P4R_VECTORISED void disorder_halves(const uint8_t *lanes, size_t n, uint8_t *target, uint16_t infinity, uint16_t nan,
                                    uint16_t flip) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t ordered = load<uint16_t>(lanes + 2 * i) ^ flip;
        const uint16_t bits = ordered & 0x8000 ? ordered ^ 0x7fff : ordered;
        store<uint16_t>(target + 2 * i, (bits & 0x7fff) > infinity ? nan : bits);
    }
}

P4R_VECTORISED void double_to_float32(const double *source, size_t n, uint8_t *target) {
    for (size_t i = 0; i < n; i++) store(target + 4 * i, static_cast<float>(source[i]));
}

// Rounds to odd: the last bit of an inexact result is 1, so that a second rounding, to a narrower type, is as good as
// one (S. Boldo, G. Melquiond, "When double rounding is odd", 2005).
P4R_VECTORISED void double_to_float32_odd(const double *source, size_t n, float *target) {
    for (size_t i = 0; i < n; i++) {
        const float nearest = static_cast<float>(source[i]);
        const double back = static_cast<double>(nearest);
        uint32_t bits;
        memcpy(&bits, &nearest, 4);
        const bool finite = (bits & 0x7f800000) != 0x7f800000;
        const uint32_t odd = (bits - (__builtin_fabs(back) > __builtin_fabs(source[i]) ? 1u : 0u)) | 1u;
        bits = finite && back != source[i] ? odd : bits;
        memcpy(target + i, &bits, 4);
    }
}

P4R_VECTORISED uint32_t absmax_32(const uint8_t *source, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) most = std::max(most, load<uint32_t>(source + 4 * i) & 0x7fffffff);
    return most;
}

P4R_VECTORISED uint16_t absmax_16(const uint8_t *source, size_t n) {
    uint16_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = std::max(most, static_cast<uint16_t>(load<uint16_t>(source + 2 * i) & 0x7fff));
    return most;
}

P4R_VECTORISED void scale_floats(float *values, size_t n, float first, float second) {
    for (size_t i = 0; i < n; i++) values[i] = values[i] * first * second;
}

// Nothing is left of what rounding has brought to infinity.
P4R_VECTORISED void subtract_finite(uint8_t *values, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float left = load<float>(values + 4 * i) - from[i];
        store(values + 4 * i, __builtin_fabsf(left) <= std::numeric_limits<float>::max() ? left : 0.0f);
    }
}

P4R_VECTORISED void swap_halves(uint8_t *halves, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (size_t i = 0; i < n; i++) store(halves + 2 * i, __builtin_bswap16(load<uint16_t>(halves + 2 * i)));
#endif
}

// Which NaN comes of two, or of Inf - Inf, is the processor's and the compiler's choice; results have always this one.
// (A ring's sums of float32 and shorter floats get it later: what comes out as Inf or NaN is added once more.)
template <typename T>
inline T same_nan(T value) {
    if constexpr (std::is_floating_point_v<T>)
        return value == value ? value : std::numeric_limits<T>::quiet_NaN();
    else
        return value;
}

struct Sum {
    static float apply(float a, float b) { return a + b; }
    static double apply(double a, double b) { return same_nan(a + b); }
    static int32_t apply(int32_t a, int32_t b) {  // wraps, as in the switch
        return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
    }
    static int64_t apply(int64_t a, int64_t b) {
        return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
};
struct Product {
    template <typename T>
    static T apply(T a, T b) {
        return same_nan(a * b);
    }
    static int32_t apply(int32_t a, int32_t b) {
        return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    }
    static int64_t apply(int64_t a, int64_t b) {
        return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    }
};
struct Max {
    template <typename T>
    static T apply(T a, T b) {
        return same_nan(a > b || a != a ? a : b);
    }
};
struct Min {
    template <typename T>
    static T apply(T a, T b) {
        return same_nan(a < b || a != a ? a : b);
    }
};

// target_clones does not apply to templates, so each loop is spelled out.
#define P4R_FOLD_LOOP(name, type, operation)                                                       \
    P4R_VECTORISED void name(uint8_t *target, const uint8_t *source, size_t n) {                   \
        for (size_t i = 0; i < n; i++)                                                             \
            store(target + sizeof(type) * i,                                                       \
                  operation::apply(load<type>(target + sizeof(type) * i), load<type>(source + sizeof(type) * i))); \
    }
#define P4R_FOLD_LOOPS(kind, type)             \
    P4R_FOLD_LOOP(sum_##kind, type, Sum)       \
    P4R_FOLD_LOOP(max_##kind, type, Max)       \
    P4R_FOLD_LOOP(min_##kind, type, Min)       \
    P4R_FOLD_LOOP(product_##kind, type, Product)
P4R_FOLD_LOOPS(int32, int32_t)
P4R_FOLD_LOOPS(float32, float)
P4R_FOLD_LOOPS(int64, int64_t)
P4R_FOLD_LOOPS(float64, double)
#undef P4R_FOLD_LOOPS
#undef P4R_FOLD_LOOP

P4R_VECTORISED void add_floats(float *target, const uint8_t *source, size_t n) {
    for (size_t i = 0; i < n; i++) target[i] += load<float>(source + 4 * i);
}

P4R_VECTORISED void add_scaled(float *target, const uint8_t *source, size_t n, float first, float second) {
    for (size_t i = 0; i < n; i++) target[i] += load<float>(source + 4 * i) * first * second;
}

P4R_VECTORISED void divide_to_double(const uint8_t *source, size_t n, double *target, double divisor) {
    for (size_t i = 0; i < n; i++) target[i] = same_nan(static_cast<double>(load<float>(source + 4 * i)) / divisor);
}

template <typename T>
void divide_each(uint8_t *target, size_t n, uint32_t divisor) {
    using Wide = std::conditional_t<std::is_floating_point_v<T>, T, int64_t>;
    for (size_t i = 0; i < n; i++)
        store(target + sizeof(T) * i,
              same_nan(static_cast<T>(load<T>(target + sizeof(T) * i) / static_cast<Wide>(divisor))));
}

using FoldLoop = void (*)(uint8_t *, const uint8_t *, size_t);

FoldLoop fold_loop(int fold, int element_type) {
    static constexpr FoldLoop kLoops[][4] = {
        {sum_float32, max_float32, min_float32, product_float32},
        {sum_int32, max_int32, min_int32, product_int32},
        {sum_int64, max_int64, min_int64, product_int64},
        {sum_float64, max_float64, min_float64, product_float64},
    };
    const int kind = element_type == P4R_INT32     ? 1
                     : element_type == P4R_INT64   ? 2
                     : element_type == P4R_FLOAT64 ? 3
                                                   : 0;  // of 16 bits, too, which are widened
    return kLoops[kind][fold - P4R_FOLD_SUM];
}

void widen(int element_type, const uint8_t *source, size_t n, float *target) {
    (element_type == P4R_FLOAT16 ? float16_to_float32 : bfloat16_to_float32)(source, n, target);
}

void narrow(int element_type, const float *source, size_t n, uint8_t *target) {
    (element_type == P4R_FLOAT16 ? float32_to_float16 : float32_to_bfloat16)(source, n, target);
}

inline bool is_half(int element_type) { return element_type == P4R_FLOAT16 || element_type == P4R_BFLOAT16; }

inline uint8_t *bytes_of(float *block) { return reinterpret_cast<uint8_t *>(block); }

// To the element type, rounded once to nearest even.
void round_doubles(int element_type, const double *values, size_t n, uint8_t *target) {
    if (!is_half(element_type)) return double_to_float32(values, n, target);
    float block[kBlock];
    double_to_float32_odd(values, n, block);
    narrow(element_type, block, n, target);
}

// A power of two is divided by with the scale: what remains is rounded once all the same.
void divide_by_scale(int *exponent, uint32_t *divisor) {
    if ((*divisor & (*divisor - 1)) != 0) return;
    *exponent += __builtin_ctz(*divisor);
    *divisor = 1;
}

size_t element_bytes(int element_type) { return is_half(element_type) ? 2 : 4; }

}  // namespace

void encode_ordered_half(int element_type, const void *source, size_t n, uint8_t *lanes, bool invert) {
    const uint16_t infinity = element_type == P4R_FLOAT16 ? 0x7c00 : 0x7f80;
    order_halves(static_cast<const uint8_t *>(source), n, lanes, infinity, invert ? 0xffff : 0);
    swap_halves(lanes, n);
}

void decode_ordered_half(int element_type, const uint8_t *lanes, size_t n, void *target, bool invert) {
    const bool is_float16 = element_type == P4R_FLOAT16;
    auto *out = static_cast<uint8_t *>(target);
    memcpy(out, lanes, 2 * n);
    swap_halves(out, n);
    disorder_halves(out, n, out, is_float16 ? 0x7c00 : 0x7f80, is_float16 ? 0x7e00 : 0x7fc0, invert ? 0xffff : 0);
}

uint8_t block_exponent(int element_type, const void *source, size_t n) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(source);
    uint32_t bits;
    if (!is_half(element_type)) {
        bits = absmax_32(in, n);
    } else if (const uint16_t most = absmax_16(in, n); element_type == P4R_BFLOAT16) {
        bits = static_cast<uint32_t>(most) << 16;
    } else {
        const float value = float16_value(most);
        memcpy(&bits, &value, 4);
    }
    return static_cast<uint8_t>(std::max(bits >> 23, bits != 0 ? 1u : 0u));
}

}  // namespace p4r

using namespace p4r;

void p4r_encode_lanes(int element_type, int ordered, const void *source, size_t n, void *lanes, int exponent,
                      int invert) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(source);
    auto *out = static_cast<uint8_t *>(lanes);
    const uint32_t flip = invert ? ~0u : 0;
    if (element_type == P4R_INT32) return encode_int32(in, n, out, flip);
    const Scale scale(exponent);
    const auto encode = [&](const uint8_t *floats, size_t count, uint8_t *target) {
        if (ordered)
            encode_ordered(floats, count, target, flip);
        else
            encode_float32(floats, count, target, scale.first, scale.second, flip);
    };
    if (!is_half(element_type)) return encode(in, n, out);
    for (size_t i = 0; i < n; i += kBlock) {
        float block[kBlock];
        const size_t count = std::min(kBlock, n - i);
        widen(element_type, in + 2 * i, count, block);
        encode(bytes_of(block), count, out + 4 * i);
    }
}

void p4r_decode_lanes(int element_type, int ordered, const void *lanes, size_t n, void *target, int exponent,
                      uint32_t divisor, int invert) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(lanes);
    auto *out = static_cast<uint8_t *>(target);
    const uint32_t flip = invert ? ~0u : 0;
    if (element_type == P4R_INT32)
        return divisor == 1 ? decode_int32(in, n, out, flip) : decode_int32_average(in, n, out, divisor, flip);
    if (!ordered) divide_by_scale(&exponent, &divisor);
    if (!is_half(element_type)) {
        if (ordered) return decode_ordered(in, n, out, flip);
        if (divisor == 1 && exponent >= -95 && exponent <= 126)
            return decode_float32(in, n, out, std::ldexp(1.0f, -exponent), flip);
    }
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t count = std::min(kBlock, n - i);
        uint8_t *block_target = out + element_bytes(element_type) * i;
        if (ordered) {
            float block[kBlock];
            decode_ordered(in + 4 * i, count, bytes_of(block), flip);
            narrow(element_type, block, count, block_target);
        } else {
            double block[kBlock];
            decode_double(in + 4 * i, count, block, std::ldexp(1.0, -exponent), divisor, flip);
            round_doubles(element_type, block, count, block_target);
        }
    }
}

void p4r_encode_half(int element_type, const void *source, size_t n, void *lanes, int exponent) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(source);
    auto *out = static_cast<uint8_t *>(lanes);
    const Scale scale(exponent);
    for (size_t i = 0; i < n; i += kBlock) {
        float block[kBlock];
        const size_t count = std::min(kBlock, n - i);
        if (is_half(element_type))
            widen(element_type, in + 2 * i, count, block);
        else
            memcpy(block, in + 4 * i, 4 * count);
        scale_floats(block, count, scale.first, scale.second);
        float32_to_float16(block, count, out + 2 * i);
        swap_halves(out + 2 * i, count);
    }
}

void p4r_decode_half(int element_type, const void *lanes, size_t n, void *target, int exponent, uint32_t divisor) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(lanes);
    auto *out = static_cast<uint8_t *>(target);
    const size_t element = element_bytes(element_type);
    divide_by_scale(&exponent, &divisor);
    const Scale scale(-exponent);
    for (size_t i = 0; i < n; i += kBlock) {
        uint8_t swapped[2 * kBlock];
        float block[kBlock];
        const size_t count = std::min(kBlock, n - i);
        memcpy(swapped, in + 2 * i, 2 * count);
        swap_halves(swapped, count);
        float16_to_float32(swapped, count, block);
        if (divisor != 1) {
            double values[kBlock];
            divide_to_double(bytes_of(block), count, values, std::ldexp(static_cast<double>(divisor), exponent));
            round_doubles(element_type, values, count, out + element * i);
            continue;
        }
        // Eleven bits: exact, but for what is beyond the smallest or largest number of the element type.
        scale_floats(block, count, scale.first, scale.second);
        if (is_half(element_type))
            narrow(element_type, block, count, out + 2 * i);
        else
            memcpy(out + 4 * i, block, 4 * count);
    }
}

void p4r_leave_residual(void *values, size_t n, int exponent) {
    const DefaultFloatMode mode;
    auto *const out = static_cast<uint8_t *>(values);
    const Scale up(exponent), down(-exponent);
    for (size_t i = 0; i < n; i += kBlock) {
        float block[kBlock];
        uint8_t halves[2 * kBlock];
        const size_t count = std::min(kBlock, n - i);
        memcpy(block, out + 4 * i, 4 * count);
        scale_floats(block, count, up.first, up.second);
        float32_to_float16(block, count, halves);
        float16_to_float32(halves, count, block);
        scale_floats(block, count, down.first, down.second);
        subtract_finite(out + 4 * i, block, count);
    }
}

void p4r_fold(int fold, int element_type, void *target, const void *source, size_t n) {
    const DefaultFloatMode mode;
    auto *out = static_cast<uint8_t *>(target);
    const auto *in = static_cast<const uint8_t *>(source);
    const FoldLoop loop = fold_loop(fold, element_type);
    if (!is_half(element_type)) return loop(out, in, n);
    for (size_t i = 0; i < n; i += kBlock) {
        alignas(kAligned) float mine[kBlock];
        alignas(kAligned) float theirs[kBlock];
        const size_t count = std::min(kBlock, n - i);
        widen(element_type, out + 2 * i, count, mine);
        widen(element_type, in + 2 * i, count, theirs);
        loop(bytes_of(mine), bytes_of(theirs), count);
        narrow(element_type, mine, count, out + 2 * i);
    }
}

void p4r_sum_rows(int element_type, const void *rows, size_t stride, size_t count, size_t n, uint32_t divisor,
                  void *target) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(rows);
    const size_t element = element_bytes(element_type);
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t part = std::min(kBlock, n - i);
        double sums[kBlock] = {};
        for (size_t row = 0; row < count; row++) {
            float block[kBlock];
            const uint8_t *source = in + row * stride + element * i;
            if (is_half(element_type))
                widen(element_type, source, part, block);
            else
                memcpy(block, source, 4 * part);
            for (size_t j = 0; j < part; j++) sums[j] += static_cast<double>(block[j]);
        }
        if (divisor != 1)
            for (size_t j = 0; j < part; j++) sums[j] /= divisor;
        for (size_t j = 0; j < part; j++) sums[j] = same_nan(sums[j]);
        round_doubles(element_type, sums, part, static_cast<uint8_t *>(target) + element * i);
    }
}

void p4r_sum_floats(int element_type, const void *const *rows, size_t count, size_t n, int exponent, void *target) {
    const DefaultFloatMode mode;
    const Scale scale(exponent);
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t part = std::min(kBlock, n - i);
        alignas(kAligned) float sums[kBlock] = {};
        alignas(kAligned) float block[kBlock];
        for (size_t row = 0; row < count; row++) {
            const uint8_t *source = static_cast<const uint8_t *>(rows[row]) + element_bytes(element_type) * i;
            if (is_half(element_type)) {
                widen(element_type, source, part, block);
                source = bytes_of(block);
            }
            if (exponent == 0)
                add_floats(sums, source, part);
            else
                add_scaled(sums, source, part, scale.first, scale.second);
        }
        memcpy(static_cast<uint8_t *>(target) + 4 * i, sums, 4 * part);
    }
}

void p4r_round_floats(int element_type, const void *sums, size_t n, int exponent, uint32_t divisor, void *target) {
    const DefaultFloatMode mode;
    const auto *in = static_cast<const uint8_t *>(sums);
    const double by = std::ldexp(static_cast<double>(divisor), -exponent);
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t part = std::min(kBlock, n - i);
        double values[kBlock];
        divide_to_double(in + 4 * i, part, values, by);
        round_doubles(element_type, values, part, static_cast<uint8_t *>(target) + element_bytes(element_type) * i);
    }
}

int p4r_has_special(int element_type, const void *source, size_t n) {
    return block_exponent(element_type, source, n) == 0xff ? 1 : 0;
}

void p4r_divide(int element_type, void *target, size_t n, uint32_t divisor) {
    const DefaultFloatMode mode;
    auto *out = static_cast<uint8_t *>(target);
    if (element_type == P4R_INT32) return divide_each<int32_t>(out, n, divisor);
    if (element_type == P4R_INT64) return divide_each<int64_t>(out, n, divisor);
    if (element_type == P4R_FLOAT64) return divide_each<double>(out, n, divisor);
    for (size_t i = 0; i < n; i += kBlock) {
        const size_t count = std::min(kBlock, n - i);
        uint8_t *const block_target = out + element_bytes(element_type) * i;
        float block[kBlock];
        if (is_half(element_type))
            widen(element_type, block_target, count, block);
        else
            memcpy(block, block_target, 4 * count);
        double quotients[kBlock];
        divide_to_double(bytes_of(block), count, quotients, divisor);
        round_doubles(element_type, quotients, count, block_target);
    }
}

uint64_t p4r_float_mode_enter(void) { return DefaultFloatMode::enter(); }

void p4r_float_mode_leave(uint64_t before) { DefaultFloatMode::leave(before); }
