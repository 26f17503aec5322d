// What one instruction does to the scratchpads and to the memory, without the tokens.

#pragma once

#include <cstddef>
#include <memory>

#include "instruction.h"

namespace vta {

// The memory, whose first byte has the address `origin`.
struct Dram {
    uint8_t *memory;
    uint64_t bytes, origin;

    // Whether all bytes from address `first` up to `end` are there.
    bool has(uint64_t first, uint64_t end) const { return first >= origin && end <= origin + bytes; }
    uint8_t *at(uint64_t address) const { return memory + (address - origin); }
};

class Executor {
public:
    virtual ~Executor() = default;

    // A new run: padding values become zero, scratchpads stay.
    virtual void begin() = 0;

    // Checks a legal instruction other than FINISH, and begins it. Nothing is written if there is a
    // fault.
    virtual Cause start(const Instruction &instruction) = 0;

    // Executes a part of the instruction that was begun; returns whether that was the last. A part
    // takes a fraction of a second at most, so that a run can be stopped amid an instruction.
    virtual bool proceed(const Instruction &instruction) = 0;

    // Writes all elements of a scratchpad, laid out as in DRAM.
    virtual void fill(Memory memory, const uint8_t *elements) = 0;

    // All accumulators, sign-extended, element after element.
    virtual const int32_t *accumulators() const = 0;

    // Indexed by Memory: the first element in DRAM that its transfers may not access; 0 for none.
    uint64_t limits[MEMORIES] = {};

    // Indexed by Counter.
    uint64_t counters[COUNTERS] = {};

protected:
    void count(Counter counter, uint64_t amount) { counters[unsigned(counter)] += amount; }
};

// One for each vector extension of the host that the library was compiled for.
namespace portable {
std::unique_ptr<Executor> make_executor(const Parameters &, const Dram &);
}
namespace avx2 {
std::unique_ptr<Executor> make_executor(const Parameters &, const Dram &);
}
namespace avx512 {
std::unique_ptr<Executor> make_executor(const Parameters &, const Dram &);
}

}  // namespace vta
