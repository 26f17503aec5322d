// The machine: modules that issue and retire in order, tokens between them, and what happens when.
//
// The time until which an instruction waits follows from the times of those before it, except for
// three resources that go to who comes first: the bus, what GEMM and ALU share, and the write port of
// the inputs, where LOADs go before a STORE. Their events are taken in the order of time; everything
// that follows from one is computed at once. A module that cannot go on says what it waits for, and is
// looked at again when that happens.

#pragma once

#include "bus.hpp"
#include "counters.hpp"
#include "stream.hpp"
#include "units.hpp"

namespace estimate {

// `RECORD` of library.py.
struct Record {
    Time handed, issued, begun, done, retired;
    Wait prev, next;
};

class Machine {
  public:
    // `records`, one per instruction, or null, gets what has retired.
    Machine(const Parameters& parameters, Stream& stream, Counters& counters, std::uint64_t address,
            std::uint64_t count, Record* records, Port* port = nullptr)
        : parameters(parameters), stream(stream), counters(counters), records(records),
          fetch(parameters, address, std::int64_t(count)), load(parameters), compute_loader(parameters),
          store(parameters, port), units(parameters), bus(parameters, fetch, load, compute_loader, store, port) {}

    // Runs to the end, and returns when that is; NEVER if no instruction can go on, or the next one is
    // not legal.
    Time run() {
        while (look() < NEVER) step(NEVER);
        return finished;
    }

    // Everything that follows from what is known. Returns the time of the next event; NEVER if there is
    // none, since the program has ended or no instruction can go on.
    Time look() {
        if (woken) {
            advance();
            if (finished != NEVER) return NEVER;
        }
        if (replan) {
            part = &bus.plan();
            grant = bus.grant_from();
            forward = NEVER;
            if (store.forwarder.works()) [[unlikely]] forward = plan_forward();
            replan = false;
        }
        return earliest(grant, part->end, units.next_at(), forward);
    }

    // The next event, after `look`. Bursts are granted no later than at `limit`, as long as another
    // machine cannot have asked before.
    void step(Time limit) {
        const Time unit = units.next_at(), next = earliest(part->end, unit, forward);
        if (grant <= next) {
            grant = grant_all(grant, std::min(next, limit));
            // Writes take turns with a read that may become possible now.
            replan |= !part->reads;
        } else if (forward <= next) [[unlikely]] {
            end_forward();
        } else if (part->end <= unit) {
            move();
            replan = true;
        } else {
            if (units.step()) settle(COMPUTE_MODULE);
            else wake(COMPUTE_MODULE, FOR_UNIT);
        }
    }

    // The end of the program, from its launch; NEVER before.
    Time ends_at() const { return finished; }

    const Parameters& parameters;
    Stream& stream;
    Counters& counters;
    Record* const records;
    Fetch fetch;
    Loader load, compute_loader;
    Storer store;
    Units units;
    Bus bus;

  private:
    using Tokens = Queue<Time>;  // from when on each can be taken
    enum Lack { FOR_INSTRUCTION, FOR_TOKEN, FOR_UNIT, FOR_RETIREMENT, FOR_OTHERS };
    struct State {
        Instruction instructions[PLACES];  // by their number in the module
        std::size_t handed = 0, issued = 0, retired = 0;
        Ring<Time, PLACES * 2> retired_at;
        std::uint64_t indices[PLACES];  // in the stream
        Time issued_at = 0, last_retired = -1;
        Lack lack = FOR_INSTRUCTION;

        Instruction& numbered(std::size_t number) { return instructions[number % PLACES]; }
    };

    // Starts a burst at `grant`, and those after it up to `until`, while nothing else follows from
    // them. Returns when the next one starts, if that is known.
    Time grant_all(Time grant, Time until) {
        do {
            const Reader reader = bus.grant(grant, until);
            if (reader == LOAD_READER && load.walker.has_room()) wake(LOAD_MODULE, FOR_UNIT);
            if (reader == COMPUTE_READER && compute_loader.walker.has_room()) wake(COMPUTE_MODULE, FOR_UNIT);
        } while (!replan && until < NEVER && grant <= until);
        return grant;
    }

    // When the transfer to the inputs ends, by what is known and planned.
    [[gnu::noinline]] Time plan_forward() {
        forwarded = bus.forwarded();
        return forwarded.ends_at();
    }

