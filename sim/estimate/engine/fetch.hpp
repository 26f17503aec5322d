// Fetch: bursts of instructions asked for ahead, and handed over in stream order.

#pragma once

#include <algorithm>
#include <vector>

#include "parameters.hpp"

namespace estimate {

class Fetch {
  public:
    Fetch(const Parameters& parameters, std::uint64_t address, std::int64_t count)
        : parameters(parameters), first(std::int64_t(address / 16)), count(count),
          per_word(std::max<std::int64_t>(1, parameters.bus_bytes / 16)),
          words_per_entry(std::max<std::int64_t>(1, 16 / parameters.bus_bytes)),
          freed_at(std::size_t(entries(count)) + 1), came_at(std::size_t(count)),
          plan_from(parameters.launch_to_fetch - 1) {
        plan();
    }

    // The request for the next burst: when it is made, NEVER if that waits for a hand-over.
    Time asks_from() const { return request; }
    std::int64_t words() const { return burst_entries * words_per_entry; }

    void granted(Time now) {
        plan_from = std::max(request, now);
        asked += burst_entries;
        plan();
    }

    // `words` words have come, the first at `begin` and one in every `stride` cycles.
    void receive(std::int64_t words, Time begin, Time stride) {
        for (std::int64_t i = 0; i < words; i++) {
            if (++word_of_entry < words_per_entry) continue;
            word_of_entry = 0;
            // The first entry may hold instructions from before the program.
            const std::int64_t skip = came ? 0 : first % per_word;
            for (std::int64_t part = skip; part < per_word && came < count; part++)
                came_at[came++] = begin + i * stride + parameters.word_to_fetch;
        }
    }

    bool has_next() const { return next < came; }
    std::int64_t index() const { return next; }

    // When the next instruction is handed over, if there is room for it from `room` on.
    Time hand_over(Time room) {
        const Time ready = std::max(came_at[next], free_from);
        const Time now = std::max(ready, room);
        waits_for_memory += std::max<Time>(0, came_at[next] - free_from);
        waits_for_modules += now - ready;
        free_from = now + 1;
        next++;
        const bool entry_ends = (first + next) % per_word == 0 || next == count;
        if (entry_ends) freed_at[freed++] = now;
        if (request == NEVER) plan();
        return now;
    }

    Time waits_for_memory = 0, waits_for_modules = 0;

  private:
    std::int64_t entries(std::int64_t instructions) const {
        return instructions ? (first + instructions - 1) / per_word - first / per_word + 1 : 0;
    }

    // The next burst, if there is room for it besides what has not been handed over.
    void plan() {
        request = NEVER;
        if (asked == entries(count)) return;
        const std::int64_t per_burst = parameters.fetch_burst_bytes / 16 / per_word;
        const std::int64_t entry = first / per_word + asked;
        burst_entries = std::min(per_burst - entry % per_burst, entries(count) - asked);
        const std::int64_t needed = asked + burst_entries - 2 * per_burst;
        if (needed > freed) return;
        request = plan_from + 1;
        if (needed > 0) request = std::max(request, freed_at[needed - 1] + 2);
    }

    const Parameters& parameters;
    const std::int64_t first, count;
    const std::int64_t per_word;         // instructions in an entry of the buffer, which is a word
    const std::int64_t words_per_entry;  // or several
    std::int64_t asked = 0, freed = 0;   // entries
    std::vector<Time> freed_at, came_at;
    std::int64_t came = 0, next = 0, word_of_entry = 0, burst_entries = 0;
    Time plan_from, free_from = 0, request = NEVER;
};

}  // namespace estimate
