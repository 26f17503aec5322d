// The inner loops of GEMM: for many accumulators, sums over the same list of products.

#pragma once

#include "runs.h"

namespace vta::LANES {
namespace {

// Columns that are computed at once, and rows.
template <int COLUMNS>
constexpr int WIDTH = COLUMNS < REGISTER_LANES ? COLUMNS : REGISTER_LANES;
template <int COLUMNS>
constexpr int MAX_ROWS = REGISTERS * WIDTH<COLUMNS> / COLUMNS;

// Partial sums of each of COUNT rows, to which the groups of a product are added in turn: where rows
// are few, an addition would otherwise wait for the one before it.
template <int COLUMNS, int COUNT, int GROUPS>
constexpr int partial_sums()
{
    int sums = 1;
    while (WAITS && GROUPS % (2 * sums) == 0 && GROUPS && 2 * sums * COUNT <= MAX_ROWS<COLUMNS>)
        sums *= 2;
    return sums;
}

template <int COLUMNS>
struct TileRow {
    Vector<WIDTH<COLUMNS>> parts[COLUMNS / WIDTH<COLUMNS>];
};

// COUNT rows; GROUPS is the number of groups of inputs in a row, or 0 for `groups`.
template <int COLUMNS, int COUNT, int GROUPS>
inline void sum_rows(const Sums &sums, const TileRow<COLUMNS> &excess, const Row *rows, int groups)
{
    constexpr int N = WIDTH<COLUMNS>, PARTS = COLUMNS / N;
    constexpr int PARTIAL = partial_sums<COLUMNS, COUNT, GROUPS>();
    Vector<N> sum[PARTIAL][COUNT][PARTS] = {};
    const int32_t *inputs[COUNT];
    for (int row = 0; row < COUNT; row++) {
        inputs[row] = sums.inputs + rows[row].inputs;
        for (int part = 0; part < PARTS; part++) {
            if (!sums.overwrite)
                sum[0][row][part] =
                    load<N>(sums.accumulators + rows[row].accumulators + part * N);
            if (BIASED)
                sum[0][row][part] -= excess.parts[part];
        }
    }
    const int count = GROUPS ? GROUPS : groups;
    for (size_t number = 0; number < sums.product_count; number++) {
        const Product product = sums.products[number];
        const int32_t *weights = sums.weights + product.weights;
        for (int group = 0; group < count; group += PARTIAL)
#pragma GCC unroll 4
            for (int partial = 0; partial < PARTIAL; partial++)
#pragma GCC unroll 12
                for (int row = 0; row < COUNT; row++) {
                    const int32_t input = inputs[row][product.inputs + group + partial];
                    for (int part = 0; part < PARTS; part++)
                        sum[partial][row][part] =
                            multiply_add(sum[partial][row][part], input,
                                         weights + (group + partial) * COLUMNS + part * N);
                }
    }
    for (int partial = 1; partial < PARTIAL; partial++)
        for (int row = 0; row < COUNT; row++)
            for (int part = 0; part < PARTS; part++)
                sum[0][row][part] += sum[partial][row][part];
    for (int row = 0; row < COUNT; row++)
        for (int part = 0; part < PARTS; part++)
            store<N>(sums.accumulators + rows[row].accumulators + part * N,
                     sums.narrow ? narrowed(sum[0][row][part]) : sum[0][row][part]);
}

template <int COLUMNS, int COUNT, int GROUPS>
inline void sum_blocks(const Sums &sums, const TileRow<COLUMNS> &excess, size_t done, int groups)
{
    for (; done + COUNT <= sums.row_count; done += COUNT)
        sum_rows<COLUMNS, COUNT, GROUPS>(sums, excess, sums.rows + done, groups);
    if constexpr (COUNT > 1)
        sum_blocks<COLUMNS, (COUNT + 1) / 2, GROUPS>(sums, excess, done, groups);
}

// accumulators of each row = (overwrite ? 0 : themselves) + the sum of all products.
template <int COLUMNS, int GROUPS>
void sum_products(const Sums &sums, int groups)
{
    constexpr int N = WIDTH<COLUMNS>;
    TileRow<COLUMNS> excess = {};
    if (BIASED)
        for (size_t number = 0; number < sums.product_count; number++)
            for (int part = 0; part < COLUMNS / N; part++)
                excess.parts[part] +=
                    load<N>(sums.excess + sums.products[number].excess + part * N);
#if defined(__AVX512VNNI__)
    if constexpr (COLUMNS == SQUARE_COLUMNS && GROUPS == SQUARE_GROUPS) {
        for (size_t at = 0; at < sums.block_count; at++)
            sums.blocks[at].sum(sums, excess.parts[0], sums.blocks[at]);
        return;
    }
#endif
    sum_blocks<COLUMNS, MAX_ROWS<COLUMNS>, GROUPS>(sums, excess, 0, groups);
}

using SumProducts = void (*)(const Sums &, int groups);

// As many inputs in a row as there are columns are known when this is compiled.
template <int COLUMNS>
SumProducts sum_products_of(unsigned groups)
{
    constexpr int SQUARE = COLUMNS / GROUP;
    return groups == SQUARE ? sum_products<COLUMNS, SQUARE> : sum_products<COLUMNS, 0>;
}

// The function for tiles of so many columns and groups of inputs.
inline SumProducts sum_products_for(unsigned columns, unsigned groups)
{
    switch (columns) {
    case 4:
        return sum_products_of<4>(groups);
    case 8:
        return sum_products_of<8>(groups);
    case 16:
        return sum_products_of<16>(groups);
    default:
        return sum_products_of<32>(groups);
    }
}

}  // namespace
}  // namespace vta::LANES
