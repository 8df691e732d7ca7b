// What the workers of one machine need beside their planes: counters in shared memory that processes wait for, and
// blocks of floats as whole numbers, with the scales that all workers of the job have agreed on.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "p4r.h"
#include "quantise.h"
#include "vector.h"

namespace p4r {
namespace {

constexpr uint8_t kSpecial = 255;  // an Inf or NaN is there
constexpr int kBias = 126;         // a block's numbers are below 2^(exponent - kBias)
constexpr size_t kAtOnce = 512;    // elements, on the stack

P4R_VECTORISED void swap_words(uint32_t *target, const uint32_t *source, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (size_t i = 0; i < n; i++) target[i] = __builtin_bswap32(source[i]);
#else
    if (target != source) memcpy(target, source, n * sizeof *target);
#endif
}

P4R_VECTORISED void add_words(uint32_t *target, const uint32_t *source, size_t n) {
    for (size_t i = 0; i < n; i++) target[i] += source[i];
}

bool is_reached(uint32_t seen, uint32_t value) { return static_cast<int32_t>(seen - value) >= 0; }

// f(index, first element, elements) of each block; `starts` are those of the blocks, `end` of the last one.
template <typename F>
void each(const uint64_t *starts, size_t blocks, uint64_t end, F f) {
    for (size_t i = 0; i < blocks; i++) f(i, starts[i] - starts[0], (i + 1 < blocks ? starts[i + 1] : end) - starts[i]);
}

}  // namespace
}  // namespace p4r

using namespace p4r;

int p4r_counter_wait(const uint32_t *counter, uint32_t value, int64_t timeout_ns) {
    timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ns / 1000000000;
    until.tv_nsec += timeout_ns % 1000000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    for (;;) {
        const uint32_t seen = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
        if (is_reached(seen, value)) return 1;
        // FUTEX_WAIT_BITSET takes an absolute time; other processes wake it, so it is not private.
        if (syscall(SYS_futex, counter, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY) != 0 &&
            errno == ETIMEDOUT)
            return is_reached(__atomic_load_n(counter, __ATOMIC_ACQUIRE), value);
    }
}

void p4r_counter_set(uint32_t *counter, uint32_t value) {
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, counter, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void p4r_exponents_of_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks, uint64_t end,
                             uint8_t *exponents) {
    const size_t width = element_type == P4R_FLOAT32 ? 4 : 2;
    each(starts, blocks, end, [&](size_t i, uint64_t at, uint64_t n) {
        exponents[i] = block_exponent(element_type, static_cast<const uint8_t *>(source) + at * width, n);
    });
}

void p4r_encode_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks, uint64_t end,
                       const uint8_t *exponents, int most, void *target) {
    const size_t width = element_type == P4R_FLOAT32 ? 4 : 2;
    each(starts, blocks, end, [&](size_t i, uint64_t at, uint64_t n) {
        auto *const to = static_cast<uint32_t *>(target) + at;
        if (exponents[i] == 0 || exponents[i] == kSpecial) {
            memset(to, 0, n * sizeof *to);
            return;
        }
        p4r_encode_lanes(element_type, false, static_cast<const uint8_t *>(source) + at * width, n, to,
                         most + kBias - exponents[i], false);
        swap_words(to, to, n);
    });
}

void p4r_decode_blocks(int element_type, const void *source, const uint64_t *starts, size_t blocks, uint64_t end,
                       const uint8_t *exponents, int most, uint32_t divisor, void *target) {
    const size_t width = element_type == P4R_FLOAT32 ? 4 : 2;
    each(starts, blocks, end, [&](size_t i, uint64_t at, uint64_t n) {
        auto *const to = static_cast<uint8_t *>(target) + at * width;
        if (exponents[i] == 0 || exponents[i] == kSpecial) {
            memset(to, 0, n * width);
            return;
        }
        uint32_t lanes[kAtOnce];
        for (uint64_t done = 0; done < n; done += kAtOnce) {
            const size_t some = std::min<uint64_t>(kAtOnce, n - done);
            swap_words(lanes, static_cast<const uint32_t *>(source) + at + done, some);
            p4r_decode_lanes(element_type, false, lanes, some, to + done * width, most + kBias - exponents[i], divisor,
                             false);
        }
    });
}

void p4r_sum_words(const void *const *rows, size_t count, size_t n, void *target) {
    auto *const to = static_cast<uint32_t *>(target);
    for (size_t done = 0; done < n; done += kAtOnce) {
        const size_t some = std::min(kAtOnce, n - done);
        memcpy(to + done, static_cast<const uint32_t *>(rows[0]) + done, some * sizeof *to);
        for (size_t row = 1; row < count; row++)
            add_words(to + done, static_cast<const uint32_t *>(rows[row]) + done, some);
    }
}
