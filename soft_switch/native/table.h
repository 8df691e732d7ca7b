// Match-action tables: tuple space search. Entries with the same mask form a group with a hash index, and groups are
// tried in the order of the best rank they hold, so that an exact table is one hash lookup, a longest prefix match
// one per prefix length in use, and a ternary table one per distinct mask. (V. Srinivasan et al., "Packet
// Classification using Tuple Space Search", SIGCOMM 1999.)
//
// Only the lookup knows a table's sizes at compile time: `TableCore`, which changes tables, is the same code for all.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "action_profile.h"
#include "wide.h"

namespace p4 {

// PRIORITIES: entries may overlap, and each has its priority. COUNTED: a direct counter. AGED: the time of the last
// hit is kept.
enum TableFlags : unsigned { PRIORITIES = 1, COUNTED = 2, AGED = 4 };

constexpr int32_t UNUSED = INT32_MIN;  // the action of a slot without an entry

P4_INLINE uint32_t hash_words(const uint64_t* w, int count) {
    uint64_t h = 0x243F6A8885A308D3u;
    for (int i = 0; i < count; i++) {
        h = (h ^ w[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return uint32_t(h);
}

// Whether the unsigned number in `count` words, least significant first, is smaller than another.
P4_INLINE bool less_words(const uint64_t* a, const uint64_t* b, int count) {
    for (int i = count; i-- > 0;)
        if (a[i] != b[i]) return a[i] < b[i];
    return false;
}

// The parts of an entry, in words: this head, {packets, bytes}, the time of the last hit, key, low and high ends of its
// ranges, parameters. A table has the middle ones only if it needs them.
struct EntryHead {
    uint64_t rank;  // the greater one wins
    uint32_t next;  // in the chain of its bucket
    int32_t action;
};

// Entries with the same mask; the mask's words follow. Groups stand in the order of falling best ranks, then of ids.
struct GroupHead {
    uint64_t best_rank;  // no entry's is greater
    uint32_t* buckets;
    uint32_t bucket_mask;
    uint32_t id;
    uint32_t count;
    uint32_t outdated;  // removals since best_rank was exact
};

constexpr int ENTRY_HEAD = sizeof(EntryHead) / 8, GROUP_HEAD = sizeof(GroupHead) / 8;

class TableCore {
  public:
    TableCore(uint64_t capacity, unsigned flags, int key_words, int range_words, int param_words)
        : capacity_(capacity),
          flags_(flags),
          key_(key_words),
          ranges_(range_words),
          params_(param_words),
          counter_at_(ENTRY_HEAD),
          time_at_(counter_at_ + (flags & COUNTED ? 2 : 0)),
          key_at_(time_at_ + (flags & AGED ? 1 : 0)),
          range_at_(key_at_ + key_words),
          params_at_(range_at_ + 2 * range_words),
          entry_words_(params_at_ + param_words),
          group_words_(GROUP_HEAD + key_words),
          default_params_(size_t(param_words) + 1),
          masked_(size_t(key_words)) {}
    ~TableCore() {
        for (size_t g = 0; g < group_count_; g++) std::free(group(g)->buckets);
        std::free(groups_);
        std::free(entries_);
    }
    TableCore(const TableCore&) = delete;
    TableCore& operator=(const TableCore&) = delete;

    // The action profile that entries take their actions from: their own is TO_MEMBER or TO_GROUP, with the handle as
    // the only parameter.
    void use(ActionProfile& profile) { profile_ = &profile; }

    // The handle of the new entry (the lowest that is free, as in BMv2), or a TableStatus. `given` is key, mask, low
    // and high ends of ranges, and parameters, one after the other.
    int64_t insert(const uint64_t* given, uint32_t priority, int action, uint64_t now_us) {
        const uint64_t *key = given, *mask = key + key_, *ranges = mask + key_, *params = ranges + 2 * ranges_;
        for (int i = 0; i < key_; i++) masked_[size_t(i)] = key[i] & mask[i];
        size_t at = find_group(mask);
        if (at != NONE && contains(*group(at), ranges, priority)) return TABLE_DUPLICATE;
        if (count_ >= capacity_ || !has_room()) return TABLE_FULL;
        if (profile_ && !profile_->retain(action, params[0])) return TABLE_NO_TARGET;
        const uint32_t slot = handles_.take();
        // Among equal priorities the lowest handle wins, as in BMv2.
        const uint64_t rank = uint64_t(priority) << 32 | (flags_ & PRIORITIES ? NO_ENTRY - slot : 0);
        if (at == NONE) at = new_group(mask, rank);
        if (rank > group(at)->best_rank) at = move_group(at, rank);
        EntryHead& entry = head(slot);
        entry.rank = rank;
        entry.action = action;
        uint64_t* w = words(slot);
        std::memcpy(w + key_at_, masked_.data(), 8 * size_t(key_));
        std::memcpy(w + range_at_, ranges, 16 * size_t(ranges_));
        std::memcpy(w + params_at_, params, 8 * size_t(params_));
        if (flags_ & COUNTED) w[counter_at_] = w[counter_at_ + 1] = 0;
        if (flags_ & AGED) w[time_at_] = now_us;
        link(*group(at), slot);
        group_of_[slot] = group(at)->id;
        count_++;
        changes_++;
        return slot;
    }

    int64_t modify(int64_t handle, int action, const uint64_t* params) {
        if (!known(handle)) return TABLE_UNKNOWN;
        EntryHead& entry = head(uint32_t(handle));
        uint64_t* own = words(uint32_t(handle)) + params_at_;
        if (profile_) {
            if (!profile_->retain(action, params[0])) return TABLE_NO_TARGET;
            profile_->release(entry.action, own[0]);
        }
        entry.action = action;
        std::memcpy(own, params, 8 * size_t(params_));
        changes_++;
        return handle;
    }

    int64_t remove(int64_t handle) {
        if (!known(handle)) return TABLE_UNKNOWN;
        const uint32_t slot = uint32_t(handle), id = group_of_[slot];
        EntryHead& entry = head(slot);
        if (profile_) profile_->release(entry.action, words(slot)[params_at_]);
        const size_t at = place(best_ranks_[id], id);
        GroupHead& from = *group(at);
        unlink(from, slot);
        if (from.count == 0)
            drop_group(at);
        else if (flags_ & PRIORITIES && (from.outdated || entry.rank == from.best_rank))
            lower_rank(at);
        entry.action = UNUSED;
        handles_.give_back(slot);
        changes_++;
        if (--count_ == 0) clear();
        return handle;
    }

    void set_default(int action, const uint64_t* params) {
        default_action_ = action;
        std::memcpy(default_params_.data(), params, 8 * size_t(params_));
    }

    // Whether the entries are those that the program came with, `count` of them, and nobody has changed any.
    bool is_as_made(uint64_t count) const { return changes_ == count; }

    // What a packet gets that no entry is for.
    Match miss() const { return {default_params(), default_action_, NO_ENTRY}; }

    // The number that a match gives for an entry, below the table's size; NO_ENTRY: there is none of that handle.
    uint32_t entry(int64_t handle) const { return known(handle) ? uint32_t(handle) : NO_ENTRY; }

    // {packets, bytes} of an entry, or null.
    uint64_t* counter(int64_t handle) {
        return known(handle) && flags_ & COUNTED ? words(uint32_t(handle)) + counter_at_ : nullptr;
    }

    // Microseconds from an entry's last hit, or its insertion, to `now_us`; or a TableStatus.
    int64_t idle_us(int64_t handle, uint64_t now_us) const {
        if (!known(handle) || !(flags_ & AGED)) return TABLE_UNKNOWN;
        const uint64_t last = words(uint32_t(handle))[time_at_];
        return now_us > last ? int64_t(now_us - last) : 0;
    }

  protected:
    uint64_t* entries_ = nullptr;
    uint64_t* groups_ = nullptr;
    size_t group_count_ = 0;
    uint64_t changes_ = 0;  // entries inserted, modified and removed, ever
    int default_action_ = NO_ACTION;

    const uint64_t* default_params() const { return default_params_.data(); }

  private:
    static constexpr size_t NONE = ~size_t(0);

    const uint64_t capacity_;
    const unsigned flags_;
    const int key_, ranges_, params_;
    const int counter_at_, time_at_, key_at_, range_at_, params_at_, entry_words_, group_words_;
    std::vector<uint64_t> default_params_, masked_;
    ActionProfile* profile_ = nullptr;
    uint64_t count_ = 0, room_ = 0;  // entries, and how many there is memory for
    size_t group_room_ = 0;
    Handles handles_, group_ids_;
    std::vector<uint32_t> group_of_;     // a slot's group, by id
    std::vector<uint64_t> best_ranks_;   // by group id
    std::unordered_multimap<uint32_t, uint32_t> by_mask_;  // hash of a mask to group id

    uint64_t* words(uint32_t slot) const { return entries_ + size_t(slot) * size_t(entry_words_); }
    EntryHead& head(uint32_t slot) const { return *reinterpret_cast<EntryHead*>(words(slot)); }
    GroupHead* group(size_t g) const { return reinterpret_cast<GroupHead*>(groups_ + g * size_t(group_words_)); }

    bool known(int64_t handle) const {
        return handle >= 0 && uint64_t(handle) < room_ && head(uint32_t(handle)).action != UNUSED;
    }

    // Memory for one more entry. realloc moves pages, not bytes, where there is much to move.
    bool has_room() {
        if (count_ < room_) return true;
        const uint64_t room = room_ ? 2 * room_ : 8;
        if (room > NO_ENTRY) return false;
        void* entries = std::realloc(entries_, room * size_t(entry_words_) * 8);
        if (!entries) return false;
        entries_ = static_cast<uint64_t*>(entries);
        group_of_.resize(room);
        for (uint64_t slot = room_; slot < room; slot++) head(uint32_t(slot)).action = UNUSED;
        room_ = room;
        return true;
    }

    void clear() {
        handles_.clear();
        if (room_ <= 1024) return;
        std::free(entries_);
        entries_ = nullptr;
        group_of_ = {};
        room_ = 0;
    }

    // Groups

    size_t place(uint64_t best_rank, uint32_t id) const {
        size_t low = 0, high = group_count_;
        while (low < high) {
            const size_t middle = (low + high) / 2;
            const GroupHead& g = *group(middle);
            if (g.best_rank > best_rank || (g.best_rank == best_rank && g.id < id))
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    size_t find_group(const uint64_t* mask) const {
        const auto found = by_mask_.equal_range(hash_words(mask, key_));
        for (auto at = found.first; at != found.second; ++at) {
            const size_t g = place(best_ranks_[at->second], at->second);
            if (std::memcmp(group(g) + 1, mask, 8 * size_t(key_)) == 0) return g;
        }
        return NONE;
    }

    size_t new_group(const uint64_t* mask, uint64_t best_rank) {
        if (group_count_ == group_room_) {
            const size_t room = group_room_ ? 2 * group_room_ : 1;
            groups_ = static_cast<uint64_t*>(check(std::realloc(groups_, room * size_t(group_words_) * 8)));
            group_room_ = room;
        }
        GroupHead made = {best_rank, nullptr, 7, group_ids_.take(), 0, 0};
        made.buckets = new_buckets(8);
        if (made.id >= best_ranks_.size()) best_ranks_.resize(size_t(made.id) + 1);
        best_ranks_[made.id] = best_rank;
        by_mask_.emplace(hash_words(mask, key_), made.id);
        const size_t at = place(best_rank, made.id);
        shift(at, at + 1, group_count_++ - at);
        *group(at) = made;
        std::memcpy(group(at) + 1, mask, 8 * size_t(key_));
        return at;
    }

    // Move a group to where it belongs with another best rank.
    size_t move_group(size_t at, uint64_t best_rank) {
        std::vector<uint64_t> kept(groups_ + at * size_t(group_words_), groups_ + (at + 1) * size_t(group_words_));
        const uint32_t id = group(at)->id;
        best_ranks_[id] = best_rank;
        const bool up = best_rank > group(at)->best_rank;
        const size_t to = up ? place(best_rank, id) : place(best_rank, id) - 1;
        if (up)
            shift(to, to + 1, at - to);
        else
            shift(at + 1, at, to - at);
        std::memcpy(group(to), kept.data(), 8 * kept.size());
        group(to)->best_rank = best_rank;
        return to;
    }

    void drop_group(size_t at) {
        const uint32_t id = group(at)->id;
        const auto found = by_mask_.equal_range(hash_words(reinterpret_cast<uint64_t*>(group(at) + 1), key_));
        for (auto item = found.first; item != found.second; ++item)
            if (item->second == id) {
                by_mask_.erase(item);
                break;
            }
        group_ids_.give_back(id);
        std::free(group(at)->buckets);
        shift(at + 1, at, --group_count_ - at);
    }

    void shift(size_t from, size_t to, size_t count) {
        std::memmove(group(to), group(from), count * size_t(group_words_) * 8);
    }

    // The best entry is gone. After some more removals the next best is looked for: until then more groups than needed
    // are tried.
    void lower_rank(size_t at) {
        GroupHead& g = *group(at);
        if (++g.outdated <= 8 + g.count / 2) return;
        uint64_t best = 0;
        for (uint32_t bucket = 0; bucket <= g.bucket_mask; bucket++)  // a chain begins with its best
            if (g.buckets[bucket] != NO_ENTRY) best = std::max(best, head(g.buckets[bucket]).rank);
        g.outdated = 0;
        if (best < g.best_rank) move_group(at, best);
    }

    // Entries of a group

    static void* check(void* memory) {
        if (!memory) std::abort();  // as everywhere: there is no going on without memory
        return memory;
    }

    static uint32_t* new_buckets(size_t count) {
        auto* buckets = static_cast<uint32_t*>(check(std::malloc(4 * count)));
        std::fill_n(buckets, count, NO_ENTRY);
        return buckets;
    }

    uint32_t* bucket(const GroupHead& g, const uint64_t* key) const {
        return &g.buckets[hash_words(key, key_) & g.bucket_mask];
    }

    bool contains(const GroupHead& g, const uint64_t* ranges, uint32_t priority) const {
        for (uint32_t slot = *bucket(g, masked_.data()); slot != NO_ENTRY; slot = head(slot).next) {
            const uint64_t* w = words(slot);
            if (flags_ & PRIORITIES && head(slot).rank >> 32 != priority) continue;
            if (std::memcmp(w + key_at_, masked_.data(), 8 * size_t(key_)) == 0 &&
                std::memcmp(w + range_at_, ranges, 16 * size_t(ranges_)) == 0)
                return true;
        }
        return false;
    }

    void chain(GroupHead& g, uint32_t slot) {
        EntryHead& entry = head(slot);
        uint32_t* at = bucket(g, words(slot) + key_at_);
        while (*at != NO_ENTRY && head(*at).rank >= entry.rank) at = &head(*at).next;
        entry.next = *at;
        *at = slot;
    }

    void link(GroupHead& g, uint32_t slot) {
        if (g.count > g.bucket_mask) {
            uint32_t* old = g.buckets;
            const size_t before = size_t(g.bucket_mask) + 1;
            g.buckets = new_buckets(2 * before);
            g.bucket_mask = uint32_t(2 * before - 1);
            for (size_t i = 0; i < before; i++)
                for (uint32_t slot_ = old[i], next; slot_ != NO_ENTRY; slot_ = next) {
                    next = head(slot_).next;
                    chain(g, slot_);
                }
            std::free(old);
        }
        chain(g, slot);
        g.count++;
    }

    void unlink(GroupHead& g, uint32_t slot) {
        uint32_t* at = bucket(g, words(slot) + key_at_);
        while (*at != slot) at = &head(*at).next;
        *at = head(slot).next;
        g.count--;
    }
};

// K words of masked key, P words of action parameters, range fields of W words each.
template <int K, int P, unsigned F, int... W>
class Table : public TableCore {
    static constexpr int RANGES = (0 + ... + W);
    static constexpr int COUNTER_AT = ENTRY_HEAD, TIME_AT = COUNTER_AT + (F & COUNTED ? 2 : 0),
                         KEY_AT = TIME_AT + (F & AGED ? 1 : 0), LOW_AT = KEY_AT + K, HIGH_AT = LOW_AT + RANGES,
                         PARAMS_AT = HIGH_AT + RANGES, ENTRY_WORDS = PARAMS_AT + P, GROUP_WORDS = GROUP_HEAD + K;

  public:
    explicit Table(uint64_t capacity) : TableCore(capacity, F, K, RANGES, P) {}

    Match lookup(const uint64_t* key, const uint64_t* ranges, uint32_t bytes, uint64_t now_us) {
        uint64_t* best = nullptr;
        uint64_t best_rank = 0;
        uint32_t best_slot = NO_ENTRY;
        const uint64_t* const end = groups_ + group_count_ * GROUP_WORDS;
        for (const uint64_t* g = groups_; g != end; g += GROUP_WORDS) {
            const GroupHead& group = *reinterpret_cast<const GroupHead*>(g);
            if (best && best_rank >= group.best_rank) break;
            uint64_t masked[K];
            for (int i = 0; i < K; i++) masked[i] = key[i] & g[GROUP_HEAD + i];
            uint32_t slot = group.buckets[hash_words(masked, K) & group.bucket_mask];
            while (slot != NO_ENTRY) {  // a chain is sorted by falling rank
                uint64_t* const entry = entries_ + size_t(slot) * ENTRY_WORDS;
                const EntryHead& head = *reinterpret_cast<const EntryHead*>(entry);
                if (same(entry + KEY_AT, masked) && within(entry, ranges)) {
                    if (!best || head.rank > best_rank) best = entry, best_rank = head.rank, best_slot = slot;
                    break;
                }
                slot = head.next;
            }
        }
        if (!best) return miss();
        if constexpr (F & COUNTED) {
            best[COUNTER_AT]++;
            best[COUNTER_AT + 1] += bytes;
        }
        if constexpr (F & AGED) best[TIME_AT] = now_us;
        return {best + PARAMS_AT, reinterpret_cast<const EntryHead*>(best)->action, best_slot};
    }

  private:
    static P4_INLINE bool same(const uint64_t* a, const uint64_t* b) {
        uint64_t difference = 0;
        for (int i = 0; i < K; i++) difference |= a[i] ^ b[i];
        return difference == 0;
    }

    static P4_INLINE bool within(const uint64_t* entry, const uint64_t* ranges) {
        const uint64_t *low = entry + LOW_AT, *high = entry + HIGH_AT;
        return (inside<W>(ranges, low, high) && ...);
    }

    template <int N>
    static P4_INLINE bool inside(const uint64_t*& value, const uint64_t*& low, const uint64_t*& high) {
        const bool result = !less_words(value, low, N) && !less_words(high, value, N);
        value += N, low += N, high += N;
        return result;
    }
};

}  // namespace p4
