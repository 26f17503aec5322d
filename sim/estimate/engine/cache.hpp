// A cache of what has been computed about instructions, by the bits that the result depends on.

#pragma once

#include <array>
#include <cstdint>
#include <deque>

namespace estimate {

// Bits of an instruction; the others are zeros.
struct Key {
    std::uint64_t words[2];

    bool operator==(const Key&) const = default;
};

// A direct-mapped cache. Of keys that share an entry only the latest one is found, but evicted values
// stay where they are until `limit`.
template <typename Value>
class Cache {
  public:
    struct Entry {
        Key key = {};
        Value* value = nullptr;
    };

    // The entry of `key`, whose value may be another key's or none.
    Entry& entry(const Key& key) {
        return entries[(key.words[0] * 0x9E3779B97F4A7C15u ^ key.words[1] * 0xC2B2AE3D27D4EB4Fu) >> 54];
    }

    // A new value of `key`, in its entry.
    Value& add(Entry& entry, const Key& key) {
        entry = {key, &values.emplace_back()};
        return *entry.value;
    }

    // Empties the cache if it has too many values; none may be in use.
    void limit() {
        if (values.size() < 4096) return;
        entries.fill({});
        values.clear();
    }

  private:
    std::array<Entry, 1024> entries = {};
    std::deque<Value> values;
};

}  // namespace estimate
