// A memory's contract, and the measure of time by which it bounds events: docs/bounds.md has the argument.

#pragma once

#include <array>

#include "flow.hpp"

namespace estimate {

// Of any `period` consecutive cycles, at most `stall` are pauses.
struct Pauses {
    std::int64_t stall, period;

    std::int64_t within(Time cycles) const { return cycles / period * stall + std::min(stall, cycles % period); }
};

// What a memory promises. All 64-bit integers, in the order of sim/estimate/library.py.
struct Contract {
    Time latency;   // from a read's being offered to its first word
    Time response;  // from the last word of a burst written to its response
    // Pauses, in which no word moves though one could: at most `credit` at once, and on average
    // `scale` - `rate` of `scale` cycles; more closely, of each kind of `pauses`.
    std::int64_t scale, rate, credit;
    Pauses pauses[2];

    bool has_pauses() const { return rate < scale; }
    Contract without_pauses() const { return {latency, response, 1, 1, 0, {{0, 1}, {0, 1}}}; }

    // The most cycles from the launch of which at most `others` are no pauses. Each step from the average keeps an
    // upper bound; few are left to gain after those.
    Time with_pauses(Time others) const {
        Time found = scale * (others + credit) / rate;
        for (int step = 0; step < 16; step++)
            found = std::min(found, others + pauses[0].within(found) + pauses[1].within(found));
        return found;
    }
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
