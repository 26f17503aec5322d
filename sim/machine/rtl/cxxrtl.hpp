// The machine in C++ by CXXRTL, as harness.cpp drives it. cxxrtl.py makes pins.hpp and vta.hpp.

#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "pins.hpp"

class Simulator {
  public:
    Simulator(uint64_t seed, const char*) : pins(std::make_unique<Pins>()) {
        power_up_dice = {seed};
        design = std::make_unique<cxxrtl_design::p_vta>();
        pins->next_rst = 1;
        drive(*pins, *design);
        design->step();
        sample(*design, *pins);
    }

    // One clock cycle. Registers take what is at their inputs when the clock rises; then the host's
    // and the memory's signals change, as those of registered outputs do, and the logic settles.
    void tick() {
        design->p_clk.set(true);
        design->eval();
        design->commit();
        design->p_clk.set(false);
        drive(*pins, *design);
        design->step();
        sample(*design, *pins);
    }

    void flush() {}

    std::unique_ptr<Pins> pins;

  private:
    std::unique_ptr<cxxrtl_design::p_vta> design;
};
