// The words and bursts of each stream that may move between two events, whatever the memory does.

#pragma once

#include <array>

#include "clocks.hpp"

namespace estimate {

using Words = std::array<std::int64_t, STREAMS>;

// Words as which a burst read counts, so that memory always has a word to transfer: while bursts take all places in
// flight, and while as many words are outstanding as the machine asks for ahead.
struct Costs {
    std::int64_t least;           // of each burst
    std::int64_t latency, ahead;  // cycles from one word to another one with `ahead` - 1 words between them

    std::int64_t of(std::int64_t words) const {
        const std::int64_t more = std::min(latency - ahead, words * (latency - ahead) / ahead + 1);
        return std::max(words + std::max<std::int64_t>(0, more), least);
    }
};

// The least and the most that each stream may have moved before each event.
class Windows {
  public:
    Windows(const Parameters& parameters, const Program& program, const Clocks& clocks, const Costs& costs)
        : clocks(clocks) {
        for (int stream = 0; stream < MODULES; stream++) {
            moved[stream].push_back(0);
            blocked[stream].push_back(0);
            for (const std::size_t index : program.of_module[stream]) {
                const Operation& operation = program.operations[index];
                const std::int64_t each = operation.words ? operation.cycles_per_word() : 1;
                std::int64_t cost = operation.padded;
                if (stream == STORE_MODULE) cost += operation.words;
                for (std::size_t burst = 0; burst < operation.bursts && stream != STORE_MODULE; burst++)
                    cost += costs.of(program.burst_words[operation.first_burst + burst] * each);
                moved[stream].push_back(moved[stream].back() + cost);
                blocked[stream].push_back(blocked[stream].back() + operation.padded + operation.words * (each - 1));
            }
        }
        moved[FETCH_STREAM].push_back(0);
        for (const std::int64_t words : clocks.fetch_words)
            moved[FETCH_STREAM].push_back(moved[FETCH_STREAM].back() + costs.of(words));
        words.push_back(0);
        padding.push_back(0);
        for (const std::size_t index : program.of_module[LOAD_MODULE]) {
            const Operation& operation = program.operations[index];
            const bool writes = operation.shape->memory == INP;
            words.push_back(words.back() + (writes ? operation.writes : 0));
            padding.push_back(padding.back() + (writes ? operation.shape->padding.cycles : 0));
        }
        for (int stream = 0; stream < STREAMS; stream++)
            for (int other = 0; other < STREAMS; other++) follow(stream, other);
        release(parameters, program);
    }

    // Before the issue of an instruction, or the request of a burst.
    Words least(int stream, std::size_t number) const { return least(clock(stream, number)); }
    Words least(const Clock& clock) const {
        Words found;
        for (int other = 0; other < STREAMS; other++) found[other] = moved[other][clock.ended[other]];
        return found;
    }
    // Before its end. Of its own stream: all up to it.
    Words most(int stream, std::size_t number) const {
        Words found;
        for (int other = 0; other < STREAMS; other++)
            found[other] = moved[other][other == stream ? number + 1 : until(stream, number, other)];
        return found;
    }
    // Cycles in which words read may wait meanwhile for loaders that are busy with earlier ones.
    std::int64_t blocked_meanwhile(int stream, std::size_t number) const {
        std::int64_t found = 0;
        for (const int other : {int(LOAD_MODULE), int(COMPUTE_MODULE)})
            found += blocked[other][other == stream ? number + 1 : until(stream, number, other)] -
                     blocked[other][clock(stream, number).ended[other]];
        return found;
    }
    // In how many cycles LOADs may write words, and padding, to the inputs during a STORE to them, if the first
    // `ended` of them have ended.
    std::pair<std::int64_t, std::int64_t> input_writes_meanwhile(std::size_t number, std::size_t ended) const {
        const std::size_t end = until(STORE_MODULE, number, LOAD_MODULE);
        const std::size_t begin = std::min(std::max(clock(STORE_MODULE, number).ended[LOAD_MODULE], ended), end);
        return {words[end] - words[begin], padding[end] - padding[begin]};
    }
    const Clock& clock(int stream, std::size_t number) const { return clocks.of_issue[stream][number]; }

