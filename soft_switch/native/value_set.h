// What a parser's select compares its key with besides constants: members that the control plane sets.
#pragma once
#include <cstdint>
#include <vector>

namespace p4 {

class ValueSet {
  public:
    explicit ValueSet(unsigned words) : words_(words) {}

    // Rows of `words` values (masked already), then `words` masks.
    void assign(const uint64_t* rows, uint64_t count) { rows_.assign(rows, rows + 2 * words_ * count); }

    bool contains(const uint64_t* key) const {
        const size_t step = 2 * words_;
        for (size_t at = 0; at < rows_.size(); at += step) {
            uint64_t difference = 0;
            for (unsigned i = 0; i < words_; i++)
                difference |= (key[i] & rows_[at + words_ + i]) ^ rows_[at + i];
            if (difference == 0) return true;
        }
        return false;
    }

  private:
    size_t words_;
    std::vector<uint64_t> rows_;
};

}  // namespace p4
