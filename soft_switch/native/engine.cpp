// The C interface of the engine. Functions that return int give 0 or -errno.
#include "engine.h"

using p4::Engine;

#define P4_API extern "C" __attribute__((visibility("default")))

P4_API Engine* engine_create(uint32_t cpu_port, uint32_t drop_port, uint64_t seed) {
    return new Engine(cpu_port, drop_port, seed);
}

// The SHA-256 of the sources, where the engine was built with the package.
#ifndef P4_SOURCES
#define P4_SOURCES ""
#endif
P4_API const char* engine_sources() { return P4_SOURCES; }

P4_API void engine_destroy(Engine* engine) { delete engine; }

// The engine as programs see it.
P4_API void* engine_host(Engine* engine) { return static_cast<p4::Host*>(engine); }

P4_API void engine_set_program(Engine* engine, p4::ProcessFn function, p4::PassesFn passes, void* program) {
    engine->set_program(function, passes, program);
}
P4_API int engine_attach(Engine* engine, uint32_t port, const char* interface, const char* capture) {
    return engine->attach(port, interface, capture);
}
P4_API int engine_detach(Engine* engine, uint32_t port) { return engine->detach(port); }
P4_API int engine_stats(Engine* engine, uint32_t port, p4::PortStats* stats) { return engine->stats(port, stats); }
P4_API int engine_set_loss(Engine* engine, uint32_t port, int out, double probability, uint64_t seed) {
    return engine->set_loss(port, out != 0, probability, seed);
}
P4_API void engine_multicast_set(Engine* engine, uint32_t group, const p4::Replica* replicas, size_t count) {
    engine->multicast_set(group, replicas, count);
}
P4_API int engine_multicast_delete(Engine* engine, uint32_t group) {
    return engine->multicast_delete(group) ? 0 : -ENOENT;
}
P4_API void engine_clone_set(Engine* engine, uint32_t session, const p4::Replica* replicas, size_t count,
                             uint32_t packet_length) {
    engine->clone_set(session, replicas, count, packet_length);
}
P4_API int engine_clone_delete(Engine* engine, uint32_t session) {
    return engine->clone_delete(session) ? 0 : -ENOENT;
}
P4_API void engine_set_priority_queues(Engine* engine, uint32_t count) { engine->set_priority_queues(count); }
P4_API void engine_inject(Engine* engine, uint32_t port, const uint8_t* frame, uint32_t length) {
    engine->inject(port, frame, length);
}

// Frames that leave, each behind {port, length}. The result is valid until engine_free.
P4_API p4::Collector* engine_process(Engine* engine, uint32_t port, const uint8_t* frame, uint32_t length) {
    auto* collector = new p4::Collector;
    engine->process(port, frame, length, *collector);
    return collector;
}
P4_API const uint8_t* engine_collected(const p4::Collector* collector, size_t* size) {
    *size = collector->bytes.size();
    return collector->bytes.data();
}
P4_API void engine_free(p4::Collector* collector) { delete collector; }

P4_API void engine_globals(Engine* engine, uint64_t* values) { engine->globals(values); }

// The kind of the next event (0: none within the time). Its bytes go to `data`, which has room for MAX_FRAME.
P4_API uint32_t engine_next_event(Engine* engine, int timeout_ms, uint8_t* data, uint32_t* length, uint32_t* level) {
    p4::Event event;
    engine->next_event(event, timeout_ms);
    *length = uint32_t(event.data.size());
    *level = event.level;
    if (!event.data.empty()) std::memcpy(data, event.data.data(), event.data.size());
    return event.kind;
}
P4_API void engine_close_events(Engine* engine) { engine->close_events(); }
P4_API int engine_start(Engine* engine) { return engine->start(); }
P4_API void engine_stop(Engine* engine) { engine->stop(); }
