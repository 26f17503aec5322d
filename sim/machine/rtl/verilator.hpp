// The machine compiled by Verilator, as harness.cpp drives it: pins.sv says what its pins are.

#pragma once

#include <cstdint>
#include <memory>

#include "Vtop.h"
#ifdef FALLS_UNSEEN
#include "Vtop___024root.h"
#endif
#include "verilated.h"
#include "waves.hpp"

// Groups of registers with separate clocks, as in amaranth_vta.hw.clock_groups and change_groups.py.
// build.py reads these lists, which are named after the macros.
#ifdef GROUPED
#define EACH_GROUPED(DO) DO(lanes) DO(products) DO(load_dma) DO(compute_dma) DO(store_dma)
#else
#define EACH_GROUPED(DO)
#endif
#ifdef CHANGE_GROUPED
#define EACH_CHANGE_GROUPED(DO) DO(host) DO(issue)
#else
#define EACH_CHANGE_GROUPED(DO)
#endif
#define EACH_GROUP(DO) EACH_GROUPED(DO) EACH_CHANGE_GROUPED(DO)

using Pins = Vtop;

class Simulator {
    VerilatedContext context;  // outlives the model

  public:
    Simulator(uint64_t seed, const char* waves) {
        context.randReset(2);  // scratchpads are undefined after power-up
        context.randSeed(int(seed % 0x7fffffff) + 1);
        pins = std::make_unique<Vtop>(&context);
        trace.open(context, *pins, waves);
    }

    ~Simulator() {
        pins->final();
        trace.close();
    }

    // One clock cycle.
    void tick() {
        pins->clk = 1;
#define TICK(group) pins->clock_##group = pins->clock_##group##_active;
        EACH_GROUP(TICK)
#undef TICK
        pins->eval();
        trace.dump(context);
        fall();
        trace.dump(context);
    }

    // Completes the wave file up to now.
    void flush() { trace.flush(); }

    std::unique_ptr<Pins> pins;

  private:
    // The falling edge, at which nothing happens. If the model keeps the previous values of its clocks
    // by the names that build.py knows, these are set, and the edge is not evaluated.
    void fall() {
        pins->clk = 0;
#define FALL(group) pins->clock_##group = 0;
        EACH_GROUP(FALL)
#undef FALL
#ifdef FALLS_UNSEEN
        pins->rootp->__Vtrigprevexpr___TOP__clk__0 = 0;
#define FORGET(group) pins->rootp->__Vtrigprevexpr___TOP__clock_##group##__0 = 0;
        EACH_GROUP(FORGET)
#undef FORGET
#else
        pins->eval();
#endif
    }

    Waves trace;
};
