// The C interface of the engine. Functions that return int give 0 or -errno.
#include "engine.h"

using p4::Engine;

#define P4_API extern "C" __attribute__((visibility("default")))

P4_API Engine* engine_create(uint32_t cpu_port, uint32_t drop_port, uint64_t seed, uint32_t priority_queues) {
    return new Engine(cpu_port, drop_port, seed, priority_queues);
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
P4_API int engine_fault_add(Engine* engine, uint32_t port, int out, const p4::FaultRule* rule) {
    return engine->fault_add(port, out != 0, *rule);
}
P4_API int engine_fault_remove(Engine* engine, uint32_t port, int out, uint64_t id) {
    return engine->fault_remove(port, out != 0, id);
}
P4_API int engine_fault_report(Engine* engine, uint32_t port, int out, p4::FaultReport* to, size_t room) {
    return engine->fault_report(port, out != 0, to, room);
}
P4_API int engine_fault_struck(Engine* engine, uint32_t port, int out, uint64_t* to) {
    return engine->fault_struck(port, out != 0, to);
}
P4_API void engine_set_wires(Engine* engine) { engine->set_wires(); }

// A port's faults without a port, for frames and times that are given.
P4_API p4::PortFaults* faults_create() { return new p4::PortFaults; }
P4_API void faults_destroy(p4::PortFaults* faults) { delete faults; }
P4_API int faults_add(p4::PortFaults* faults, int out, const p4::FaultRule* rule) {
    const int status = faults->of(out != 0).add(*rule);
    faults->look();
    return status;
}
P4_API int faults_remove(p4::PortFaults* faults, int out, uint64_t id) {
    const int status = faults->of(out != 0).remove(id);
    faults->look();
    return status;
}
P4_API int faults_report(p4::PortFaults* faults, int out, p4::FaultReport* to, size_t room) {
    return int(faults->of(out != 0).report(to, room));
}
namespace {
void collect(p4::Collector& collector, uint32_t out, const uint8_t* frame, uint32_t length) {
    const uint32_t head[2] = {out, length};
    const auto* words = reinterpret_cast<const uint8_t*>(head);
    collector.bytes.insert(collector.bytes.end(), words, words + sizeof head);
    collector.bytes.insert(collector.bytes.end(), frame, frame + length);
}
}  // namespace
P4_API int faults_active(const p4::PortFaults* faults) { return faults->active(); }
// What goes on because of a frame, each behind {out, length}. The frame may be written into.
P4_API p4::Collector* faults_pass(p4::PortFaults* faults, int out, uint8_t* frame, uint32_t length, uint64_t now_us) {
    auto* collector = new p4::Collector;
    faults->pass(out != 0, frame, length, now_us, [&](const uint8_t* bytes, uint32_t n) { collect(*collector, out != 0, bytes, n); });
    return collector;
}
// What is due, and goes on.
P4_API p4::Collector* faults_release(p4::PortFaults* faults, uint64_t now_us) {
    auto* collector = new p4::Collector;
    for (const uint32_t out : {0u, 1u})
        faults->of(out).release(now_us, [&](const uint8_t* bytes, uint32_t n) { collect(*collector, out, bytes, n); });
    faults->look();
    return collector;
}
// When the next is due; all ones: none is held.
P4_API uint64_t faults_due_us(const p4::PortFaults* faults) { return faults->due_us(); }
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
