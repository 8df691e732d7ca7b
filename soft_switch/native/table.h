// Match-action tables: tuple space search. Entries with the same mask form a group with a hash index, and groups are
// tried in the order of the best rank they hold, so that an exact table is one hash lookup, a longest prefix match
// one per prefix length in use, and a ternary table one per distinct mask. (V. Srinivasan et al., "Packet
// Classification using Tuple Space Search", SIGCOMM 1999.)
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "wide.h"

namespace p4 {

enum TableStatus : int64_t { TABLE_FULL = -1, TABLE_DUPLICATE = -2, TABLE_UNKNOWN = -3 };

constexpr uint32_t NO_ENTRY = ~uint32_t(0);
constexpr int NO_ACTION = -1;

template <int K>
P4_INLINE uint32_t hash_words(const uint64_t* w) {
    uint64_t h = 0x243F6A8885A308D3u;
    for (int i = 0; i < K; i++) {
        h = (h ^ w[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return uint32_t(h);
}

// What an applied table does: which action with which parameters, and the entry that matched (NO_ENTRY: none did).
struct Match {
    const uint64_t* params;
    int32_t action;
    uint32_t entry;
    bool hit() const { return entry != NO_ENTRY; }
};

// What the control plane does with a table, whatever its key looks like: behind one interface, so that it is compiled
// once for each kind of table and not for each table.
class TableControl {
  public:
    virtual int64_t insert(const uint64_t* key, const uint64_t* mask, const uint64_t* ranges, uint32_t priority,
                           int action, const uint64_t* params) = 0;
    virtual int64_t modify(int64_t handle, int action, const uint64_t* params) = 0;
    virtual int64_t remove(int64_t handle) = 0;
    virtual void set_default(int action, const uint64_t* params) = 0;
    virtual uint64_t* counter(int64_t handle) = 0;

  protected:
    ~TableControl() = default;
};

// K words of masked key, R range fields (64 bits each at most), P words of action parameters.
template <int K, int R, int P>
class Table final : public TableControl {
  public:
    Table(uint64_t capacity, bool priorities) : capacity_(capacity), priorities_(priorities) {}

    Match lookup(const uint64_t* key, const uint64_t* ranges, uint32_t bytes) {
        Entry* best = nullptr;
        for (const Group& group : groups_) {
            if (best && best->rank >= group.best_rank) break;
            uint64_t masked[K];
            for (int i = 0; i < K; i++) masked[i] = key[i] & group.mask[i];
            uint32_t slot = group.buckets[hash_words<K>(masked) & group.bucket_mask];
            for (; slot != NO_ENTRY; slot = entries_[slot].next) {  // a chain is sorted by falling rank
                Entry& entry = entries_[slot];
                if (!same(entry.key, masked) || !within(entry, ranges)) continue;
                if (!best || entry.rank > best->rank) best = &entry;
                break;
            }
        }
        if (!best) return {default_params_, default_action_, NO_ENTRY};
        best->packets++;
        best->bytes += bytes;
        return {best->params, best->action, uint32_t(best - entries_.data())};
    }

    // The handle of the new entry, or a TableStatus.
    int64_t insert(const uint64_t* key, const uint64_t* mask, const uint64_t* ranges, uint32_t priority, int action,
                   const uint64_t* params) override {
        const size_t at = find_group(mask);
        uint64_t masked[K];
        for (int i = 0; i < K; i++) masked[i] = key[i] & mask[i];
        if (at < groups_.size() && find(groups_[at], masked, ranges, priority) != NO_ENTRY) return TABLE_DUPLICATE;
        if (count_ >= capacity_) return TABLE_FULL;
        const uint32_t slot = allocate();
        Entry& entry = entries_[slot];
        std::memcpy(entry.key, masked, sizeof masked);
        for (int i = 0; i < 2 * R; i++) entry.ranges[i] = ranges[i];
        // Among equal priorities the entry that came first wins.
        entry.rank = uint64_t(priority) << 32 | (priorities_ ? ~sequence_++ & 0xFFFFFFFFu : 0);
        entry.packets = entry.bytes = 0;
        entry.used = true;
        set_action(entry, action, params);
        link(at < groups_.size() ? groups_[at] : new_group(mask), slot);
        sort_groups();
        count_++;
        return slot;
    }

    int64_t modify(int64_t handle, int action, const uint64_t* params) override {
        if (!known(handle)) return TABLE_UNKNOWN;
        set_action(entries_[handle], action, params);
        return handle;
    }

    int64_t remove(int64_t handle) override {
        if (!known(handle)) return TABLE_UNKNOWN;
        Entry& entry = entries_[handle];
        for (size_t g = 0; g < groups_.size(); g++) {
            if (!unlink(groups_[g], uint32_t(handle))) continue;
            if (groups_[g].count == 0) groups_.erase(groups_.begin() + long(g));
            break;
        }
        entry.used = false;
        entry.next = free_;
        free_ = uint32_t(handle);
        count_--;
        return handle;
    }

    void set_default(int action, const uint64_t* params) override {
        default_action_ = action;
        for (int i = 0; i < P; i++) default_params_[i] = params[i];
    }

    // {packets, bytes} of an entry, or null.
    uint64_t* counter(int64_t handle) override { return known(handle) ? &entries_[handle].packets : nullptr; }

  private:
    struct Entry {
        uint64_t key[K];
        uint64_t ranges[2 * R + 1];
        uint64_t rank;
        uint32_t next;
        int32_t action;
        uint64_t packets, bytes;
        uint64_t params[P + 1];
        bool used;
    };
    struct Group {
        uint64_t mask[K];
        uint64_t best_rank;
        uint64_t count;
        uint32_t bucket_mask;
        std::vector<uint32_t> buckets;
    };

    std::vector<Entry> entries_;
    std::vector<Group> groups_;
    uint64_t capacity_;
    uint64_t count_ = 0;
    uint32_t free_ = NO_ENTRY;
    uint32_t sequence_ = 0;
    bool priorities_;
    int default_action_ = NO_ACTION;
    uint64_t default_params_[P + 1] = {};

    static P4_INLINE bool same(const uint64_t* a, const uint64_t* b) {
        uint64_t difference = 0;
        for (int i = 0; i < K; i++) difference |= a[i] ^ b[i];
        return difference == 0;
    }

    static P4_INLINE bool within(const Entry& entry, const uint64_t* ranges) {
        for (int i = 0; i < R; i++)
            if (ranges[i] < entry.ranges[2 * i] || ranges[i] > entry.ranges[2 * i + 1]) return false;
        return true;
    }

    bool known(int64_t handle) const {
        return handle >= 0 && uint64_t(handle) < entries_.size() && entries_[size_t(handle)].used;
    }

    size_t find_group(const uint64_t* mask) const {
        for (size_t i = 0; i < groups_.size(); i++)
            if (same(groups_[i].mask, mask)) return i;
        return groups_.size();
    }

    uint32_t find(const Group& group, const uint64_t* masked, const uint64_t* ranges, uint32_t priority) const {
        uint32_t slot = group.buckets[hash_words<K>(masked) & group.bucket_mask];
        for (; slot != NO_ENTRY; slot = entries_[slot].next) {
            const Entry& entry = entries_[slot];
            if (same(entry.key, masked) && std::memcmp(entry.ranges, ranges, 16 * R) == 0 &&
                (!priorities_ || entry.rank >> 32 == priority))
                return slot;
        }
        return NO_ENTRY;
    }

    uint32_t allocate() {
        if (free_ != NO_ENTRY) {
            const uint32_t slot = free_;
            free_ = entries_[slot].next;
            return slot;
        }
        entries_.emplace_back();
        return uint32_t(entries_.size() - 1);
    }

    void set_action(Entry& entry, int action, const uint64_t* params) {
        entry.action = action;
        for (int i = 0; i < P; i++) entry.params[i] = params[i];
    }

    Group& new_group(const uint64_t* mask) {
        Group group;
        std::memcpy(group.mask, mask, sizeof group.mask);
        group.best_rank = group.count = 0;
        group.bucket_mask = 7;
        group.buckets.assign(8, NO_ENTRY);
        groups_.push_back(std::move(group));
        return groups_.back();
    }

    void chain(Group& group, uint32_t slot) {
        Entry& entry = entries_[slot];
        uint32_t* at = &group.buckets[hash_words<K>(entry.key) & group.bucket_mask];
        while (*at != NO_ENTRY && entries_[*at].rank >= entry.rank) at = &entries_[*at].next;
        entry.next = *at;
        *at = slot;
    }

    void link(Group& group, uint32_t slot) {
        if (group.count > group.bucket_mask) {
            std::vector<uint32_t> old(2 * (size_t(group.bucket_mask) + 1), NO_ENTRY);
            old.swap(group.buckets);
            group.bucket_mask = 2 * group.bucket_mask + 1;
            for (uint32_t head : old)
                for (uint32_t next; head != NO_ENTRY; head = next) {
                    next = entries_[head].next;
                    chain(group, head);
                }
        }
        chain(group, slot);
        group.count++;
        if (entries_[slot].rank > group.best_rank) group.best_rank = entries_[slot].rank;
    }

    bool unlink(Group& group, uint32_t slot) {
        uint32_t* at = &group.buckets[hash_words<K>(entries_[slot].key) & group.bucket_mask];
        for (; *at != NO_ENTRY; at = &entries_[*at].next) {
            if (*at != slot) continue;
            *at = entries_[slot].next;
            group.count--;  // best_rank stays: it is an upper bound
            return true;
        }
        return false;
    }

    void sort_groups() {
        for (size_t i = 1; i < groups_.size(); i++)
            for (size_t j = i; j > 0 && groups_[j - 1].best_rank < groups_[j].best_rank; j--)
                std::swap(groups_[j - 1], groups_[j]);
    }
};

}  // namespace p4
