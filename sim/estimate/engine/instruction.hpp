// An instruction from its hand-over by fetch to its retirement.

#pragma once

#include <algorithm>

#include "loops.hpp"

namespace estimate {

enum Opcode { LOAD, STORE, GEMM, FINISH, ALU, MULTIPLY, DEPTHWISE };
enum Module : int { LOAD_MODULE, COMPUTE_MODULE, STORE_MODULE, MODULES };
// Of compute as in hw/compute.py; load and store have one unit, number 1.
enum Unit { NO_UNIT, TRANSFER_UNIT, GEMM_UNIT, ALU_UNIT, UNITS };

// Which an instruction takes and gives, a bit each.
enum TokenBit { POP_PREV = 1, POP_NEXT = 2, PUSH_PREV = 4, PUSH_NEXT = 8 };

// Rows of a transfer, as the machine cuts them into bursts.
struct Rows {
    std::int64_t stride, last_byte, count;
};

// The padding of a transfer: writes above its rows, then for each of them those at its sides, where
// a side without any takes a cycle too, then writes below.
struct Padding {
    Time cycles;  // if nothing else is written
    Time above, rows, per_row, idle_per_row;
    bool begins_idle;

    // Whether the step, of `cycles`, has no write.
    bool is_idle(Time step) const {
        if (step < above || step >= above + rows * (per_row + idle_per_row)) return false;
        const Time place = (step - above) % (per_row + idle_per_row);
        return begins_idle ? place < idle_per_row : place >= per_row;
    }

    // How many of the cycles without a write pass while data are written that leave `free` cycles.
    Time idle(Time free) const {
        if (free < above || !rows) return 0;
        const Time passed = per_row ? std::min(rows, (free - above) / per_row) : rows;
        return passed * idle_per_row + (passed < rows && begins_idle);
    }
};

// What a transfer moves, from wherever to wherever.
struct Shape {
    Rows rows;
    Memory memory;
    std::int64_t elements;      // that cross the bus
    std::int64_t word_cycles;   // that the loader needs for a word
    std::int64_t accumulators;  // that are loaded
    bool forwards;              // to the inputs
    std::int64_t forwarded;     // elements that it writes there
    Padding padding;
};

struct Transfer {
    const Shape* shape;
    std::uint64_t address;  // of the first row
    std::int64_t base;      // of the first element in its scratchpad
    std::int64_t words;
};

// From when to when an instruction was the next of an idle module and lacked a token.
struct Wait {
    Time since, until;

    Time length() const { return until - since; }
};

struct Instruction {
    // As decoded; loops are those of GEMM and ALU, and a transfer is that of the others.
    Unit unit;
    std::uint8_t tokens;  // of `TokenBit`
    bool independent;
    const Loops* loops;
    Transfer transfer;
    // When; NEVER if it has not happened.
    Time handed, issued, begun, done;
    Wait prev, next;

    bool is_done() const { return done < NEVER; }
};

}  // namespace estimate
