// Shows a module with a change group and the same without one equal inputs, which rarely change.

#include <cstdint>
#include <random>

#include "Vtop.h"
#include "verilated.h"

// Bit n: byte n of the outputs has differed. Bit 31: the group has rested in half of the cycles.
extern "C" __attribute__((visibility("default"))) uint32_t differences(uint64_t seed, uint32_t cycles) {
    VerilatedContext context;
    context.randReset(0);
    Vtop top{&context};
    std::mt19937_64 dice(seed);
    uint32_t found = 0, ticks = 0;
    auto rarely = [&] { return dice() % 100 == 0; };
    for (uint32_t cycle = 0; cycle < cycles; cycle++) {
        if (rarely()) top.rst = !top.rst;
        if (rarely()) top.en = dice() % 8 == 0;
        if (rarely()) top.write = dice() % 8 ? 0 : dice() % 4;
        if (rarely()) top.at = dice() % 4;
        if (rarely()) top.x = uint8_t(dice());
        if (rarely()) top.y = uint8_t(dice());
        if (rarely()) top.z = uint8_t(dice()) & (dice() % 8 ? 0xfe : 0xff);
        if (rarely()) top.u = uint8_t(dice());
        if (rarely()) top.v = uint8_t(dice());
        top.clk = top.clock_a = 0;
        top.eval();
        top.clk = 1;
        top.clock_a = top.clock_a_active;
        ticks += top.clock_a;
        top.eval();
        found |= top.differs;
    }
    return found | uint32_t(ticks < cycles / 2) << 31;
}
