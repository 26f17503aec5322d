// A first-in first-out queue of a few items in one piece of memory.

#pragma once

#include <cstddef>
#include <vector>

namespace estimate {

template <typename Item>
class Queue {
  public:
    bool empty() const { return first == last; }
    std::size_t size() const { return last - first; }
    Item& operator[](std::size_t place) { return items[(first + place) & (items.size() - 1)]; }
    const Item& operator[](std::size_t place) const { return items[(first + place) & (items.size() - 1)]; }
    Item& front() { return (*this)[0]; }
    const Item& front() const { return (*this)[0]; }
    Item& back() { return (*this)[size() - 1]; }
    void pop() { first++; }

    void push(const Item& item) {
        if (size() == items.size()) grow();
        items[last++ & (items.size() - 1)] = item;
    }

  private:
    void grow() {
        std::vector<Item> larger(2 * items.size());
        const std::size_t count = size();
        for (std::size_t place = 0; place < count; place++) larger[place] = (*this)[place];
        items.swap(larger);
        first = 0;
        last = count;
    }

    std::vector<Item> items = std::vector<Item>(16);
    std::size_t first = 0, last = 0;  // counted from the beginning, never back
};

}  // namespace estimate
