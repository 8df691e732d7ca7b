// What the workers of one machine need beside their planes: counters in shared memory that processes wait for, and
// blocks of floats as whole numbers, with the scales that all workers of the job have agreed on.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
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
constexpr int64_t kSecond = 1000000000;       // ns
constexpr int64_t kLongestSleep = 100000000;  // ns

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

// A 32-bit counter counts modulo 2^32; a 64-bit one does not come round.
bool is_reached(uint32_t seen, uint32_t value) { return static_cast<int32_t>(seen - value) >= 0; }
bool is_reached(uint64_t seen, uint64_t value) { return seen >= value; }

// The word of a counter that the kernel compares and waits on: of 64 bits the low half, which changes with every step.
const uint32_t *futex_of(const uint32_t *counter) { return counter; }
const uint32_t *futex_of(const uint64_t *counter) {
    return reinterpret_cast<const uint32_t *>(counter) + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

int64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * kSecond + now.tv_nsec;
}

static_assert(__atomic_always_lock_free(sizeof(uint64_t), nullptr), "processes share 64-bit counters without a lock");

// The fence orders loads before this one with it: who reads a counter, what it guards, and the counter again, and finds
// it unchanged, has read what belongs to it.
template <typename T>
T load(const T *counter) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

// The fence orders stores behind this one with it: nobody sees them before the counter.
template <typename T>
void store(T *counter, T value) {
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    syscall(SYS_futex, futex_of(counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

template <typename T>
bool wait_for(const T *counter, T value, int64_t timeout_ns) {
    const int64_t now = monotonic_ns();
    const int64_t until = timeout_ns > INT64_MAX - now ? INT64_MAX : now + std::max<int64_t>(timeout_ns, 0);
    for (;;) {
        const T seen = load(counter);
        if (is_reached(seen, value)) return true;
        const int64_t left = until - monotonic_ns();
        if (left <= 0) return false;
        // Other processes wake it, so it is not private. The kernel compares 32 bits: a counter that is set 2^32 further
        // between the load and here would be slept through, for as long as this at most.
        const int64_t sleep = std::min(left, kLongestSleep);
        const timespec relative{static_cast<time_t>(sleep / kSecond), static_cast<long>(sleep % kSecond)};
        syscall(SYS_futex, futex_of(counter), FUTEX_WAIT, static_cast<uint32_t>(seen), &relative, nullptr, 0);
    }
}

// f(index, first element, elements) of each block; `starts` are those of the blocks, `end` of the last one.
template <typename F>
void each(const uint64_t *starts, size_t blocks, uint64_t end, F f) {
    for (size_t i = 0; i < blocks; i++) f(i, starts[i] - starts[0], (i + 1 < blocks ? starts[i + 1] : end) - starts[i]);
}

}  // namespace
}  // namespace p4r

using namespace p4r;

int p4r_counter_wait(const uint32_t *counter, uint32_t value, int64_t timeout_ns) {
    return wait_for(counter, value, timeout_ns);
}
void p4r_counter_set(uint32_t *counter, uint32_t value) { store(counter, value); }

int p4r_counter64_wait(const uint64_t *counter, uint64_t value, int64_t timeout_ns) {
    return wait_for(counter, value, timeout_ns);
}
void p4r_counter64_set(uint64_t *counter, uint64_t value) { store(counter, value); }
uint64_t p4r_counter64_get(const uint64_t *counter) { return load(counter); }

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
