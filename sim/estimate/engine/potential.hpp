// A memory's contract, and the measure of time by which it bounds events: docs/bounds.md has the argument.

#pragma once

#include <array>

#include "flow.hpp"

namespace estimate {

// What a memory promises. All 64-bit integers, in the order of sim/estimate/contract.py.
struct Contract {
    Time latency;   // from a read's being offered to its first word
    Time response;  // from the last word of a burst written to its response
    // Cycles in which no word moves though one could: at most `credit` at once, and on average
    // `scale` - `rate` of `scale`.
    std::int64_t scale, rate, credit;
};

constexpr int SETS = 1 << STREAMS, ALL = SETS - 1;

// Upper bounds on the time of an event: `time`, in cycles, and by set of streams `less`, in cycles / scale: on
// rate * time + scale * (credit - words that these streams have moved before).
struct Potential {
    Time time;
    std::array<std::int64_t, SETS> less;
    std::int64_t scale;

    void join(const Potential& other) {
        time = std::max(time, other.time);
        for (int set = 0; set < SETS; set++) less[set] = std::max(less[set], other.less[set]);
    }
    Potential after(Time cycles) const {
        Potential found = *this;
        found.time += cycles;
        for (std::int64_t& one : found.less) one += scale * cycles;
        return found;
    }
};

}  // namespace estimate
