// The dependences of a stream, without times: which events of which instructions precede which others,
// whatever the memory does. The modules are evaluated like a dataflow network, in any order in which the
// inputs of an event are known; `Policy` says what the value of an event is.

#pragma once

#include <vector>

#include "bursts.hpp"
#include "stream.hpp"

namespace estimate {

// Streams of words on the bus: those of the modules, and of fetch.
constexpr int FETCH_STREAM = MODULES, STREAMS = MODULES + 1;

// An instruction, decoded, and the bursts of its transfer.
struct Operation {
    Module module;
    std::size_t number;  // of its module
    Unit unit;
    std::uint8_t tokens;
    bool independent;
    const Loops* loops;
    const Shape* shape;
    std::int64_t words, base;
    std::size_t first_burst, bursts;  // in `Program::burst_words`
    std::int64_t padded;              // cycles in which padding blocks the words of later transfers
    std::int64_t writes;              // of its words to the scratchpad

    std::int64_t cycles_per_word() const { return shape->word_cycles; }
};

// A stream, decoded.
class Program {
  public:
    Program(const Parameters& parameters, Stream& stream, std::uint64_t address, std::uint64_t count)
        : address(address), count(std::int64_t(count)) {
        operations.reserve(count);
        for (std::uint64_t i = 0; i < count; i++) {
            const Module module = stream.look();
            if (module == MODULES) return;
            Instruction found;
            stream.decode(found);
            add(parameters, module, found);
        }
        is_legal = true;
    }

    const Operation& of(Module module, std::size_t number) const { return operations[of_module[module][number]]; }

    // How many instructions of a module precede the one of this index.
    std::size_t before(Module module, std::size_t index) const {
        const std::vector<std::size_t>& all = of_module[module];
        return std::size_t(std::lower_bound(all.begin(), all.end(), index) - all.begin());
    }

    // The burst of fetch with an instruction.
    std::size_t fetch_burst(const Parameters& parameters, std::size_t index) const {
        const std::int64_t first = std::int64_t(address / 16), per_burst = parameters.fetch_burst_bytes / 16;
        return std::size_t((first + std::int64_t(index)) / per_burst - first / per_burst);
    }

    const std::uint64_t address;
    const std::int64_t count;
    bool is_legal = false;
    std::vector<Operation> operations;
    std::vector<std::size_t> of_module[MODULES];
    std::vector<std::int64_t> burst_words;

  private:
    void add(const Parameters& parameters, Module module, const Instruction& found) {
        Operation operation = {module,        of_module[module].size(), found.unit, found.tokens, found.independent,
                               found.loops,   nullptr, 0, 0, burst_words.size(), 0, 0, 0};
        if (found.unit == TRANSFER_UNIT) {
            const Transfer& transfer = found.transfer;
            operation.shape = transfer.shape;
            operation.base = transfer.base;
            if (!transfer.shape->forwards) operation.words = transfer.words;
            if (operation.words) {
                BurstWalker walker(parameters);
                for (walker.command(0, transfer); walker.asks(); walker.taken(0)) burst_words.push_back(walker.words());
                operation.bursts = burst_words.size() - operation.first_burst;
            }
            if (module != STORE_MODULE) {
                operation.padded = padded(parameters, operation);
                operation.writes = operation.words * operation.cycles_per_word() / parameters.kinds[transfer.shape->memory].words_per_write;
            }
        }
        of_module[module].push_back(operations.size());
        operations.push_back(operation);
    }

    // What is left of the padding after the last word, if no word was late.
    static std::int64_t padded(const Parameters& parameters, const Operation& operation) {
        const Padding& padding = operation.shape->padding;
        if (!operation.words) return padding.cycles + 1;
        const std::int64_t cycles = operation.words * operation.cycles_per_word();
        const std::int64_t free = cycles - cycles / parameters.kinds[operation.shape->memory].words_per_write;
        const std::int64_t steps = std::min(padding.cycles, free + padding.idle(free));
        return steps < padding.cycles ? padding.cycles - steps + 1 : 0;
    }
};

// `Policy` has a type `Value` with `join(other)`, the later of two events, and `after(cycles)`; and the
// values of what units do.
template <typename Policy>
class Flow {
  public:
    using Value = Policy::Value;

    Flow(const Parameters& parameters, const Program& program, Policy& policy)
        : parameters(parameters), program(program), policy(policy), launch(policy.launch()),
          per_word(std::max<std::int64_t>(1, parameters.bus_bytes / 16)),
          words_per_entry(std::max<std::int64_t>(1, 16 / parameters.bus_bytes)),
          per_burst(parameters.fetch_burst_bytes / 16 / per_word), first(std::int64_t(program.address / 16)),
          entries((first + program.count - 1) / per_word - first / per_word + 1),
          requested(launch.after(parameters.launch_to_fetch - 1)) {}

    // Evaluates all events; false if some never happen. `finished` is the end of the program.
    bool run() {
        for (bool goes_on = true; goes_on;) {
            goes_on = hand_over();
            goes_on |= issue<LOAD_MODULE>();
            // One at a time: LOADs that may already be in progress are evaluated first.
            goes_on |= issue<COMPUTE_MODULE>(1);
            goes_on |= issue<STORE_MODULE>();
        }
        return ends;
    }

    Value finished = {};

  private:
    struct Tokens {
        std::vector<Value> given;
        std::size_t taken = 0;

        bool empty() const { return taken == given.size(); }
    };
    struct State {
        std::vector<Value> handed, retired;
        Value issued = {};
    };
    struct UnitState {
        std::vector<Value> begun, done;
    };

    std::size_t retired(Module module) const { return modules[module].retired.size(); }

