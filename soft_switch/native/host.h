// The engine as a program sees it, and a program as the engine sees it. The two are compiled apart, from the same
// headers by the same compiler.
#pragma once
#include <cstddef>
#include <cstdint>

namespace p4 {

constexpr uint32_t MAX_FRAME = 16384;

// A copy of a packet to make: egress port and the instance (egress_rid) it carries.
struct Replica {
    uint32_t port;
    uint32_t instance;
};

struct Replicas {
    const Replica* list;
    size_t count;
};

// Where the clones of a session go; they leave with at most `packet_length` bytes.
struct CloneSession {
    Replicas replicas;
    uint32_t packet_length;
};

class Host {
  public:
    // Room for a frame of exactly `length` bytes on its way out of `port`; null (and counted) if it has to be dropped.
    virtual uint8_t* reserve(uint32_t port, uint32_t length) = 0;
    // The frame last reserved is complete; its first `length` bytes are sent.
    virtual void commit(uint32_t length) = 0;
    virtual Replicas multicast(uint32_t group) = 0;
    virtual CloneSession clone_session(uint32_t session) = 0;
    // A digest's values, each in as many words as it takes.
    virtual void digest(uint32_t list, const uint64_t* words, size_t count) = 0;
    // Microseconds since the engine started; one value for a batch.
    virtual uint64_t now_us() = 0;
    // The same, at this moment.
    virtual uint64_t fresh_us() = 0;
    virtual void log(int level, const char* text, size_t length) = 0;
    // Control operations exclude the packet thread.
    virtual void lock() = 0;
    virtual void unlock() = 0;

    uint32_t drop_port = 511;
    uint64_t seed = 0;
    uint64_t failed_asserts = 0;
    uint32_t priority_queues = 1;   // packets of a greater priority are dropped, as BMv2 does
    bool waiting = false;           // the program has packets that need another pass
    uint64_t passes_dropped = 0;    // packets that needed one and did not get it

  protected:
    ~Host() = default;
};

class Guard {
  public:
    explicit Guard(Host& host) : host_(host) { host_.lock(); }
    ~Guard() { host_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    Host& host_;
};

// Takes one frame through the program; what comes out goes to the host.
using ProcessFn = void (*)(void* program, const uint8_t* frame, uint32_t length, uint32_t port);

// Takes packets that wait through another pass, up to `budget`, and says in the host whether more wait; a negative
// budget drops them.
using PassesFn = void (*)(void* program, int budget);

constexpr int LOG_INFO = 0, LOG_ERROR = 1;

}  // namespace p4
