// The C interface of a compiled program. Included at the end of the generated code, which defines Program,
// process, run_waiting, table_at, profile_at, counter_array, meter_array, direct_meters and register_at. Every call
// excludes the packet thread.
#pragma once

#define P4_API extern "C" __attribute__((visibility("default")))

namespace p4 {

// A program while its packet thread waits.
struct Held {
    explicit Held(void* program) : g(*static_cast<Program*>(program)), guard(g.host) {}
    Program& g;
    Guard guard;
};

template <class F>
inline int64_t with_table(void* program, uint32_t number, F f) {
    Held held(program);
    TableCore* const table = table_at(held.g, number);
    return table ? f(*table, held.g) : TABLE_UNKNOWN;
}

template <class F>
inline int64_t with_profile(void* program, uint32_t number, F f) {
    Held held(program);
    ActionProfile* const profile = profile_at(held.g, number);
    return profile ? f(*profile) : TABLE_UNKNOWN;
}

}  // namespace p4

P4_API void* p4_create(void* host) {
    try {
        return new p4::Program(*static_cast<p4::Host*>(host));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

P4_API void p4_destroy(void* program) { delete static_cast<p4::Program*>(program); }

P4_API void p4_process(void* program, const uint8_t* frame, uint32_t length, uint32_t port) {
    p4::process(*static_cast<p4::Program*>(program), frame, length, port);
}

P4_API void p4_passes(void* program, int budget) { p4::run_waiting(*static_cast<p4::Program*>(program), budget); }

// `entry` is key, mask, low and high ends of ranges, and parameters, one after the other.
P4_API int64_t p4_insert(void* program, uint32_t table, const uint64_t* entry, uint32_t priority, int32_t action) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program& g) {
        const int64_t handle = t.insert(entry, priority, action, g.host.fresh_us());
        p4::Meter* const meters = p4::direct_meters(g, table);
        if (meters && handle >= 0) meters[t.entry(handle)] = p4::Meter();
        return handle;
    });
}

P4_API int64_t p4_modify(void* program, uint32_t table, int64_t handle, int32_t action, const uint64_t* params) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program&) { return t.modify(handle, action, params); });
}

P4_API int64_t p4_delete(void* program, uint32_t table, int64_t handle) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program&) { return t.remove(handle); });
}

P4_API int64_t p4_set_default(void* program, uint32_t table, int32_t action, const uint64_t* params) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program&) { return t.set_default(action, params), int64_t(0); });
}

// Microseconds since an entry was hit.
P4_API int64_t p4_idle_us(void* program, uint32_t table, int64_t handle) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program& g) { return t.idle_us(handle, g.host.fresh_us()); });
}

// Inserts a member for handle -1.
P4_API int64_t p4_set_member(void* program, uint32_t profile, int64_t handle, int32_t action, const uint64_t* params) {
    return p4::with_profile(program, profile, [&](p4::ActionProfile& a) {
        return handle < 0 ? a.insert_member(action, params) : a.modify_member(handle, action, params);
    });
}

P4_API int64_t p4_delete_member(void* program, uint32_t profile, int64_t handle) {
    return p4::with_profile(program, profile, [&](p4::ActionProfile& a) { return a.remove_member(handle); });
}

// Inserts a group for handle -1.
P4_API int64_t p4_set_group(void* program, uint32_t profile, int64_t handle, const uint64_t* members, uint64_t count) {
    return p4::with_profile(program, profile, [&](p4::ActionProfile& a) {
        return handle < 0 ? a.insert_group(members, count) : a.modify_group(handle, members, count);
    });
}

P4_API int64_t p4_delete_group(void* program, uint32_t profile, int64_t handle) {
    return p4::with_profile(program, profile, [&](p4::ActionProfile& a) { return a.remove_group(handle); });
}

// {packets, bytes} of a table's entry.
P4_API int64_t p4_direct_counter(void* program, uint32_t table, int64_t handle, uint64_t* values, int32_t write) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program&) -> int64_t {
        uint64_t* counter = t.counter(handle);
        if (!counter) return p4::TABLE_UNKNOWN;
        std::memcpy(write ? counter : values, write ? values : counter, 16);
        return handle;
    });
}

// `count` pairs {packets, bytes} from `first` on.
P4_API void p4_counter(void* program, uint32_t number, uint64_t first, uint64_t count, uint64_t* values, int32_t write) {
    const p4::Held held(program);
    uint64_t* at = p4::counter_array(held.g, number) + 2 * first;
    std::memcpy(write ? at : values, write ? values : at, 16 * count);
}

// Replaces the members of a parser's value set, as rows of values and masks.
P4_API void p4_value_set(void* program, uint32_t number, const uint64_t* rows, uint64_t count) {
    const p4::Held held(program);
    held.g.value_sets[number].assign(rows, count);
}

P4_API void p4_register(void* program, uint32_t number, uint64_t index, uint64_t* value, int32_t write) {
    const p4::Held held(program);
    const p4::Cells cells = p4::register_at(held.g, number);
    uint8_t* const cell = static_cast<uint8_t*>(cells.start) + index * cells.size;
    if (write)
        std::memcpy(cell, value, cells.size);
    else
        std::memcpy(value, cell, cells.size);
}

P4_API void p4_meter(void* program, uint32_t number, uint64_t index, uint64_t* values, int32_t write) {
    const p4::Held held(program);
    p4::Meter& meter = p4::meter_array(held.g, number)[index];
    write ? meter.write(values) : meter.read(values);
}

// The meter of a table's entry.
P4_API int64_t p4_direct_meter(void* program, uint32_t table, int64_t handle, uint64_t* values, int32_t write) {
    return p4::with_table(program, table, [&](p4::TableCore& t, p4::Program& g) -> int64_t {
        const uint32_t entry = t.entry(handle);
        p4::Meter* const meters = p4::direct_meters(g, table);
        if (entry == p4::NO_ENTRY || !meters) return p4::TABLE_UNKNOWN;
        write ? meters[entry].write(values) : meters[entry].read(values);
        return handle;
    });
}