    [[gnu::noinline]] void end_forward() {
        store.forwarder = forwarded;
        store.end_forward();
        settle(STORE_MODULE);
        wake(STORE_MODULE, FOR_UNIT);
    }

    void move() {
        const Bus::Moved moved = bus.move();
        if (moved.reader == FETCH_READER && full == MODULES) woken |= FETCH;
        if (moved.has_ended) settle(moved.reader == LOAD_READER ? LOAD_MODULE : COMPUTE_MODULE);
        if (moved.has_stored) {
            settle(STORE_MODULE);
            wake(STORE_MODULE, FOR_UNIT);
        }
    }

    void wake(Module module, Lack what) {
        if (modules[module].lack == what) woken |= 1 << module;
        replan = true;
    }

    // Instructions of a module have ended; it looks whether the next one to retire is among them.
    void settle(Module module) {
        replan = true;
        if (has_settled(modules[module])) woken |= 1 << module;
    }

    // Whether the next instruction to retire has ended.
    static bool has_settled(State& state) {
        return state.retired < state.issued && state.numbered(state.retired).is_done();
    }

    // Everything that follows from what is known, module by module until all wait.
    void advance() {
        replan = true;
        while (woken) {
            const int next = std::countr_zero(woken);
            woken &= woken - 1;
            switch (next) {
                case LOAD_MODULE: go_on<LOAD_MODULE>(); break;
                case COMPUTE_MODULE: go_on<COMPUTE_MODULE>(); break;
                case STORE_MODULE: go_on<STORE_MODULE>(); break;
                default: while (hand_over()) {}
            }
        }
    }

    template <Module module>
    void go_on() {
        do {
            if (has_settled(modules[module])) retire<module>();
        } while (issue<module>());
    }

    bool hand_over() {
        if (!fetch.has_next()) return false;
        const Module module = stream.look();
        if (module == MODULES) return false;
        State& state = modules[module];
        const std::size_t depth = std::size_t(parameters.queue_depth);
        Time room = 0;
        if (state.handed >= depth) {
            if (state.retired <= state.handed - depth) {
                full = module;
                return false;
            }
            room = state.retired_at.numbered(state.handed - depth) + 1;
        }
        state.indices[state.handed % PLACES] = fetch.index();
        Instruction& instruction = state.numbered(state.handed++);
        instruction.done = NEVER;
        instruction.prev = instruction.next = {NEVER, NEVER};
        stream.decode(instruction);
        instruction.handed = fetch.hand_over(room);
        wake(module, FOR_INSTRUCTION);
        return true;
    }

    template <Module module>
    bool issue() {
        State& state = modules[module];
        if (state.issued == state.handed) return lacks(state, FOR_INSTRUCTION);
        Instruction& next = state.numbered(state.issued);
        const std::size_t limit = std::size_t(parameters.in_flight);
        Time head = std::max(next.handed + parameters.hand_over_to_issue, state.issued_at + parameters.issue_to_issue);
        if (state.issued >= limit) {
            if (state.retired <= state.issued - limit) return lacks(state, FOR_RETIREMENT);
            head = std::max(head, state.retired_at.numbered(state.issued - limit) + 1);
        }
        Tokens &prev = tokens(Module(module - 1), module), &following = tokens(Module(module + 1), module);
        const Time token = std::max(next.tokens & POP_PREV ? from(prev) : 0, next.tokens & POP_NEXT ? from(following) : 0);
        if (token >= NEVER) return lacks(state, FOR_TOKEN);
        const Time unit = unit_from<module>(next, state);
        if (unit >= NEVER) return false;
        const Time empty = state.retired == state.issued ? std::max(head, state.last_retired + 1) : NEVER;
        if (next.tokens & POP_PREV) wait(prev, empty, next.prev);
        if (next.tokens & POP_NEXT) wait(following, empty, next.next);
        Time now = latest(head, token, unit);
        if constexpr (module == STORE_MODULE) now = store.issued_at(next.transfer, now);
        next.issued = next.begun = state.issued_at = now;
        state.issued++;
        start<module>(next);
        return true;
    }

    static bool lacks(State& state, Lack what) {
        state.lack = what;
        return false;
    }

    static Time from(const Tokens& queue) { return queue.empty() ? NEVER : queue.front(); }

    // Takes a token; a module that is idle from `empty` on may wait for it.
    static void wait(Tokens& queue, Time empty, Wait& record) {
        const Time given = queue.front();
        queue.pop();
        if (given > empty) record = {empty, given};
    }

