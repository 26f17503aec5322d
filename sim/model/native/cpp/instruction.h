// Instructions as the machine sees them: decoded, and judged legal or not.
//
// Positions of fields, numbers of opcodes and the like are in definitions.h, which the build
// writes from amaranth_vta.hw.isa.

#pragma once

#include <cstdint>

#include "definitions.h"

namespace vta {

enum class Queue : uint8_t { LOAD_TO_COMPUTE, COMPUTE_TO_LOAD, COMPUTE_TO_STORE, STORE_TO_COMPUTE };
constexpr unsigned TOKEN_QUEUES = 4;

struct Instruction {
    Opcode opcode;
    Module module;
    bool legal;
    bool sets_padding;
    // One bit per token queue.
    uint8_t pops;
    uint8_t pushes;
    uint32_t values[FIELDS];

    uint32_t operator[](Field field) const { return values[static_cast<unsigned>(field)]; }

    // LOAD, STORE: elements of one row in the scratchpad, padding included.
    uint32_t row_elements() const
    {
        return (*this)[Field::x_pad_0] + (*this)[Field::x_size] + (*this)[Field::x_pad_1];
    }

    // LOAD, STORE: elements touched in the scratchpad, padding included.
    uint64_t elements() const
    {
        if ((*this)[Field::x_size] == 0)
            return 0;
        const uint64_t rows =
            (*this)[Field::y_pad_0] + (*this)[Field::y_size] + (*this)[Field::y_pad_1];
        return rows * row_elements();
    }

    // GEMM, ALU: iterations of the two loops around the micro-ops.
    uint64_t iterations() const
    {
        return uint64_t((*this)[Field::iter_out]) * (*this)[Field::iter_in];
    }
};

class Decoder {
public:
    explicit Decoder(const Parameters &parameters);

    // Any 128 bits decode.
    Instruction operator()(uint64_t low, uint64_t high) const;

private:
    struct Place {
        uint8_t field, word, offset;
        uint32_t mask;
    };
    // The fields of an opcode, and the bits that they cover.
    struct Layout {
        unsigned fields = 0;
        Place places[FIELDS];
        uint64_t covered[2];
    };

    const Parameters parameters_;
    Layout layouts_[OPCODES];
};

}  // namespace vta
