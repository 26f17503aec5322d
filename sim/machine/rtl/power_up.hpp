// CXXRTL's runtime, and what registers and memories hold before the reset: all ones, or random bits.

#pragma once

// What the runtime includes comes first, so that the definition below concerns the runtime alone.
#include <algorithm>
#include <bitset>
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <type_traits>
#include <vector>

// The runtime forces all its templates inline, which makes functions so large that compilers take
// minutes. Left to decide for themselves, they take seconds.
#define __always_inline__ __unused__
#include <cxxrtl/cxxrtl.h>
#undef __always_inline__

struct PowerUpDice {
    std::uint64_t seed;  // 0 for all ones

    std::uint32_t draw() {
        if (!seed) return ~0u;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return std::uint32_t(seed >> 32);
    }
};
inline thread_local PowerUpDice power_up_dice{0};

template <std::size_t Bits>
void power_up(cxxrtl::value<Bits>& value) {
    for (auto& chunk : value.data) chunk = power_up_dice.draw();
    value.data[value.chunks - 1] &= value.msb_mask;
}

template <std::size_t Bits>
void power_up(cxxrtl::wire<Bits>& wire) {
    power_up(wire.curr);
    wire.next = wire.curr;
}

template <std::size_t Bits>
void power_up(cxxrtl::memory<Bits>& memory) {
    for (std::size_t i = 0; i < memory.depth; i++) power_up(memory.data[i]);
}
