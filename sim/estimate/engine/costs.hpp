// Words as which bursts read count, so that memory always has a word to transfer: while bursts take all places in
// flight, and while as many words are outstanding as the machine asks for ahead. docs/bounds.md has the argument.

#pragma once

#include <array>

#include "potential.hpp"

namespace estimate {

// Cycles from the grant of a transfer's last burst to that of the next one's first; and from the arrival of a word or
// of a response to the grant that waits for it.
constexpr Time ROOM_TO_GRANT = 5, FREED_TO_GRANT = 2;

class Costs {
  public:
    Costs(const Parameters& parameters, const Contract& contract, const Program& program,
          const std::vector<std::int64_t>& fetch_words)
        : latency(parameters.grant_to_memory + contract.latency + FREED_TO_GRANT + ROOM_TO_GRANT),
          ahead(parameters.words_ahead - 1), places(std::size_t(parameters.bursts_in_flight - 1)), program(program) {
        for (const int module : {LOAD_MODULE, COMPUTE_MODULE})
            for (const std::size_t index : program.of_module[module])
                for (std::size_t burst = 0; burst < program.operations[index].bursts; burst++)
                    bursts[module].push_back(in_proportion(cycles_of(program.operations[index], burst)));
        for (const std::int64_t words : fetch_words) bursts[FETCH_STREAM].push_back(in_proportion(words));
        choose();
    }

    // Of a burst of a LOAD, and of fetch.
    std::int64_t of(const Operation& operation, std::size_t burst) const {
        return std::max(in_proportion(cycles_of(operation, burst)), least[operation.module]);
    }
    std::int64_t of_fetch(std::size_t burst) const {
        return std::max(bursts[FETCH_STREAM][burst], least[FETCH_STREAM]);
    }

    // Cycles of the bus that a burst of a LOAD takes.
    std::int64_t cycles_of(const Operation& operation, std::size_t burst) const {
        return program.burst_words[operation.first_burst + burst] * operation.cycles_per_word();
    }

    const Time latency;  // cycles from the end of a burst to the first word of the one that takes its place in flight

  private:
    static constexpr int READERS[] = {LOAD_MODULE, COMPUTE_MODULE, FETCH_STREAM};
    // Also the cycles between transfers of one burst each count.
    static constexpr std::int64_t LEAST = ROOM_TO_GRANT + 1, NONE = std::int64_t(1) << 40;

    // The `ahead` words between two words count for the latency.
    std::int64_t in_proportion(std::int64_t words) const {
        const std::int64_t more = std::min(latency - ahead, words * (latency - ahead) / ahead + 1);
        return words + std::max<std::int64_t>(0, more);
    }

    // In some streams, each burst counts as `LEAST` words at the least, and in the others as many words as all
    // streams together need. Chooses the streams with which all bursts count as the fewest words.
    void choose() {
        std::int64_t fewest = NONE;
        std::array<std::int64_t, STREAMS> chosen = {};
        for (int set = 0; set < SETS; set++) {
            if (set >> STORE_MODULE & 1) continue;
            std::int64_t low = LEAST, high = std::max(latency, LEAST);
            while (low < high) {
                const std::int64_t middle = (low + high) / 2;
                if (suffices(set, middle)) high = middle;
                else low = middle + 1;
            }
            if (!suffices(set, low)) continue;
            std::int64_t all = 0;
            for (const int stream : READERS)
                for (const std::int64_t words : bursts[stream]) all += std::max(words, least[stream]);
            if (all < fewest) fewest = all, chosen = least;
        }
        least = chosen;
    }

    // Whether, with these least words, all bursts between any one and the one that takes its place count for the
    // latency. Bursts of a stream are granted in order, those of different streams in any order.
    bool suffices(int set, std::int64_t words) {
        for (const int stream : READERS) set_least(stream, set >> stream & 1 ? LEAST : words);
        for (std::size_t loads = 0; loads <= places; loads++)
            for (std::size_t others = 0; loads + others <= places; others++) {
                const std::int64_t fetched = smallest[FETCH_STREAM][places - loads - others];
                if (smallest[LOAD_MODULE][loads] + smallest[COMPUTE_MODULE][others] + fetched < latency) return false;
            }
        return true;
    }

    void set_least(int stream, std::int64_t words) {
        const std::vector<std::int64_t>& all = bursts[stream];
        if (least[stream] == words) return;
        least[stream] = words;
        smallest[stream].assign(places + 1, NONE);
        smallest[stream][0] = 0;
        for (std::size_t end = 1; end <= all.size(); end++) {
            std::int64_t sum = 0;
            for (std::size_t count = 1; count <= std::min(places, end); count++) {
                sum += std::max(all[end - count], words);
                smallest[stream][count] = std::min(smallest[stream][count], sum);
            }
        }
    }

    const std::int64_t ahead;
    const std::size_t places;
    const Program& program;
    std::vector<std::int64_t> bursts[STREAMS];
    std::array<std::int64_t, STREAMS> least = {};
    std::vector<std::int64_t> smallest[STREAMS];  // of so many consecutive bursts, the least words in all
};

}  // namespace estimate
