// The machine: modules that issue and retire in order, tokens between them, and what happens when.
//
// The time until which an instruction waits follows from the times of those before it, except for
// two resources that go to who comes first: the bus, and what GEMM and ALU share. Their events are
// taken in the order of time; everything that follows from one is computed at once.

#pragma once

#include "bus.hpp"
#include "units.hpp"

namespace estimate {

// `RECORD` of library.py: the times of an instruction's events, and from when to when it was the
// next of an idle module and lacked a token.
struct Wait {
    Time since, until;
};
struct Record {
    Time handed, issued, begun, done, retired;
    Wait prev, next;
};

class Machine {
  public:
    Machine(const Parameters& parameters, const Stream& stream, std::uint64_t address, Record* records)
        : parameters(parameters), stream(stream), records(records),
          fetch(parameters, address, std::int64_t(stream.instructions.size())), load(parameters),
          compute_loader(parameters), store(parameters), units(parameters),
          bus(parameters, fetch, load, compute_loader, store) {}

    // Runs to the end; false if no instruction can go on.
    bool run() {
        Bus::Part part;
        Time grant = NEVER;
        while (true) {
            if (changed) {
                advance();
                if (finished != NEVER) return true;
                part = bus.plan();
                grant = bus.grant_from();
            }
            const Time begins[] = {units.begins(false), units.begins(true)};
            const Time ends[] = {units.ends(false), units.ends(true)};
            const Time next = std::min({part.end, grant, begins[0], begins[1], ends[0], ends[1]});
            if (next >= NEVER) return false;
            if (grant == next) {
                grant = grant_all(grant, std::min({part.end, begins[0], begins[1], ends[0], ends[1]}));
                // Writes take turns with a read that may become possible now.
                if (part.reads || changed) continue;
                part = bus.plan();
                grant = bus.grant_from();
            } else if (part.end == next) {
                const Reader reader = bus.move(part, done);
                fetch_woken |= reader == FETCH_READER;
                changed |= fetch_woken;
                if (store.has_changed()) wake(STORE_MODULE);
                for (const Module module : {LOAD_MODULE, COMPUTE_MODULE})
                    if (!done[module].empty()) wake(module);
                if (changed) continue;
                part = bus.plan();
                grant = bus.grant_from();
            } else if (ends[0] == next || ends[1] == next) {
                done[COMPUTE_MODULE].push(units.end(ends[0] != next));
                wake(COMPUTE_MODULE);
            } else {
                records[units.begin(next, begins[0] != next)].begun = next;
                wake(COMPUTE_MODULE);
            }
        }
    }

    Time finished = NEVER;

    const Parameters& parameters;
    const Stream& stream;
    Record* const records;
    Fetch fetch;
    Loader load, compute_loader;
    Storer store;
    Units units;
    Bus bus;
    struct State {
        std::vector<std::uint32_t> handed;  // instructions, in order
        std::vector<Time> retired;
        std::size_t issued = 0;
        Time issued_at = 0;
        Time waits_prev = 0, waits_next = 0;
    } modules[MODULES];

  private:
    // Starts a burst at `grant`, and those after it before `until`, while nothing else follows from
    // them. Returns when the next one starts.
    Time grant_all(Time grant, Time until) {
        do {
            const Reader reader = bus.grant(grant);
            if (reader == LOAD_READER && load.walker.has_room()) wake(LOAD_MODULE);
            if (reader == COMPUTE_READER && compute_loader.walker.has_room()) wake(COMPUTE_MODULE);
            grant = bus.grant_from();
        } while (!changed && until < NEVER && grant <= until);
        return grant;
    }

    void wake(Module module) { woken[module] = changed = true; }

    struct Tokens {
        std::vector<Time> given;  // from when on each can be taken
        std::size_t taken = 0;
    };

    // Everything that follows from what is known, module by module until all wait.
    void advance() {
        changed = false;
        while (fetch_woken || (woken[LOAD_MODULE] | woken[COMPUTE_MODULE] | woken[STORE_MODULE])) {
            for (int module = 0; module < MODULES; module++) {
                if (!woken[module]) continue;
                woken[module] = false;
                do {
                    if (!done[module].empty()) retire(Module(module));
                } while (issue(Module(module)));
            }
            fetch_woken = false;
            while (hand_over()) {}
        }
    }

    bool hand_over() {
        if (!fetch.has_next()) return false;
        const std::int64_t index = fetch.index();
        State& state = modules[stream.instructions[index].module];
        const std::size_t before = state.handed.size(), depth = std::size_t(parameters.queue_depth);
        Time room = 0;
        if (before >= depth) {
            if (state.retired.size() <= before - depth) return false;
            room = state.retired[before - depth] + 1;
        }
        records[index].handed = fetch.hand_over(room);
        state.handed.push_back(std::uint32_t(index));
        woken[stream.instructions[index].module] = true;
        return true;
    }

