// The words and bursts of each stream that may move between two events, whatever the memory does.

#pragma once

#include <array>

#include "clocks.hpp"
#include "costs.hpp"

namespace estimate {

using Words = std::array<std::int64_t, STREAMS>;

// The most words as which one burst of some transfers counts, and besides those that it has; and the most words of
// bursts of one transfer that are granted in as many cycles as pass between two transfers of another reader.
struct Burst {
    std::int64_t words = 0, excess = 0, run = 0;

    void join(const Burst& other) {
        words = std::max(words, other.words);
        excess = std::max(excess, other.excess);
        run = std::max(run, other.run);
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
                fetch_bursts[stream].push_back(program.fetch_burst(parameters, index));
                const Operation& operation = program.operations[index];
                const std::int64_t each = operation.words ? operation.cycles_per_word() : 1;
                std::int64_t cost = operation.padded;
                Burst largest;
                if (stream == STORE_MODULE) cost += operation.words;
                for (std::size_t burst = 0; burst < operation.bursts && stream != STORE_MODULE; burst++) {
                    const std::int64_t words = costs.of(operation, burst);
                    cost += words;
                    largest.join({words, words - costs.cycles_of(operation, burst), 0});
                }
                bursts[stream].push_back(largest);
                moved[stream].push_back(moved[stream].back() + cost);
                blocked[stream].push_back(blocked[stream].back() + operation.padded + operation.words * (each - 1));
            }
        }
        for (const Module module : {LOAD_MODULE, COMPUTE_MODULE}) find_runs(parameters, program, costs, module);
        moved[FETCH_STREAM].push_back(0);
        for (std::size_t burst = 0; burst < clocks.fetch_words.size(); burst++) {
            const std::int64_t words = costs.of_fetch(burst);
            moved[FETCH_STREAM].push_back(moved[FETCH_STREAM].back() + words);
            bursts[FETCH_STREAM].push_back({words, words - clocks.fetch_words[burst], words});
        }
        words.push_back(0);
        padding.push_back(0);
        for (const std::size_t index : program.of_module[LOAD_MODULE]) {
            const Operation& operation = program.operations[index];
            const bool writes = operation.shape->memory == INP;
            words.push_back(words.back() + (writes ? operation.writes : 0));
            padding.push_back(padding.back() + (writes ? operation.shape->padding.cycles : 0));
        }
        open(parameters, program, LOAD_MODULE, COMPUTE_MODULE);
        open(parameters, program, COMPUTE_MODULE, LOAD_MODULE);
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
    // Words of another stream meanwhile, at most.
    std::int64_t moved_meanwhile(int stream, std::size_t number, int other) const {
        return moved[other][until(stream, number, other)] - moved[other][clock(stream, number).ended[other]];
    }
    // Cycles in which words read may wait meanwhile for a loader that is busy with earlier ones.
    std::int64_t blocked_meanwhile(int stream, std::size_t number, int loader) const {
        return blocked[loader][until(stream, number, loader)] - blocked[loader][clock(stream, number).ended[loader]];
    }
    // The largest burst that another reader may have in flight meanwhile.
    const Burst& largest_meanwhile(int stream, std::size_t number, int other) const {
        return largest[stream][other][number];
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
    // How many bursts of fetch are granted before a transfer is asked for: up to that of its instruction, and at
    // launch the first two, as many as fetch buffers.
    std::size_t fetched_before(const Operation& operation) const {
        const std::size_t burst = fetch_bursts[operation.module][operation.number] + 1;
        return std::min(std::max<std::size_t>(burst, 2), clocks.fetch_words.size());
    }
    // Of the first transfers of a loader, which wait for nothing but their arrival and for others in front of them:
    // cycles from the request to the grant of the last burst, and how many of each other stream are granted before.
    struct Opening {
        Time late;
        std::array<std::size_t, STREAMS> most;
    };
    const Opening* opening(int stream, std::size_t number) const {
        return number < openings[stream].size() ? &openings[stream][number] : nullptr;
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

    // The bursts that the arbiter grants one loader while the other one has no request for as long as it can between
    // two transfers.
    void find_runs(const Parameters& parameters, const Program& program, const Costs& costs, Module module) {
        struct Cost {
            std::int64_t words, cost;
        };
        std::vector<Cost> all;
        for (const std::size_t index : program.of_module[module]) {
            const Operation& operation = program.operations[index];
            for (std::size_t burst = 0; burst < operation.bursts; burst++)
                all.push_back({program.burst_words[operation.first_burst + burst], costs.of(operation, burst)});
        }
        std::size_t first = 0;
        for (std::size_t number = 0; number < program.of_module[module].size(); number++) {
            for (const std::size_t end = first + program.of(module, number).bursts; first < end; first++) {
                std::int64_t asked = 0, run = 0;
                for (std::size_t next = first; next < std::min(all.size(), first + ROOM_TO_GRANT); next++) {
                    if (asked >= parameters.words_ahead + ROOM_TO_GRANT) break;
                    asked += all[next].words;
                    run += all[next].cost;
                }
                bursts[module][number].join({0, 0, run});
            }
        }
    }

    // The first transfers of a loader wait for nothing but their arrival. As long as there is room, they are granted
    // before those of the other loader, and bursts of fetch, that arrive too late to ask before.
    void open(const Parameters& parameters, const Program& program, Module module, Module other) {
        const Time to_request = parameters.hand_over_to_issue + parameters.issue_to_request;
        const std::size_t count = std::min(program.of_module[module].size(), std::size_t(parameters.in_flight));
        Time late = 0;  // the last grant, after the request of a transfer that waits for no earlier one
        std::int64_t words = 0, bursts = 0, previous = 0;
        for (std::size_t number = 0; number < count; number++) {
            const std::int64_t index = std::int64_t(program.of_module[module][number]);
            const Operation& operation = program.operations[std::size_t(index)];
            const bool waits = operation.tokens & (POP_PREV | POP_NEXT) || operation.unit != TRANSFER_UNIT;
            if (waits || !operation.words) return;
            const Time begin = number ? std::max<Time>(0, late + ROOM_TO_GRANT - (index - previous)) : 0;
            // It goes before the other loader unless it was the latest of both. Otherwise there are up to three turns.
            const std::int64_t taken = number ? asked_by(program, other, previous, previous + late).bursts : 0;
            Others others = asked_by(program, other, index, index + begin - 1);
            std::size_t fetched = fetched_by(parameters, program, index + begin + 1 + to_request);
            if (operation.bursts == 1 && fetched <= 2) {
                const Others next = asked_by(program, other, index, index + begin + 1);
                if (others.bursts == taken) others = next;
                late = begin + (next.transfers ? 1 : 0);
            } else {
                late = begin + 3 + (std::int64_t(operation.bursts) - 1) * 4;
                others = asked_by(program, other, index, index + late);
                fetched = fetched_by(parameters, program, index + late + to_request);
            }
            words += operation.words;
            bursts += std::int64_t(operation.bursts);
            // In flight before its last burst: all but the words of instructions that have arrived.
            const std::int64_t last = program.burst_words[operation.first_burst + operation.bursts - 1];
            std::int64_t ahead = words - last + others.words - (index + 1) * 16 / parameters.bus_bytes;
            for (std::size_t burst = 0; burst < fetched; burst++) ahead += clocks.fetch_words[burst];
            if (ahead >= parameters.words_ahead) return;
            if (bursts + others.bursts + std::int64_t(fetched) > parameters.bursts_in_flight) return;
            std::array<std::size_t, STREAMS> most;
            most.fill(SIZE_MAX);
            most[other] = others.transfers;
            most[FETCH_STREAM] = fetched;
            openings[module].push_back({late, most});
            previous = index;
        }
    }

    // Transfers of a loader that can have begun, and their bursts granted, by a time.
    struct Others {
        std::size_t transfers = 0;
        std::int64_t bursts = 0, words = 0;
    };
    // Those up to the instruction `index`, and behind it as many as can be asked for by so many cycles after the
    // request of the first instruction, if one arrives in each cycle.
    static Others asked_by(const Program& program, Module module, std::int64_t index, Time time) {
        Others found;
        Time next = index;
        for (const std::size_t place : program.of_module[module]) {
            const Operation& operation = program.operations[place];
            const bool is_before = std::int64_t(place) < index;
            if (!is_before && (next = std::max(next, Time(place))) > time) break;
            found.transfers++;
            for (std::size_t burst = 0; burst < operation.bursts; burst++) {
                if (!is_before && next++ > time) break;
                found.bursts++;
                found.words += program.burst_words[operation.first_burst + burst];
            }
        }
        return found;
    }

    // How many bursts of fetch can have been asked for at a time after the launch, in which an instruction is handed
    // over in each cycle.
    std::size_t fetched_by(const Parameters& parameters, const Program& program, Time time) const {
        const std::int64_t per_burst = parameters.fetch_burst_bytes / 16;
        const std::int64_t per_word = std::max<std::int64_t>(1, parameters.bus_bytes / 16);
        std::int64_t end = -(std::int64_t(program.address / 16) % per_burst);
        std::size_t found = 0;
        for (; found < clocks.fetch_words.size(); found++) {
            // Two bursts fit into the buffer: those before have been handed over.
            end = std::min(end + per_burst, program.count);
            const std::int64_t handed = end - 2 * per_burst - per_word;
            if (found >= 2 && handed + 1 > time) break;
        }
        return found;
    }

    // The first of `other` that waits for the end of each one of `stream`.
    void follow(int stream, int other) {
        const auto& waiting = clocks.of_issue[other];
        std::size_t found = 0;
        for (std::size_t number = 0; number < clocks.of_issue[stream].size(); number++) {
            while (found < waiting.size() && waiting[found].ended[stream] <= number) found++;
            const Opening* first = opening(stream, number);
            ends[stream][other].push_back(first ? std::min(found, first->most[other]) : found);
        }
        largest[stream][other] = meanwhile(stream, other);
    }

    // The largest bursts of `other` between the begin and the end of each one of `stream`: the latest ones are joined
    // one by one; earlier ones were joined backwards when the latest began.
    std::vector<Burst> meanwhile(int stream, int other) const {
        const std::vector<Burst>& all = bursts[other];
        std::vector<Burst> found, earlier(all.size() + 1);
        Burst latest;
        std::size_t middle = 0, end = 0;
        for (std::size_t number = 0; number < ends[stream][other].size(); number++) {
            for (; end < until(stream, number, other); end++) latest.join(all[end]);
            const std::size_t begin = clock(stream, number).ended[other];
            if (begin > middle) {
                earlier[end] = latest = {};
                for (std::size_t place = end; place-- > begin;) {
                    earlier[place] = earlier[place + 1];
                    earlier[place].join(all[place]);
                }
                middle = end;
            }
            found.push_back(latest);
            if (begin < middle) found.back().join(earlier[begin]);
        }
        return found;
    }

    const Clocks& clocks;
    std::vector<std::size_t> fetch_bursts[MODULES];  // with each instruction
    std::vector<Release> releases[STREAMS];
    std::vector<Opening> openings[STREAMS];
    std::vector<Burst> bursts[STREAMS], largest[STREAMS][STREAMS];
    std::vector<std::int64_t> words, padding;  // that LOADs write to the inputs
    std::vector<std::size_t> ends[STREAMS][STREAMS];
};

}  // namespace estimate
