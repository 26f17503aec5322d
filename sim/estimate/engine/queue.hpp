// A first-in first-out queue of a few items in one piece of memory.

#pragma once

#include <cstddef>
#include <memory>

namespace estimate {

template <typename Item>
class Queue {
  public:
    bool empty() const { return first == last; }
    std::size_t size() const { return last - first; }
    Item& operator[](std::size_t place) { return items[(first + place) & mask]; }
    const Item& operator[](std::size_t place) const { return items[(first + place) & mask]; }
    Item& front() { return (*this)[0]; }
    const Item& front() const { return (*this)[0]; }
    Item& back() { return (*this)[size() - 1]; }
    void pop() { first++; }

    void push(const Item& item) {
        if (size() > mask) grow();
        items[last++ & mask] = item;
    }

  private:
    void grow() {
        auto larger = std::make_unique<Item[]>(2 * (mask + 1));
        const std::size_t count = size();
        for (std::size_t place = 0; place < count; place++) larger[place] = (*this)[place];
        items.swap(larger);
        mask = 2 * mask + 1;
        first = 0;
        last = count;
    }

    std::size_t mask = 15;  // places, a power of two, minus one
    std::unique_ptr<Item[]> items = std::make_unique<Item[]>(mask + 1);
    std::size_t first = 0, last = 0;  // counts of items taken and put, not wrapped
};

}  // namespace estimate
