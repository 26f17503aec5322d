// What the library exports to Python.

#include <algorithm>

#include "machine.h"

namespace {

using namespace vta;

enum Vectors : uint32_t { PORTABLE, AVX2, AVX512 };

bool is_available(uint32_t vectors)
{
    switch (vectors) {
    case PORTABLE:
        return true;
#ifdef X86
    case AVX2:
        return __builtin_cpu_supports("avx2");
    case AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    }
    return false;
}

std::unique_ptr<Executor> make_executor(uint32_t vectors, const Parameters &parameters,
                                        const Dram &dram)
{
    switch (vectors) {
#ifdef X86
    case AVX2:
        return avx2::make_executor(parameters, dram);
    case AVX512:
        return avx512::make_executor(parameters, dram);
#endif
    }
    return portable::make_executor(parameters, dram);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT uint32_t vta_is_available(uint32_t vectors) { return is_available(vectors); }

EXPORT Machine *vta_open(const Parameters *parameters, uint32_t vectors, uint8_t *memory,
                         uint64_t bytes, uint64_t origin)
{
    const Dram dram{memory, bytes, origin};
    return new Machine(*parameters, dram, make_executor(vectors, *parameters, dram));
}

EXPORT void vta_close(Machine *machine) { delete machine; }

EXPORT void vta_fill(Machine *machine, uint32_t memory, const uint8_t *elements)
{
    machine->executor().fill(Memory(memory), elements);
}

// Indexed by Memory.
EXPORT void vta_limit(Machine *machine, const uint64_t *limits)
{
    std::copy_n(limits, MEMORIES, machine->executor().limits);
}

EXPORT void vta_begin(Machine *machine, uint64_t address, uint64_t count)
{
    machine->begin(address, count);
}

EXPORT uint32_t vta_advance(Machine *machine, double seconds, Report *report)
{
    return machine->advance(seconds, *report);
}

EXPORT void vta_time_out(Machine *machine, Report *report) { machine->time_out(*report); }

EXPORT const int32_t *vta_accumulators(Machine *machine)
{
    return machine->executor().accumulators();
}