    bool issue(Module module) {
        State& state = modules[module];
        if (state.issued == state.handed.size()) return false;
        const std::uint32_t index = state.handed[state.issued];
        const Instruction& next = stream.instructions[index];
        const std::size_t limit = std::size_t(parameters.in_flight);
        Time now = std::max(records[index].handed + parameters.hand_over_to_issue,
                            state.issued_at + parameters.issue_to_issue);
        if (state.issued >= limit) {
            if (state.retired.size() <= state.issued - limit) return false;
            now = std::max(now, state.retired[state.issued - limit] + 1);
        }
        const Time head = now;
        Tokens *prev = next.pop_prev ? &tokens(Module(module - 1), module) : nullptr;
        Tokens *following = next.pop_next ? &tokens(Module(module + 1), module) : nullptr;
        for (const Tokens* taken : {prev, following}) {
            if (!taken) continue;
            if (taken->taken == taken->given.size()) return false;
            now = std::max(now, taken->given[taken->taken]);
        }
        const Time unit = unit_from(module, next);
        if (unit >= NEVER) return false;
        const Time empty = state.retired.size() == state.issued ? std::max(head, last_retired(state) + 1) : NEVER;
        if (prev) state.waits_prev += wait(*prev, empty, records[index].prev);
        if (following) state.waits_next += wait(*following, empty, records[index].next);
        now = std::max(now, unit);
        records[index].issued = state.issued_at = now;
        state.issued++;
        start(module, index, next, now);
        return true;
    }

    static Time last_retired(const State& state) { return state.retired.empty() ? -1 : state.retired.back(); }

    // Takes a token; a module that is idle from `empty` on may wait for it. Returns how long it waits.
    static Time wait(Tokens& queue, Time empty, Wait& record) {
        const Time given = queue.given[queue.taken++];
        if (given <= empty) return 0;
        record = {empty, given};
        return given - empty;
    }

    // From when on the unit of an instruction can take it, as far as that is known.
    Time unit_from(Module module, const Instruction& next) const {
        if (module == LOAD_MODULE) return room(load, transfer(next));
        if (module == STORE_MODULE) return room(store, transfer(next));
        Time from = 0;
        for (int unit = 0; unit < UNITS; unit++) {
            // GEMM and ALU wait for one another in their queues.
            if (unit == next.unit || (next.unit >= GEMM_UNIT && unit >= GEMM_UNIT)) continue;
            if (pending[unit]) return NEVER;
            from = std::max(from, unit_retired[unit] + 1);
        }
        switch (next.unit) {
            case TRANSFER_UNIT: return std::max(from, room(compute_loader, transfer(next)));
            case GEMM_UNIT:
            case ALU_UNIT: return std::max(from, units.room_from(next.unit == ALU_UNIT));
            default: break;
        }
        for (const Module other : {LOAD_MODULE, STORE_MODULE}) {
            const State& state = modules[other];
            if (state.retired.size() != state.handed.size()) return NEVER;
            from = std::max(from, last_retired(state) + 1);
        }
        return from;
    }

    template <typename Mover>
    static Time room(const Mover& mover, const Transfer& transfer) {
        return mover.has_room(transfer) ? mover.room_from(transfer) : NEVER;
    }

    const Transfer& transfer(const Instruction& instruction) const { return stream.transfers[instruction.at]; }

    void start(Module module, std::uint32_t index, const Instruction& next, Time now) {
        records[index].begun = now;
        if (module == LOAD_MODULE) return load.issue(now, index, transfer(next), done[module]);
        if (module == STORE_MODULE) return store.issue(now, index, transfer(next), done[module]);
        pending[next.unit]++;
        switch (next.unit) {
            case TRANSFER_UNIT:
                units.load(transfer(next).begin, transfer(next).end);
                return compute_loader.issue(now, index, transfer(next), done[module]);
            case GEMM_UNIT:
            case ALU_UNIT:
                return units.issue(now, index, *stream.loops[next.at], next.unit == ALU_UNIT, next.independent);
            default: finished = now + parameters.finish_to_end;
        }
        records[index].done = records[index].retired = now + 1;
    }

    // What is done retires in order, and gives its tokens.
    void retire(Module module) {
        State& state = modules[module];
        for (; !done[module].empty(); done[module].pop())
            records[done[module].front().instruction].done = done[module].front().at;
        while (state.retired.size() < state.issued) {
            const std::uint32_t index = state.handed[state.retired.size()];
            Record& record = records[index];
            if (record.done >= NEVER) return;
            const Time now = std::max(record.done + parameters.done_to_retire, last_retired(state) + 1);
            record.retired = now;
            state.retired.push_back(now);
            const Instruction& instruction = stream.instructions[index];
            // FINISH may wait for the last of the others.
            if (module != COMPUTE_MODULE && state.retired.size() == state.handed.size()) woken[COMPUTE_MODULE] = true;
            if (module == COMPUTE_MODULE) {
                pending[instruction.unit]--;
                unit_retired[instruction.unit] = now;
            }
            if (instruction.push_prev) give(module, Module(module - 1), now + 1);
            if (instruction.push_next) give(module, Module(module + 1), now + 1);
            fetch_woken = true;
        }
    }

    void give(Module giver, Module taker, Time from) {
        tokens(giver, taker).given.push_back(from);
        woken[taker] = true;
    }

    Tokens& tokens(Module giver, Module taker) { return queues[std::max(giver, taker) - 1][giver < taker]; }

    Queue<Done> done[MODULES];
    Tokens queues[2][2];
    std::int64_t pending[UNITS] = {};
    Time unit_retired[UNITS] = {-1, -1, -1, -1};
    // Whether there may be something to do in `advance`: at all, for fetch, and for a module.
    bool changed = true, fetch_woken = true;
    bool woken[MODULES] = {};
};

}  // namespace estimate
