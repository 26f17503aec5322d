// Fetch: bursts of instructions asked for ahead, and handed over in stream order.

#pragma once

#include "parameters.hpp"
#include "queue.hpp"

namespace estimate {

class Fetch {
  public:
    Fetch(const Parameters& parameters, std::uint64_t address, std::int64_t count)
        : parameters(parameters), count(count), per_word(std::max<std::int64_t>(1, parameters.bus_bytes / 16)),
          words_per_entry(std::max<std::int64_t>(1, 16 / parameters.bus_bytes)),
          per_burst(parameters.fetch_burst_bytes / 16 / per_word), skipped(std::int64_t(address / 16) % per_word),
          first_entry(std::int64_t(address / 16) / per_word),
          entries(count ? (skipped + count - 1) / per_word + 1 : 0), until_entry_ends(per_word - skipped),
          plan_from(parameters.launch_to_fetch - 1) {
        cut();
        plan();
    }

    // The request for the next burst: when it is made, NEVER if that waits for a hand-over.
    Time asks_from() const { return request; }
    std::int64_t words() const { return burst_entries * words_per_entry; }
    // Of the first of these words in a page.
    std::int64_t place() const { return (first_entry + asked) * words_per_entry; }

    void granted(Time now) {
        plan_from = std::max(request, now);
        asked += burst_entries;
        cut();
        plan();
    }

    // `words` words have come, the first at `begin` and one in every `stride` cycles.
    void receive(std::int64_t words, Time begin, Time stride) {
        for (std::int64_t i = 0; i < words; i++) {
            if (++word_of_entry < words_per_entry) continue;
            word_of_entry = 0;
            // The first entry may hold instructions from before the program.
            const std::int64_t place = came.count() ? 0 : skipped;
            for (std::int64_t part = place; part < per_word && std::int64_t(came.count()) < count; part++)
                came.push(begin + i * stride + parameters.word_to_fetch);
        }
    }

    bool has_next() const { return !came.empty(); }
    std::uint64_t index() const { return std::uint64_t(next); }

    // When the next instruction is handed over, if there is room for it from `room` on.
    Time hand_over(Time room) {
        const Time ready = std::max(came.front(), free_from);
        const Time now = std::max(ready, room);
        waits_for_memory += std::max<Time>(0, came.front() - free_from);
        waits_for_modules += now - ready;
        free_from = now + 1;
        came.pop();
        next++;
        if (--until_entry_ends == 0 || next == count) {
            until_entry_ends = per_word;
            freed.push(now);
        }
        if (request == NEVER) plan();
        return now;
    }

    Time waits_for_memory = 0, waits_for_modules = 0;

  private:
    // How long the next burst is, and how many entries must be free before it.
    void cut() {
        burst_entries = std::min(per_burst - (first_entry + asked) % per_burst, entries - asked);
        needed = asked + burst_entries - 2 * per_burst;
    }

    // When the next burst is requested: if there is room for it besides what has not been handed over.
    void plan() {
        request = NEVER;
        if (!burst_entries || needed > std::int64_t(freed.count())) return;
        request = plan_from + 1;
        if (needed > 0) request = std::max(request, freed.numbered(std::size_t(needed - 1)) + 2);
    }

    const Parameters& parameters;
    const std::int64_t count;
    // An entry of the buffer is a word, which holds several instructions, or several words.
    const std::int64_t per_word, words_per_entry, per_burst;
    const std::int64_t skipped, first_entry, entries;
    std::int64_t until_entry_ends;      // instructions
    std::int64_t asked = 0;             // entries
    Ring<Time, PLACES> freed;           // when entries were
    Ring<Time, PLACES> came;            // from when on instructions can be handed over
    std::int64_t next = 0, word_of_entry = 0, burst_entries = 0, needed = 0;
    Time plan_from, free_from = 0, request = NEVER;
};

}  // namespace estimate
