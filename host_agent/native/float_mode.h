// IEEE 754's default floating-point mode for as long as this lives: to nearest, subnormals as they are, no traps.
//
// The mode is the calling thread's, and new threads inherit it. PyTorch's set_flush_denormal, a library linked with
// -ffast-math or fesetround change it, on one worker and not on another: then ranks would get different bits.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif
#include <cstdint>

namespace p4r {

class DefaultFloatMode {
  public:
    DefaultFloatMode() : before_(enter()) {}
    ~DefaultFloatMode() { leave(before_); }
    DefaultFloatMode(const DefaultFloatMode &) = delete;
    DefaultFloatMode &operator=(const DefaultFloatMode &) = delete;

    // For callers that cannot hold an object: sets the default mode and returns the one before, which `leave` takes.
    static uint64_t enter() {
        const Mode before = read();
        if (before != kDefault) write(kDefault);
        return static_cast<uint64_t>(before);
    }
    static void leave(uint64_t before) {
        if (static_cast<Mode>(before) != kDefault) write(static_cast<Mode>(before));
    }

  private:
    // What was computed is in memory before the mode changes, and what is to be is read from there after it.
    static void barrier() { __asm__ volatile("" : : : "memory"); }

#if defined(__SSE2__)
    using Mode = uint32_t;
    static constexpr Mode kDefault = 0x1f80;  // MXCSR: all exceptions masked, FTZ, DAZ and the rounding bits 0
    static constexpr Mode kFlags = 0x3f;      // exceptions that were seen: no mode
    static Mode read() { return _mm_getcsr() & ~kFlags; }
    static void write(Mode mode) {
        barrier();
        _mm_setcsr(mode);
        barrier();
    }
#elif defined(__aarch64__)
    using Mode = uint64_t;
    static constexpr Mode kDefault = 0;  // FPCR: no traps, FZ, FZ16, DN and RMode 0
    static Mode read() {
        Mode mode;
        __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
        return mode;
    }
    static void write(Mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
    // C knows of the rounding mode alone.
    using Mode = int;
    static constexpr Mode kDefault = FE_TONEAREST;
    static Mode read() { return std::fegetround(); }
    static void write(Mode mode) {
        barrier();
        std::fesetround(mode);
        barrier();
    }
#endif
    uint64_t before_;
};

}  // namespace p4r
