// What sim/estimate/library.py calls: streams replayed, and what they took.

#include <cstdint>
#include <memory>
#include <vector>

#include "bound.hpp"
#include "machine.hpp"

namespace estimate {

// One machine and its memory; micro-ops stay loaded between streams.
class Engine {
  public:
    Engine(const Parameters& parameters, const Fields& fields)
        : parameters(parameters), fields(fields), stream(this->parameters, this->fields) {}

    // Cycles to the end of the stream of `count` instructions at `address`, or -1 if the machine would
    // not come to it. `records` has one per instruction, and `counted` the counters, if not null.
    Time replay(const std::uint8_t* memory, std::uint64_t bytes, std::uint64_t address, std::uint64_t count,
                Record* records, std::int64_t* counted) {
        if (!stream.open(memory, bytes, address, count)) return -1;
        counters.clear();
        Machine machine(parameters, stream, counters, address, count, records);
        const Time finished = machine.run();
        if (counted) counters.write(machine.bus, machine.fetch, machine.store, counted);
        return finished < NEVER ? finished : -1;
    }

    // Cycles to the end of the stream with any memory that keeps `contract`, at most, or -1. `done` has
    // those to the retirement of each instruction, if not null.
    Time bounded(const Contract& contract, const std::uint8_t* memory, std::uint64_t bytes, std::uint64_t address,
                 std::uint64_t count, Time* done) {
        if (!stream.open(memory, bytes, address, count)) return -1;
        return bound(parameters, contract, stream, address, count, done);
    }

    // A machine of several on `port` at the start of a stream; null if it would not come to the end.
    std::unique_ptr<Machine> start(const std::uint8_t* memory, std::uint64_t bytes, std::uint64_t address,
                                   std::uint64_t count, Port* port) {
        if (!stream.open(memory, bytes, address, count)) return nullptr;
        counters.clear();
        return std::make_unique<Machine>(parameters, stream, counters, address, count, nullptr, port);
    }

    void count(const Machine& machine, std::int64_t* counted) const {
        counters.write(machine.bus, machine.fetch, machine.store, counted);
    }

  private:
    const Parameters parameters;
    const Fields fields;
    Stream stream;
    Counters counters;
};

// Takes the events of several machines in the order of time.
inline void run_together(std::vector<std::unique_ptr<Machine>>& machines, const std::vector<Port>& ports) {
    std::vector<Time> next;
    for (auto& machine : machines) next.push_back(machine ? machine->look() : NEVER);
    while (true) {
        std::size_t chosen = 0;
        Time first = NEVER, second = NEVER;
        for (std::size_t at = 0; at < next.size(); at++) {
            const Time time = next[at] < NEVER ? next[at] + ports[at].origin : NEVER;
            if (time < first) second = first, first = time, chosen = at;
            else second = std::min(second, time);
        }
        if (first >= NEVER) return;
        machines[chosen]->step(second < NEVER ? second - ports[chosen].origin : NEVER);
        next[chosen] = machines[chosen]->look();
    }
}

}  // namespace estimate

#define EXPORTED extern "C" __attribute__((visibility("default")))

using namespace estimate;

// Null if the design has limits that the engine has no room for.
EXPORTED Engine* vta_estimate_open(const Parameters* parameters, const Fields* fields) {
    return parameters->fit() ? new Engine(*parameters, *fields) : nullptr;
}

EXPORTED void vta_estimate_close(Engine* engine) { delete engine; }

// As `Engine::replay`.
EXPORTED std::int64_t vta_estimate(Engine* engine, const std::uint8_t* memory, std::uint64_t bytes,
                                   std::uint64_t address, std::uint64_t count, Record* records,
                                   std::int64_t* counters) {
    return engine->replay(memory, bytes, address, count, records, counters);
}

// As `Engine::bounded`.
EXPORTED std::int64_t vta_bound(Engine* engine, const Contract* contract, const std::uint8_t* memory,
                                std::uint64_t bytes, std::uint64_t address, std::uint64_t count, Time* done) {
    return engine->bounded(*contract, memory, bytes, address, count, done);
}

// A stream to replay, and what it takes.
struct Run {
    std::uint64_t address, count;
    Time cycles;
};

// Fills in the cycles of `count` streams, in their order.
EXPORTED void vta_estimate_all(Engine* engine, const std::uint8_t* memory, std::uint64_t bytes, Run* runs,
                               std::uint64_t count) {
    for (Run* run = runs; run != runs + count; run++)
        run->cycles = engine->replay(memory, bytes, run->address, run->count, nullptr, nullptr);
}

// Fills in the cycles of a stream on each of `count` machines, which share a memory with the timing of
// `shared`; `ratio` is the words of a machine's bus in one of theirs. A machine is launched `offset`
// cycles after the one before. `counters` has those of all machines.
EXPORTED void vta_estimate_together(Engine** engines, const Parameters* shared, std::int64_t ratio,
                                    std::int64_t offset, const std::uint8_t* memory, std::uint64_t bytes,
                                    Run* runs, std::uint64_t count, std::int64_t* counters,
                                    std::uint64_t counters_each) {
    SharedMemory bus(*shared, ratio, offset * Time(count - 1));
    std::vector<Port> ports;
    for (std::uint64_t at = 0; at < count; at++) ports.push_back({bus, offset * Time(at)});
    std::vector<std::unique_ptr<Machine>> machines;
    for (std::uint64_t at = 0; at < count; at++)
        machines.push_back(engines[at]->start(memory, bytes, runs[at].address, runs[at].count, &ports[at]));
    run_together(machines, ports);
    for (std::uint64_t at = 0; at < count; at++) {
        const Time ends = machines[at] ? machines[at]->ends_at() : NEVER;
        runs[at].cycles = ends < NEVER ? ends : -1;
        if (machines[at]) engines[at]->count(*machines[at], counters + at * counters_each);
    }
}
