// The C interface: catches what must not cross it and turns it into a sentence.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "driver.h"
#include "endpoint.h"
#include "icrc.h"
#include "link.h"
#include "messages.h"
#include "monitor.h"
#include "p4r.h"

struct p4r_endpoint {
    explicit p4r_endpoint(const p4r_config &config) : machine(config) {}
    p4r::Endpoint machine;
};

namespace {

struct MessagesLink : p4r_link {
    explicit MessagesLink(const p4r_config &config) : machine(config) {}
    p4r::Monitor &monitor() override { return monitor_; }
    uint64_t post(const p4r_operation &op, const char **wrong) override {
        const std::lock_guard<std::mutex> lock(monitor_.mutex());
        if ((*wrong = machine.operations().check(op)) != nullptr) return 0;
        const uint64_t id = machine.post(op);
        monitor_.take_events();
        return id;
    }
    p4r_counters counters() override {
        const std::lock_guard<std::mutex> lock(monitor_.mutex());
        return machine.counters();
    }
    p4r_progress progress() override {
        const std::lock_guard<std::mutex> lock(monitor_.mutex());
        return machine.progress();
    }

    p4r::Messages machine;
    p4r::Monitor monitor_{machine.operations()};
};

MessagesLink &messages(p4r_link *link) { return *static_cast<MessagesLink *>(link); }

void explain(char *error, size_t error_size, const char *text) {
    if (error_size != 0) snprintf(error, error_size, "%s", text);
}

template <typename Handle, typename... Arguments>
Handle *make(const p4r_config *config, char *error, size_t error_size, Arguments... arguments) {
    try {
        if (const char *wrong = p4r::Endpoint::check(*config)) {
            explain(error, error_size, wrong);
            return nullptr;
        }
        return new Handle(*config, arguments...);
    } catch (const std::exception &failure) {
        explain(error, error_size, failure.what());
        return nullptr;
    }
}

template <typename Machine>
size_t describe(const Machine &machine, int64_t now, uint8_t *buffer, size_t capacity) {
    p4r::StateWriter state(now);
    machine.describe(state);
    const size_t length = state.bytes().size();
    memcpy(buffer, state.bytes().data(), std::min(length, capacity));
    return length;
}

}  // namespace

int p4r_abi_version(void) { return P4R_ABI_VERSION; }

p4r_endpoint *p4r_endpoint_new(const p4r_config *config, char *error, size_t error_size) {
    return make<p4r_endpoint>(config, error, error_size);
}

void p4r_endpoint_free(p4r_endpoint *endpoint) { delete endpoint; }

uint64_t p4r_endpoint_post(p4r_endpoint *endpoint, const p4r_operation *op, int64_t now, char *error,
                           size_t error_size) {
    if (const char *wrong = endpoint->machine.operations().check(*op)) {
        explain(error, error_size, wrong);
        return 0;
    }
    return endpoint->machine.post(*op, now);
}

void p4r_endpoint_receive(p4r_endpoint *endpoint, const uint8_t *frame, size_t length, int64_t now) {
    endpoint->machine.receive(frame, length, now);
}

size_t p4r_endpoint_frame_bytes(const p4r_endpoint *endpoint) { return endpoint->machine.frame_bytes(); }

size_t p4r_endpoint_poll(p4r_endpoint *endpoint, int64_t now, uint8_t *buffer, size_t stride, uint32_t *lengths,
                         size_t max_frames) {
    return endpoint->machine.poll(now, buffer, stride, lengths, max_frames);
}

int64_t p4r_endpoint_next_timeout(const p4r_endpoint *endpoint) { return endpoint->machine.next_timeout(); }

void p4r_endpoint_halt(p4r_endpoint *endpoint) { endpoint->machine.operations().halt(); }

int p4r_endpoint_event(p4r_endpoint *endpoint, p4r_event *event) {
    return endpoint->machine.operations().next_event(event) ? 1 : 0;
}

