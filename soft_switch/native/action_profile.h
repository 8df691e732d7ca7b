// Action profiles and selectors: actions with parameters that table entries share, alone or in groups of which a hash
// chooses one (behavioral-model, src/bm_sim/action_profile.cpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "wide.h"

namespace p4 {

enum TableStatus : int64_t {
    TABLE_FULL = -1,
    TABLE_DUPLICATE = -2,
    TABLE_UNKNOWN = -3,
    TABLE_NO_TARGET = -4,  // no such member or group
    TABLE_IN_USE = -5,
};

constexpr int NO_ACTION = -1;
// What entries of an indirect table have instead of an action; the handle is their parameter.
constexpr int TO_MEMBER = -2, TO_GROUP = -3;

constexpr uint32_t NO_ENTRY = ~uint32_t(0);

// What an applied table does: which action with which parameters, and the entry that matched (NO_ENTRY: none did).
struct Match {
    const uint64_t* params;
    int32_t action;
    uint32_t entry;
    bool hit() const { return entry != NO_ENTRY; }
};

// Handles from 0, the lowest that is free first, as BMv2 gives them out: which member a hash chooses depends on it.
class Handles {
    static bool later(uint32_t a, uint32_t b) { return a > b; }

  public:
    uint32_t take() {
        if (free_.empty()) return next_++;
        std::pop_heap(free_.begin(), free_.end(), later);
        const uint32_t handle = free_.back();
        free_.pop_back();
        return handle;
    }
    void give_back(uint32_t handle) {
        free_.push_back(handle);
        std::push_heap(free_.begin(), free_.end(), later);
    }
    void clear() {
        next_ = 0;
        free_ = {};
    }

  private:
    uint32_t next_ = 0;
    std::vector<uint32_t> free_;  // a heap, the lowest on top
};

class ActionProfile {
  public:
    explicit ActionProfile(int param_words) : words_(size_t(param_words) + 1) {}

    // While packets pass

    P4_INLINE void member(Match& match, uint64_t handle) const {
        match.action = members_[handle].action;
        match.params = &params_[handle * words_];
    }

    // BMv2 takes the nth of the members in the order of their handles, and does nothing where there is none.
    P4_INLINE void choose(Match& match, uint64_t group, uint32_t hash) const {
        const std::vector<uint32_t>& members = groups_[group].members;
        if (members.empty())
            match.action = NO_ACTION;
        else
            member(match, members[hash % members.size()]);
    }

    // Control

    int64_t insert_member(int action, const uint64_t* params) {
        const uint32_t handle = member_handles_.take();
        if (handle >= members_.size()) {
            members_.resize(size_t(handle) + 1);
            params_.resize((size_t(handle) + 1) * words_);
        }
        members_[handle] = {action, 0, true};
        member_count_++;
        return modify_member(handle, action, params);
    }

    int64_t modify_member(int64_t handle, int action, const uint64_t* params) {
        if (!is_member(handle)) return TABLE_UNKNOWN;
        members_[size_t(handle)].action = action;
        std::memcpy(&params_[size_t(handle) * words_], params, 8 * (words_ - 1));
        return handle;
    }

    int64_t remove_member(int64_t handle) {
        if (!is_member(handle)) return TABLE_UNKNOWN;
        if (members_[size_t(handle)].users) return TABLE_IN_USE;
        members_[size_t(handle)].used = false;
        member_handles_.give_back(uint32_t(handle));
        if (--member_count_ == 0) {
            members_ = {};
            params_ = {};
            member_handles_.clear();
        }
        return handle;
    }

    int64_t insert_group(const uint64_t* members, size_t count) {
        for (size_t i = 0; i < count; i++)
            if (!is_member(int64_t(members[i]))) return TABLE_NO_TARGET;
        const uint32_t handle = group_handles_.take();
        if (handle >= groups_.size()) groups_.resize(size_t(handle) + 1);
        groups_[handle].used = true;
        group_count_++;
        return modify_group(handle, members, count);
    }

    int64_t modify_group(int64_t handle, const uint64_t* members, size_t count) {
        if (!is_group(handle)) return TABLE_UNKNOWN;
        for (size_t i = 0; i < count; i++)
            if (!is_member(int64_t(members[i]))) return TABLE_NO_TARGET;
        Group& group = groups_[size_t(handle)];
        std::vector<uint32_t> sorted(members, members + count);
        std::sort(sorted.begin(), sorted.end());
        sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
        for (const uint32_t member : sorted) members_[member].users++;
        for (const uint32_t member : group.members) members_[member].users--;
        group.members = std::move(sorted);
        return handle;
    }

    int64_t remove_group(int64_t handle) {
        if (!is_group(handle)) return TABLE_UNKNOWN;
        Group& group = groups_[size_t(handle)];
        if (group.users) return TABLE_IN_USE;
        for (const uint32_t member : group.members) members_[member].users--;
        group = {};
        group_handles_.give_back(uint32_t(handle));
        if (--group_count_ == 0) {
            groups_ = {};
            group_handles_.clear();
        }
        return handle;
    }

    // An entry refers to a member or group from now on; false if there is none.
    bool retain(int kind, uint64_t handle) {
        if (kind == TO_MEMBER && is_member(int64_t(handle))) return members_[handle].users++, true;
        if (kind == TO_GROUP && is_group(int64_t(handle))) return groups_[handle].users++, true;
        return false;
    }

    void release(int kind, uint64_t handle) { (kind == TO_MEMBER ? members_[handle].users : groups_[handle].users)--; }

  private:
    struct Member {
        int action;
        uint32_t users;  // groups and entries that refer to it
        bool used;
    };
    struct Group {
        std::vector<uint32_t> members;  // by rising handle
        uint32_t users = 0;
        bool used = false;
    };

    const size_t words_;
    std::vector<Member> members_;
    std::vector<uint64_t> params_;
    std::vector<Group> groups_;
    Handles member_handles_, group_handles_;
    size_t member_count_ = 0, group_count_ = 0;

    bool is_member(int64_t handle) const {
        return handle >= 0 && uint64_t(handle) < members_.size() && members_[size_t(handle)].used;
    }
    bool is_group(int64_t handle) const {
        return handle >= 0 && uint64_t(handle) < groups_.size() && groups_[size_t(handle)].used;
    }
};

}  // namespace p4
