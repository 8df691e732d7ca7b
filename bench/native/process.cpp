// A host for a compiled program without ports, and a clock around its packets: bench.process compiles and drives it.
#include <time.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "host.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

class Sink final : public p4::Host {
  public:
    uint8_t* reserve(uint32_t, uint32_t) override { return frames_[next_++ % FRAMES]; }
    void commit(uint32_t length) override { left++, bytes += length; }
    p4::Replicas multicast(uint32_t group) override {
        const auto found = groups.find(group);
        if (found == groups.end()) return {nullptr, 0};
        return {found->second.data(), found->second.size()};
    }
    p4::CloneSession clone_session(uint32_t) override { return {}; }
    void digest(uint32_t, const uint64_t*, size_t) override {}
    uint64_t now_us() override { return 1; }
    uint64_t fresh_us() override { return 1; }
    void log(int, const char*, size_t) override {}
    void lock() override { mutex_.lock(); }
    void unlock() override { mutex_.unlock(); }

    std::unordered_map<uint32_t, std::vector<p4::Replica>> groups;
    uint64_t left = 0, bytes = 0;

  private:
    static constexpr int FRAMES = 64;
    uint8_t frames_[FRAMES][p4::MAX_FRAME];
    size_t next_ = 0;
    std::mutex mutex_;
};

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}

}  // namespace

API void* sink_create() { return static_cast<p4::Host*>(new Sink); }
API void sink_group(void* host, uint32_t group, const p4::Replica* replicas, size_t count) {
    static_cast<Sink*>(static_cast<p4::Host*>(host))->groups[group].assign(replicas, replicas + count);
}

// Processes `count` frames of `length` bytes each, one behind the other, that come in on `ports`: nanoseconds of
// this thread; `left` gets how many frames left.
API uint64_t sink_run(void* host, void (*process)(void*, const uint8_t*, uint32_t, uint32_t), void* program,
                      const uint8_t* frames, uint32_t length, const uint32_t* ports, uint64_t count, uint64_t* left) {
    auto* sink = static_cast<Sink*>(static_cast<p4::Host*>(host));
    const uint64_t before = sink->left, start = now_ns();
    for (uint64_t i = 0; i < count; i++) process(program, frames + i * length, length, ports[i]);
    const uint64_t spent = now_ns() - start;
    *left = sink->left - before;
    return spent;
}
