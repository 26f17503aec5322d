// What sim/estimate/library.py calls: a stream replayed, and what it took.

#include <cstdint>

#include "counters.hpp"
#include "machine.hpp"

using namespace estimate;

extern "C" __attribute__((visibility("default"))) std::int64_t vta_estimate(
    const Parameters* parameters, const Fields* fields, const std::uint8_t* memory, std::uint64_t bytes,
    std::uint64_t address, std::uint64_t count, std::uint32_t* uops, Record* records, std::int64_t* counters) {
    Stream stream(*parameters, *fields, memory, bytes, {uops, std::size_t(parameters->uop_depth)});
    if (!stream.decode(address, count)) return -2;
    for (std::uint64_t i = 0; i < count; i++)
        records[i] = {NEVER, NEVER, NEVER, NEVER, NEVER, {NEVER, NEVER}, {NEVER, NEVER}};
    Machine machine(*parameters, stream, address, records);
    const bool finished = machine.run();
    count_all(machine, stream, records, counters);
    return finished ? machine.finished : -1;
}