    bool hand_over() {
        bool goes_on = false;
        for (; next < program.operations.size(); next++) {
            const Module module = program.operations[next].module;
            State& state = modules[module];
            const std::size_t depth = std::size_t(parameters.queue_depth), number = state.handed.size();
            if (number >= depth && retired(module) <= number - depth) break;
            Value value = arrives(std::int64_t(next));
            if (!handed.empty()) value.join(handed.back().after(1));
            if (number >= depth) value.join(state.retired[number - depth].after(1));
            handed.push_back(value);
            state.handed.push_back(value);
            goes_on = true;
        }
        return goes_on;
    }

    // When an instruction can be handed over. Its burst is requested when the buffer has room for it.
    Value arrives(std::int64_t index) {
        const std::int64_t entry = (first + index) / per_word - first / per_word;
        while (asked <= entry) {
            const std::int64_t begin = first / per_word + asked;
            const std::int64_t size = std::min(per_burst - begin % per_burst, entries - asked);
            const std::int64_t needed = asked + size - 2 * per_burst;
            requested = requested.after(1);
            if (needed > 0)
                requested.join(handed[std::size_t((first / per_word + needed) * per_word - first - 1)].after(2));
            policy.fetch(bursts++, size * words_per_entry, requested);
            burst_begin = asked;
            asked += size;
        }
        const std::int64_t words = (entry - burst_begin + 1) * words_per_entry;
        return policy.fetched(std::size_t(index), words).after(parameters.word_to_fetch);
    }

    template <Module module>
    bool issue(std::size_t most = SIZE_MAX) {
        State& state = modules[module];
        bool goes_on = false;
        for (; most && retired(module) < state.handed.size() && issue_next<module>(state); most--) goes_on = true;
        return goes_on;
    }

    // Instructions retire in order, so each one is evaluated up to then at once.
    template <Module module>
    bool issue_next(State& state) {
        const std::size_t number = retired(module);
        const Operation& next = program.of(module, number);
        const std::size_t limit = std::size_t(parameters.in_flight);
        Tokens &prev = tokens(Module(module - 1), module), &following = tokens(Module(module + 1), module);
        if ((next.tokens & POP_PREV && prev.empty()) || (next.tokens & POP_NEXT && following.empty())) return false;
        Value head = state.handed[number].after(parameters.hand_over_to_issue);
        if (number) head.join(state.issued.after(parameters.issue_to_issue));
        if (number >= limit) head.join(state.retired[number - limit].after(1));
        if constexpr (module == COMPUTE_MODULE)
            if (!join_units(next, head)) return false;
        if (next.tokens & POP_PREV) head.join(prev.given[prev.taken++]);
        if (next.tokens & POP_NEXT) head.join(following.given[following.taken++]);
        state.issued = policy.issued(next, head);
        Value value = start(next, state.issued).after(parameters.done_to_retire);
        if (number) value.join(state.retired.back().after(1));
        state.retired.push_back(policy.retired(next, value));
        if (next.tokens & PUSH_PREV) tokens(module, Module(module - 1)).given.push_back(state.retired.back().after(1));
        if (next.tokens & PUSH_NEXT) tokens(module, Module(module + 1)).given.push_back(state.retired.back().after(1));
        if constexpr (module == COMPUTE_MODULE) unit_retired[next.unit] = state.retired.back().after(1), has_retired[next.unit] = true;
        return true;
    }

    // Transfers of compute wait for GEMM and ALU, and these for them; commands wait in the queue of their unit.
    bool join_units(const Operation& next, Value& head) {
        for (int unit = 0; unit < UNITS; unit++) {
            if (unit == next.unit || (next.unit >= GEMM_UNIT && unit >= GEMM_UNIT)) continue;
            if (has_retired[unit]) head.join(unit_retired[unit]);
        }
        if (next.unit >= GEMM_UNIT) {
            const UnitState& unit = units[next.unit == ALU_UNIT];
            const std::size_t depth = std::size_t(next.unit == ALU_UNIT ? parameters.alu_commands : parameters.gemm_commands);
            if (unit.begun.size() >= depth) head.join(unit.begun[unit.begun.size() - depth].after(1));
        }
        if (next.unit != NO_UNIT) return true;
        for (const Module other : {LOAD_MODULE, STORE_MODULE}) {
            if (retired(other) != program.of_module[other].size()) return false;
            if (retired(other)) head.join(modules[other].retired.back().after(1));
        }
        return true;
    }

    // The end of an instruction that is issued.
    Value start(const Operation& next, const Value& issued) {
        if (next.unit == TRANSFER_UNIT) return policy.transfer(next, issued);
        if (next.unit == NO_UNIT) {
            finished = issued.after(parameters.finish_to_end);
            ends = true;
            return issued.after(1);
        }
        const bool alu = next.unit == ALU_UNIT;
        UnitState &mine = units[alu], &other = units[!alu];
        Value command = issued;
        if (!next.independent && !other.done.empty()) command.join(other.done.back());
        const auto [begun, done] = policy.loops(next, command);
        mine.begun.push_back(begun);
        mine.done.push_back(done);
        return done;
    }

    Tokens& tokens(Module giver, Module taker) { return queues[std::max(giver, taker)][giver < taker]; }

    const Parameters& parameters;
    const Program& program;
    Policy& policy;
    const Value launch;
    // An entry of fetch's buffer is a word, which holds several instructions, or several words.
    const std::int64_t per_word, words_per_entry, per_burst, first, entries;
    std::int64_t asked = 0, burst_begin = 0;  // entries
    std::size_t bursts = 0;
    std::size_t next = 0;
    Value requested;
    std::vector<Value> handed;
    State modules[MODULES];
    Tokens queues[MODULES + 1][2];
    UnitState units[2];
    Value unit_retired[UNITS] = {};
    bool has_retired[UNITS] = {};
    bool ends = false;
};

}  // namespace estimate
