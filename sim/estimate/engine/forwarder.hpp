// The `Forwarder` of hw/dma: results that become inputs, one element in each cycle in which no LOAD
// writes to the inputs.

#pragma once

#include "parameters.hpp"

namespace estimate {

// Writes of a LOAD to the inputs, one in every `period` cycles.
struct InputWrites {
    Time from;
    std::int64_t count;
    Time period;

    void skip(std::int64_t some) {
        from += some * period;
        count -= some;
    }
};

class Forwarder {
  public:
    // Whether a transfer is in progress.
    bool works() const { return is_active; }

    // A transfer of `count` elements is issued at `now`.
    void begin(Time now, std::int64_t count) {
        is_active = true;
        // Behind what the one before it has not written yet.
        at = latest(now + ISSUE_TO_WRITE - 1, last + 1, 0);
        before_last = last = at;
        left = count;
        met = 0;
        // One without elements takes a step that writes nothing, so nothing holds it up.
        if (!count) pass(left = 1);
    }

    // A LOAD writes; called in the order of time.
    void meet(InputWrites writes) {
        if (writes.from <= at) writes.skip(std::min(writes.count, (at - writes.from) / writes.period + 1));
        while (writes.count && left) {
            pass(writes.from - at - 1);
            at = writes.from;
            writes.skip(1);
            if (!writes.count || !left) return;
            // Up to the last write that it meets, each leaves it as many cycles.
            const Time free = writes.period - 1;
            const std::int64_t whole = free ? std::min(writes.count, (left - 1) / free) : writes.count;
            if (!whole) continue;
            left -= whole * free;
            at += whole * writes.period;
            writes.skip(whole);
            if (free) last = at - 1;
        }
    }

    // Whether writes up to `time` can hold it up.
    bool reaches(Time time) const { return left && time > at; }

    // No further LOAD writes before its end.
    void finish() { pass(left); }

    // A transfer that has finished ends with its last write.
    Time ends_at() const { return last; }
    void end() { is_active = false; }

    // In which cycle from `time` on it takes a transfer, if none is in progress: not before the
    // last write but one.
    Time takes(Time time) const { return std::max(time, before_last); }
    // From when on it has nothing to write.
    Time idle_from() const { return last + 1; }

    std::size_t met = 0;  // runs of padding, of all that LOADs have written behind their data

  private:
    static constexpr Time ISSUE_TO_WRITE = 3;

    // No LOAD writes in the next `cycles`.
    void pass(Time cycles) {
        const Time written = std::min(cycles, left);
        if (written) {
            before_last = written > 1 ? at + written - 1 : last;
            last = at + written;
        }
        left -= written;
        at += cycles;
    }

    bool is_active = false;
    Time at = 0;            // until then it is known what happens
    std::int64_t left = 0;  // elements that are not written then
    Time last = -1, before_last = -1;  // the latest writes, or when it has begun
};

}  // namespace estimate