    // From when on the unit of an instruction can take it, as far as that is known.
    template <Module module>
    Time unit_from(const Instruction& next, State& state) const {
        state.lack = FOR_UNIT;
        if constexpr (module == LOAD_MODULE) return room(load, next.transfer);
        if constexpr (module == STORE_MODULE) return room(store, next.transfer);
        Time from = 0;
        for (int unit = 0; unit < UNITS; unit++) {
            // GEMM and ALU wait for one another in their queues.
            if (unit == next.unit || (next.unit >= GEMM_UNIT && unit >= GEMM_UNIT)) continue;
            if (pending[unit]) {
                state.lack = FOR_RETIREMENT;
                return NEVER;
            }
            from = std::max(from, unit_retired[unit] + 1);
        }
        switch (next.unit) {
            case TRANSFER_UNIT: return std::max(from, room(compute_loader, next.transfer));
            case GEMM_UNIT:
            case ALU_UNIT: return std::max(from, units.room_from(next.unit == ALU_UNIT));
            default: break;
        }
        state.lack = FOR_OTHERS;
        for (const Module other : {LOAD_MODULE, STORE_MODULE}) {
            if (modules[other].retired != modules[other].handed) return NEVER;
            from = std::max(from, modules[other].last_retired + 1);
        }
        return from;
    }

    template <typename Mover>
    static Time room(const Mover& mover, const Transfer& transfer) {
        return mover.has_room(transfer) ? mover.room_from(transfer) : NEVER;
    }

    template <Module module>
    void start(Instruction& next) {
        const Time now = next.issued;
        if constexpr (module == LOAD_MODULE) return load.issue(now, next);
        if constexpr (module == STORE_MODULE) return store.issue(now, next);
        pending[next.unit]++;
        switch (next.unit) {
            case TRANSFER_UNIT:
                units.write(next.transfer.base, next.transfer.shape->accumulators);
                return compute_loader.issue(now, next);
            case GEMM_UNIT:
            case ALU_UNIT: return units.issue(now, next, next.unit == ALU_UNIT);
            default: finished = now + parameters.finish_to_end;
        }
        next.done = now + 1;
    }

    // What is done retires in order, and gives its tokens.
    template <Module module>
    void retire() {
        State& state = modules[module];
        while (has_settled(state)) {
            const Instruction& next = state.numbered(state.retired);
            const Time now = std::max(next.done + parameters.done_to_retire, state.last_retired + 1);
            if (records)
                records[state.indices[state.retired % PLACES]] = {next.handed, next.issued, next.begun, next.done,
                                                                  now, next.prev, next.next};
            state.last_retired = now;
            state.retired_at.push(now);
            state.retired++;
            counters.add<module>(next);
            if (module == COMPUTE_MODULE) {
                pending[next.unit]--;
                unit_retired[next.unit] = now;
            } else if (state.retired == state.handed) {
                // FINISH may wait for the last of the others.
                wake(COMPUTE_MODULE, FOR_OTHERS);
            }
            if (next.tokens & PUSH_PREV) give<module, Module(module - 1)>(now + 1);
            if (next.tokens & PUSH_NEXT) give<module, Module(module + 1)>(now + 1);
            if (full == module) {
                full = MODULES;
                woken |= FETCH;
            }
        }
    }

    template <Module giver, Module taker>
    void give(Time from) {
        tokens(giver, taker).push(from);
        if (taker >= 0 && taker < MODULES) wake(taker, FOR_TOKEN);
    }

    // Between a module and the next one, in either direction.
    Tokens& tokens(Module giver, Module taker) { return queues[std::max(giver, taker)][giver < taker]; }

    State modules[MODULES];
    // A token from load's previous or store's next neighbour, which do not exist, never comes.
    Tokens queues[MODULES + 1][2];
    std::int64_t pending[UNITS] = {};
    Time unit_retired[UNITS] = {-1, -1, -1, -1};
    Time finished = NEVER;
    // Who may have something to do in `advance`: modules, and fetch.
    static constexpr unsigned FETCH = 1 << MODULES;
    unsigned woken = 0;
    Module full = MODULES;  // whose queue has no room for the next instruction
    bool replan = true;     // what the bus moves next
    const Bus::Part* part = nullptr;  // that moves next, and the next grant and end of a transfer to the inputs
    Time grant = NEVER, forward = NEVER;
    Forwarder forwarded;    // at the end of the transfer to the inputs that is in progress, as planned
};

}  // namespace estimate
