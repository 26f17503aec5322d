// DEPTHWISE: products in which each pair of outputs takes several taps of its own two channels.

#pragma once

#include "scratchpads.h"

namespace vta::LANES {
namespace {

// A micro-op and a row of its tiles: indices of elements, and how many inputs it takes.
struct Taps {
    uint32_t dst, src, wgt, row, batch, count;
};

// A row of accumulators = (overwrite ? 0 : itself) + its products.
template <int COLUMNS>
void sum_taps(Scratchpads &scratchpads, const Taps &taps, bool overwrite, bool narrow)
{
    constexpr int N = COLUMNS < REGISTER_LANES ? COLUMNS : REGISTER_LANES;
    constexpr int PER_WORD = GROUP / 2;
    const uint32_t groups = scratchpads.groups;
    const auto input = [&](uint32_t tap) {
        const int32_t *inputs = scratchpads.inputs;
        return inputs + ((taps.src + tap) * taps.batch + taps.row) * groups;
    };
    const int32_t *weights = scratchpads.weights + taps.wgt * size_t(scratchpads.weight_words);
    int32_t *row = scratchpads.accumulators +
                   (taps.dst * size_t(taps.batch) + taps.row) * COLUMNS;
    alignas(64) int32_t lanes[COLUMNS];
    Vector<N> sums[COLUMNS / N] = {};
    for (int part = 0; part < COLUMNS / N; part++) {
        if (!overwrite)
            sums[part] = load<N>(row + part * N);
        if (BIASED)
            sums[part] -= load<N>(scratchpads.excess + taps.wgt * size_t(COLUMNS) + part * N);
    }
    for (uint32_t group = 0; group < groups; group++) {
        // Two channels of a tap, or two inputs of the first tile, are a part of a word.
        typedef Input Pair[2];
        for (int at = 0; at < PER_WORD; at++) {
            const uint32_t tap = group * PER_WORD + at;
            const Pair *pairs = reinterpret_cast<const Pair *>(input(tap < taps.count ? tap : 0));
            for (int column = 0; column < COLUMNS; column++)
                std::memcpy(reinterpret_cast<char *>(lanes + column) + at * sizeof(Pair),
                            pairs[tap < taps.count ? column / 2 % (groups * PER_WORD) : tap], sizeof(Pair));
        }
        for (int part = 0; part < COLUMNS / N; part++)
            sums[part] = multiply_add(sums[part], load<N>(lanes + part * N),
                                      weights + group * COLUMNS + part * N);
    }
    for (int part = 0; part < COLUMNS / N; part++)
        store<N>(row + part * N, narrow ? narrowed(sums[part]) : sums[part]);
}

using SumTaps = void (*)(Scratchpads &, const Taps &, bool overwrite, bool narrow);

// The function for tiles of so many columns.
inline SumTaps sum_taps_for(unsigned columns)
{
    switch (columns) {
    case 4:
        return sum_taps<4>;
    case 8:
        return sum_taps<8>;
    case 16:
        return sum_taps<16>;
    default:
        return sum_taps<32>;
    }
}

}  // namespace
}  // namespace vta::LANES
