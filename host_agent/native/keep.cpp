#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "p4r.h"

namespace p4r {
namespace {

constexpr size_t kStreamed = 1024 * 1024;  // less than this may be in a cache when it is needed again

// Past the caches, where the processor can: the copy is not read soon, and nobody's data has to make room for it.
void stream(uint8_t *target, const uint8_t *source, size_t bytes) {
#if defined(__SSE2__)
    const size_t odd = std::min(bytes, (16 - reinterpret_cast<uintptr_t>(target) % 16) % 16);
    memcpy(target, source, odd);
    size_t done = odd;
    for (; done + 16 <= bytes; done += 16)
        _mm_stream_si128(reinterpret_cast<__m128i *>(target + done),
                         _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + done)));
    memcpy(target + done, source + done, bytes - done);
#else
    memcpy(target, source, bytes);
#endif
}

}  // namespace
}  // namespace p4r

void p4r_keep(const void *source, size_t bytes, void *target) {
    const auto *in = static_cast<const uint8_t *>(source);
    auto *out = static_cast<uint8_t *>(target);
    if (bytes < p4r::kStreamed) {
        memcpy(out, in, bytes);
        return;
    }
    p4r::stream(out, in, bytes);
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
