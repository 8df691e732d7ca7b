// Frames that wait to be sent, packed one behind the other in a ring of memory.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace p4 {

class TxQueue {
  public:
    struct Item {
        uint32_t offset, length;
    };

    // Memory is taken from the system only as far as frames pile up.
    TxQueue() {
        void* start = mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) throw std::bad_alloc();
        arena_ = static_cast<uint8_t*>(start);
    }
    ~TxQueue() { munmap(arena_, SIZE); }
    TxQueue(const TxQueue&) = delete;
    TxQueue& operator=(const TxQueue&) = delete;

    // Room for a frame behind the last, or null when the queue is full.
    uint8_t* reserve(uint32_t length) {
        if (count_ == 0) head_ = 0;  // stay in the cache: an empty queue starts over
        if (count_ == ITEMS) return nullptr;
        const uint32_t tail = count_ ? items_[first_].offset : 0;
        const bool wrapped = count_ && head_ <= tail;
        if (wrapped) {
            if (tail - head_ < length) return nullptr;
        } else if (SIZE - head_ < length) {
            if (tail < length) return nullptr;
            head_ = 0;
        }
        return arena_ + head_;
    }

    void commit(uint32_t length) {
        items_[(first_ + count_++) % ITEMS] = {head_, length};
        head_ += (length + 63) & ~63u;
        if (head_ > SIZE) head_ = SIZE;
    }

    uint32_t size() const { return count_; }
    const Item& operator[](uint32_t i) const { return items_[(first_ + i) % ITEMS]; }
    uint8_t* data(const Item& item) { return arena_ + item.offset; }

    void pop(uint32_t n) {
        first_ = (first_ + n) % ITEMS;
        count_ -= n;
    }

  private:
    static constexpr uint32_t SIZE = 4 << 20, ITEMS = 4096;
    uint8_t* arena_;
    uint32_t head_ = 0, first_ = 0, count_ = 0;
    Item items_[ITEMS];
};

}  // namespace p4
