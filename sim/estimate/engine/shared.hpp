// The memory bus that several machines share, behind the arbiter of hw/system: bursts in the order of
// their requests, a word of the shared bus per cycle.

#pragma once

#include "parameters.hpp"
#include "window.hpp"

namespace estimate {

class SharedMemory {
  public:
    // `ratio` is the words of a machine's bus in one of the shared bus. Refreshes count from `launch`,
    // the last one of a machine.
    SharedMemory(const Parameters& timing, std::int64_t ratio, Time launch)
        : timing(timing), ratio(ratio), launch(launch), read_window(timing), write_window(timing) {}

    // Words of the shared bus in a burst of `words`, of which the first has this `place` in its page.
    std::int64_t widened(std::int64_t place, std::int64_t words) const {
        return (place % ratio + words + ratio - 1) / ratio;
    }

    // A machine asks for a burst of `count` words of the shared bus, which are `words` of its own, at
    // `asked`. From when on it gets them without a pause.
    Time read(Time asked, std::int64_t count, std::int64_t words) {
        Time now = moves_from(read_window, latest(asked + REQUEST + timing.latency, read_free));
        const Time first = now;
        for (std::int64_t left = count;;) {
            const std::int64_t some = std::min(left, read_window.left(now - launch));
            left -= some;
            now += some;
            if (!left) break;
            now = moves_from(read_window, now);
        }
        read_free = now;
        return std::max(first, now - words) + BEAT;
    }

    // A machine has sent the last word of a burst of `count` words of the shared bus at `last`. When it
    // gets the response.
    Time write(Time last, std::int64_t count) {
        Time now = moves_from(write_window, latest(last + PACKED, write_free));
        // Reads and writes take turns; what is read meanwhile was promised to machines already.
        const Time busy = timing.shared ? std::max<Time>(0, read_free - now) : 0;
        if (timing.shared) read_free = std::max(read_free, now) + count;
        now += count - 1 + std::min<Time>(busy, count);
        write_free = now + 1;
        return std::max(now, now - 1 + timing.latency) + RESPONSE;
    }

    // At the earliest, of one word.
    Time answered_at(Time last) const { return last + PACKED + std::max<Time>(0, timing.latency - 1) + RESPONSE; }

  private:
    // Cycles that the arbiter adds: to a request, to a word read, between the last word that a machine
    // sends and the first that memory takes, and to a response.
    static constexpr Time REQUEST = 1, BEAT = 1, PACKED = 3, RESPONSE = 1;

    Time moves_from(Window& window, Time now) const { return now <= launch ? now : window.from(now - launch) + launch; }

    const Parameters& timing;
    const std::int64_t ratio;
    const Time launch;
    Window read_window, write_window;
    Time read_free = 0, write_free = 0;
};

// A machine's port to it; the machine was launched at `origin`.
struct Port {
    SharedMemory& memory;
    Time origin;

    Time read(Time asked, std::int64_t place, std::int64_t words) {
        return memory.read(asked + origin, memory.widened(place, words), words) - origin;
    }
    Time write(Time last, std::int64_t count) { return memory.write(last + origin, count) - origin; }
};

}  // namespace estimate