    // How many transfers of load, of store, or of fetch wait at an event for nothing but memory: they have tokens,
    // and the queues of modules have room for all instructions before them.
    std::size_t released(int stream, const Clock& clock) const {
        const auto waits = [](const Release& release, const Clock& clock) {
            for (int module = 0; module < MODULES; module++)
                if (release.ended[module] > clock.ended[module]) return false;
            return true;
        };
        const std::vector<Release>& all = releases[stream];
        return std::size_t(std::lower_bound(all.begin(), all.end(), clock, waits) - all.begin());
    }
    // The burst of fetch with the instruction of a transfer.
    std::size_t fetch_burst(int stream, std::size_t number) const { return releases[stream][number].burst; }

    // Before each instruction, or burst.
    std::vector<std::int64_t> moved[STREAMS], blocked[MODULES];

  private:
    // How many instructions of each module retire before a transfer can go on; and its burst of fetch.
    struct Release {
        std::array<std::size_t, MODULES> ended;
        std::size_t burst;
    };

    void release(const Parameters& parameters, const Program& program) {
        // Before the instruction of this index can be handed over. A full queue of `own` is work of its stream.
        const auto handed = [&](std::size_t index, int own) {
            Release found = {{}, program.fetch_burst(parameters, index)};
            for (int module = 0; module < MODULES; module++)
                if (const std::size_t before = program.before(Module(module), index); module != own)
                    found.ended[module] = before - std::min(before, std::size_t(parameters.queue_depth));
            return found;
        };
        struct Taker {
            Module module;
            TokenBit push, pop;
        };
        constexpr Taker TAKERS[] = {{LOAD_MODULE, PUSH_PREV, POP_NEXT}, {STORE_MODULE, PUSH_NEXT, POP_PREV}};
        for (const auto& [module, push, pop] : TAKERS) {
            std::vector<std::size_t> givers = {0};
            for (const std::size_t index : program.of_module[COMPUTE_MODULE])
                if (program.operations[index].tokens & push) givers.push_back(program.operations[index].number + 1);
            std::size_t taken = 0;
            for (const std::size_t index : program.of_module[module]) {
                if (program.operations[index].tokens & pop) taken++;
                Release found = handed(index, module);
                found.ended[COMPUTE_MODULE] = std::max(found.ended[COMPUTE_MODULE], givers[taken]);
                releases[module].push_back(found);
            }
        }
        // A burst has room when the one two before it has been handed over.
        const std::size_t count = clocks.fetch_words.size();
        for (std::size_t index = 0, burst = 0; burst < count; burst++) {
            while (index < program.operations.size() && program.fetch_burst(parameters, index) + 1 < burst) index++;
            releases[FETCH_STREAM].push_back(handed(index, FETCH_STREAM));
            releases[FETCH_STREAM].back().burst = burst;
        }
    }

    std::size_t until(int stream, std::size_t number, int other) const { return ends[stream][other][number]; }

    // The first of `other` that waits for the end of each one of `stream`.
    void follow(int stream, int other) {
        const auto& waiting = clocks.of_issue[other];
        std::size_t found = 0;
        for (std::size_t number = 0; number < clocks.of_issue[stream].size(); number++) {
            while (found < waiting.size() && waiting[found].ended[stream] <= number) found++;
            ends[stream][other].push_back(found);
        }
    }

    const Clocks& clocks;
    std::vector<Release> releases[STREAMS];
    std::vector<std::int64_t> words, padding;  // that LOADs write to the inputs
    std::vector<std::size_t> ends[STREAMS][STREAMS];
};

}  // namespace estimate
