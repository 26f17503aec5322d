// First-in first-out queues.

#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "parameters.hpp"

namespace estimate {

// One of at most `PLACES` items, which the design limits. The latest `PLACES` of all that were ever put
// in can be read by their number.
template <typename Item, std::size_t PLACES>
class Ring {
    static_assert((PLACES & (PLACES - 1)) == 0);

  public:
    bool empty() const { return first == last; }
    std::size_t size() const { return last - first; }
    std::size_t count() const { return last; }  // of all items, taken or not
    Item& numbered(std::size_t number) { return items[number % PLACES]; }
    const Item& numbered(std::size_t number) const { return items[number % PLACES]; }
    Item& operator[](std::size_t place) { return numbered(first + place); }
    const Item& operator[](std::size_t place) const { return numbered(first + place); }
    Item& front() { return numbered(first); }
    const Item& front() const { return numbered(first); }
    Item& back() { return numbered(last - 1); }
    const Item& back() const { return numbered(last - 1); }
    void pop() { first++; }
    void push(const Item& item) { items[last++ % PLACES] = item; }

  private:
    std::size_t first = 0, last = 0;  // counts of items taken and put, not wrapped
    std::array<Item, PLACES> items;
};

// One of any number of items.
template <typename Item>
class Queue {
  public:
    Queue() = default;
    Queue(const Queue&) = delete;

    bool empty() const { return first == last; }
    std::size_t size() const { return last - first; }
    Item& operator[](std::size_t place) { return items[(first + place) & mask]; }
    const Item& operator[](std::size_t place) const { return items[(first + place) & mask]; }
    Item& front() { return (*this)[0]; }
    const Item& front() const { return (*this)[0]; }
    void pop() { first++; }

    void push(const Item& item) {
        if (size() > mask) grow();
        items[last++ & mask] = item;
    }

  private:
    void grow() {
        std::vector<Item> larger(2 * (mask + 1));
        for (std::size_t number = first; number != last; number++)
            larger[number & (larger.size() - 1)] = items[number & mask];
        many = std::move(larger);
        items = many.data();
        mask = many.size() - 1;
    }

    std::size_t first = 0, last = 0;  // counts of items taken and put, not wrapped
    std::array<Item, PLACES> few;
    std::vector<Item> many;
    Item* items = few.data();
    std::size_t mask = PLACES - 1;  // places, a power of two, minus one
};

}  // namespace estimate