size_t p4r_endpoint_state(const p4r_endpoint *endpoint, int64_t now, uint8_t *buffer, size_t capacity) {
    return describe(endpoint->machine, now, buffer, capacity);
}

void p4r_endpoint_counters(const p4r_endpoint *endpoint, p4r_counters *counters) {
    *counters = endpoint->machine.counters();
}

void p4r_endpoint_progress(const p4r_endpoint *endpoint, p4r_progress *progress) {
    *progress = endpoint->machine.progress();
}

void p4r_link_free(p4r_link *link) { delete link; }

uint64_t p4r_link_post(p4r_link *link, const p4r_operation *op, char *error, size_t error_size) {
    const char *wrong = nullptr;
    const uint64_t id = link->post(*op, &wrong);
    if (wrong != nullptr) explain(error, error_size, wrong);
    return id;
}

int p4r_link_wait(p4r_link *link, uint64_t op_id, int until, int64_t timeout_ns) {
    return link->monitor().wait(op_id, until == P4R_EVENT_COMPLETED, timeout_ns);
}

uint64_t p4r_link_done(p4r_link *link, int until) { return link->monitor().done(until == P4R_EVENT_COMPLETED); }

void p4r_link_abort(p4r_link *link) { link->monitor().abort(); }

int p4r_link_failure(p4r_link *link, p4r_event *event) { return link->monitor().failure(event) ? 1 : 0; }

void p4r_link_counters(p4r_link *link, p4r_counters *counters) { *counters = link->counters(); }

void p4r_link_progress(p4r_link *link, p4r_progress *progress) { *progress = link->progress(); }

p4r_link *p4r_driver_new(const p4r_config *config, const char *interface, char *error, size_t error_size) {
    return make<p4r::Driver>(config, error, error_size, interface);
}

void p4r_driver_stop(p4r_link *link) { static_cast<p4r::Driver *>(link)->stop(); }

p4r_link *p4r_messages_new(const p4r_config *config, char *error, size_t error_size) {
    return make<MessagesLink>(config, error, error_size);
}

size_t p4r_messages_bytes(const p4r_link *link) {
    return static_cast<const MessagesLink *>(link)->machine.message_bytes();
}

size_t p4r_messages_next_send(p4r_link *link, void *buffer, size_t capacity, int64_t now) {
    const std::lock_guard<std::mutex> lock(link->monitor().mutex());
    return messages(link).machine.next_send(static_cast<uint8_t *>(buffer), capacity, now);
}

void p4r_messages_acknowledged(p4r_link *link, size_t count) {
    const std::lock_guard<std::mutex> lock(link->monitor().mutex());
    for (size_t i = 0; i < count; i++) messages(link).machine.acknowledged();
    link->monitor().take_events();
}

int p4r_messages_receive(p4r_link *link, const void *payload, size_t bytes, int64_t now) {
    const std::lock_guard<std::mutex> lock(link->monitor().mutex());
    const auto taken = messages(link).machine.receive(static_cast<const uint8_t *>(payload), bytes, now);
    link->monitor().take_events();
    switch (taken) {
        case p4r::Messages::Taken::kYes:
            return P4R_TAKEN;
        case p4r::Messages::Taken::kNotReady:
            return P4R_NOT_READY;
        case p4r::Messages::Taken::kDead:
            break;
    }
    return P4R_DEAD;
}

void p4r_messages_fail(p4r_link *link, uint32_t code, const char *text) {
    const std::lock_guard<std::mutex> lock(link->monitor().mutex());
    messages(link).machine.fail(code, text);
    link->monitor().take_events();
}

size_t p4r_messages_state(p4r_link *link, uint8_t *buffer, size_t capacity) {
    const std::lock_guard<std::mutex> lock(link->monitor().mutex());
    return describe(messages(link).machine, 0, buffer, capacity);
}

uint32_t p4r_crc32(uint32_t crc, const void *data, size_t length) {
    return p4r::crc32(crc, static_cast<const uint8_t *>(data), length);
}
