#include "keep.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "p4r.h"
#include "quantise.h"

namespace p4r {
namespace {

constexpr size_t kBlockBytes = 16 * 1024;   // stays in the first cache while it is looked at twice
constexpr size_t kStreamed = 1024 * 1024;   // less than this may be in a cache when it is needed again

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

uint32_t keep(int element_type, size_t element_bytes, const void *source, size_t n, void *target) {
    const auto *in = static_cast<const uint8_t *>(source);
    auto *out = static_cast<uint8_t *>(target);
    const bool floats = element_type != P4R_INT32;
    const bool streamed = n * element_bytes >= kStreamed;
    const size_t block = kBlockBytes / element_bytes;
    uint32_t most = 0;
    for (size_t i = 0; i < n; i += block) {
        const size_t count = std::min(block, n - i);
        const uint8_t *from = in + i * element_bytes;
        if (floats) most = std::max(most, absmax_bits(element_type, from, count));
        if (streamed)
            stream(out + i * element_bytes, from, count * element_bytes);
        else
            memcpy(out + i * element_bytes, from, count * element_bytes);
    }
#if defined(__SSE2__)
    if (streamed) _mm_sfence();
#endif
    return most;
}

}  // namespace p4r
