// What sim/estimate/library.py calls: streams replayed, and what they took.

#include <cstdint>
#include <optional>

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

  private:
    const Parameters parameters;
    const Fields fields;
    Stream stream;
    Counters counters;
};

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
