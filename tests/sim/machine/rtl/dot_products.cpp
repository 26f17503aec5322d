// Shows dot products written in two ways the same operands, a new pair of tiles in each cycle.

#include <cstdint>
#include <cstring>
#include <random>

#include "Vtop.h"
#include "verilated.h"

// The outputs of `Pairs` that were high in any of so many cycles.
extern "C" __attribute__((visibility("default"))) uint32_t differences(uint64_t seed, uint32_t cycles) {
    VerilatedContext context;
    Vtop top(&context);
    std::mt19937_64 dice(seed);
    uint32_t found = 0;
    auto fill = [&](auto& operand) {
        for (unsigned at = 0; at < sizeof operand; at++) {
            const uint64_t drawn = dice();
            // Every fourth byte is an extreme, of eight bits or of twice four.
            const uint8_t extremes[] = {0x80, 0x7f, 0x88, 0x77};
            reinterpret_cast<uint8_t*>(&operand)[at] =
                drawn >> 8 & 3 ? uint8_t(drawn) : extremes[drawn >> 16 & 3];
        }
    };
    for (uint32_t cycle = 0; cycle < cycles; cycle++) {
        fill(top.inp);
        fill(top.wgt);
        // The largest sums are those of the lowest factors alone.
        if (dice() % 8 == 0) {
            std::memset(&top.inp, 0x80, sizeof top.inp);
            std::memset(&top.wgt, 0x80, sizeof top.wgt);
        }
        top.clear = dice() % 8 == 0;
        top.tapped = dice() % 2 == 0;
        top.clk = 0;
        top.eval();
        top.clk = 1;
        top.eval();
        // What is registered in the first cycles comes from power-up.
        if (cycle >= 3) found |= top.differs;
    }
    return found;
}
