// What has been found out about instructions, kept by the bits that it depends on.

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

// Values by their keys. Of keys that share a place only the latest one is found, but its value stays
// where it is until `limit`.
template <typename Value>
class Kept {
  public:
    struct Place {
        Key key = {};
        Value* value = nullptr;
    };

    // Where the value of `key` is, if there is one.
    Place& place(const Key& key) {
        return places[(key.words[0] * 0x9E3779B97F4A7C15u ^ key.words[1] * 0xC2B2AE3D27D4EB4Fu) >> 54];
    }

    // A new value of `key`, whose place that is.
    Value& add(Place& place, const Key& key) {
        place = {key, &all.emplace_back()};
        return *place.value;
    }

    // Forgets all if they are too many; none may be in use.
    void limit() {
        if (all.size() < 4096) return;
        places.fill({});
        all.clear();
    }

  private:
    std::array<Place, 1024> places = {};
    std::deque<Value> all;
};

}  // namespace estimate
