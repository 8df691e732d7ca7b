// What generated programs are made of besides tables, wide integers and hashes.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "bytes.h"
#include "hash.h"
#include "host.h"
#include "meter.h"
#include "random.h"
#include "table.h"
#include "value_set.h"
#include "wide.h"

namespace p4 {

// What goes with a packet besides its headers and metadata.
struct Context {
    const uint8_t* frame;
    uint32_t length;         // as it came in: what counters count
    uint32_t packet_length;  // follows add_header and remove_header
    const uint8_t* payload;  // behind what the parser took
    uint32_t payload_length;
    uint32_t error = 0;
    uint32_t source = 0;  // the port it came in on, whatever its metadata says
    uint32_t truncate = ~uint32_t(0);
    // What is asked for at the end of a pipeline (targets/simple_switch/register_access.h): 0 is nothing.
    uint16_t clone = 0, clone_list = 0, digest = 0, resubmit = 0, recirculate = 0;
    bool exit = false;
    bool aborted = false;

    Context(const uint8_t* frame_, uint32_t length_)
        : frame(frame_), length(length_), packet_length(length_), payload(frame_), payload_length(length_) {}

    // For a copy of the packet: nothing is asked for it.
    Context copy() const {
        Context result = *this;
        result.truncate = ~uint32_t(0);
        result.clone = result.clone_list = result.digest = result.resubmit = result.recirculate = 0;
        return result;
    }
};

// A session of a clone, as asked for: the highest bit says that there is one.
constexpr uint16_t CLONE = 0x8000, CLONE_SESSION = 0x7FFF;

// A line for the log, at most as long as its buffer.
class LogLine {
  public:
    void text(const char* s) {
        while (*s && length_ < sizeof text_) text_[length_++] = *s++;
    }
    void number(uint64_t value, bool is_signed) {
        char digits[24];
        std::snprintf(digits, sizeof digits, is_signed ? "%lld" : "%llu", (unsigned long long)value);
        text(digits);
    }
    // Decimal, as BMv2 writes it.
    template <int N>
    void number(Wide<N> value, bool is_signed) {
        if (is_signed && value.w[N - 1] >> 63) {
            text("-");
            for (int i = 0, carry = 1; i < N; i++) {
                value.w[i] = ~value.w[i] + uint64_t(carry);
                carry = carry && value.w[i] == 0;
            }
        }
        constexpr uint64_t PART = 1000000000000000000u;  // 18 digits
        uint64_t parts[N * 64 / 59 + 2];
        int count = 0;
        for (bool more = true; more; count++) {
            unsigned __int128 rest = 0;
            more = false;
            for (int i = N - 1; i >= 0; i--) {
                rest = rest << 64 | value.w[i];
                value.w[i] = uint64_t(rest / PART);
                rest %= PART;
                more |= value.w[i] != 0;
            }
            parts[count] = uint64_t(rest);
        }
        number(parts[--count], false);
        while (count-- > 0) {
            char digits[24];
            std::snprintf(digits, sizeof digits, "%018llu", (unsigned long long)parts[count]);
            text(digits);
        }
    }
    void send(Host& host, int level) { host.log(level, text_, length_); }

  private:
    char text_[1024];
    size_t length_ = 0;
};

class ProgramBase {
  public:
    explicit ProgramBase(Host& host_) : host(host_), random(host_.seed) {}
    ~ProgramBase() {
        for (const Block& block : blocks_) munmap(block.start, block.size);
    }
    ProgramBase(const ProgramBase&) = delete;
    ProgramBase& operator=(const ProgramBase&) = delete;

    Host& host;
    Random random;

  protected:
    // Zeroed memory that takes up room only where it is written.
    template <class T>
    T* array(size_t count) {
        const size_t size = count * sizeof(T) + 64;
        void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) throw std::bad_alloc();
        blocks_.push_back({start, size});
        return static_cast<T*>(start);
    }

  private:
    struct Block {
        void* start;
        size_t size;
    };
    std::vector<Block> blocks_;
};

// A register array: where it starts, and the bytes of each cell (a little-endian number).
struct Cells {
    void* start;
    size_t size;
};

// hash() maps into a range of `size` values; BMv2 treats a size of 0 as 1.
P4_INLINE uint64_t bounded(uint64_t hash, uint64_t size) { return size ? hash % size : 0; }

// A stack of header unions is as many stacks as the unions have members: `next` moves once, with the first. BMv2
// swaps the unions and leaves those that were pushed or popped as they are.
template <class H>
inline void swap_elements(H* stack, uint8_t* valid, uint32_t i, uint32_t j) {
    std::swap(stack[i], stack[j]);
    std::swap(valid[i], valid[j]);
}

template <class H>
inline void push_union(H* stack, uint8_t* valid, uint32_t depth, uint64_t count) {
    for (uint32_t i = depth; count && i-- > count;) swap_elements(stack, valid, i, uint32_t(i - count));
}

template <class H>
inline void pop_union(H* stack, uint8_t* valid, uint32_t depth, uint64_t count) {
    for (uint32_t i = 0; count && i + count < depth; i++) swap_elements(stack, valid, i, uint32_t(i + count));
}

// A header without a value keeps the length of its varbit field, so that it matters where it goes.
template <class H>
inline void push_front(H* stack, uint8_t* valid, uint32_t& next, uint32_t depth, uint64_t count) {
    const uint32_t n = uint32_t(count < depth ? count : depth);
    next = next + n < depth ? next + n : depth;
    push_union(stack, valid, depth, count);
    for (uint32_t i = 0; i < n; i++) valid[i] = 0;
}

template <class H>
inline void pop_front(H* stack, uint8_t* valid, uint32_t& next, uint32_t depth, uint64_t count) {
    const uint32_t n = uint32_t(count < depth ? count : depth);
    next = next > n ? next - n : 0;
    pop_union(stack, valid, depth, count);
    for (uint32_t i = depth - n; i < depth; i++) valid[i] = 0;
}

}  // namespace p4
