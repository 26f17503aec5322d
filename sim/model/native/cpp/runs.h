// What GEMM sums: rows of accumulators, and products that all of them have; and how rows whose inputs
// lie at regular distances are summed.

#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "scratchpads.h"

namespace vta::LANES {
namespace {

// One row of a tile of accumulators, and the same row of the inputs; in 32-bit words.
struct Row {
    uint32_t accumulators, inputs;
};

// A product that is added to each row: the offset of its inputs from the row's, a tile of weights,
// and the excess that these add to each column since inputs are biased; in 32-bit words.
struct Product {
    uint32_t inputs, weights, excess;
};

struct Block;

// Offsets of rows and products count from these.
struct Sums {
    int32_t *accumulators;
    const int32_t *inputs;
    const int32_t *weights;
    const int32_t *excess;
    // No two rows have the same accumulators.
    const Row *rows;
    size_t row_count;
    // The rows in blocks, as `Blocks` cuts them.
    const Block *blocks;
    size_t block_count;
    const Product *products;
    size_t product_count;
    bool overwrite, narrow;
};

#if defined(__AVX512VNNI__)

// Square tiles: the inputs of a run of rows lie at one distance from each other, so that one register
// addresses them, where those of any rows take more registers than there are.
constexpr int MAX_RUN = 8;

using SumBlock = void (*)(const Sums &, Vector<SQUARE_COLUMNS> excess, const Block &);

// Rows that are summed at once: one or two runs, from these rows on, and the distance of the inputs
// of two rows in 32-bit words.
struct Block {
    SumBlock sum;
    const Row *runs[2];
    ptrdiff_t distance;
};

template <int LENGTH, int RUNS>
void sum_runs(const Sums &sums, Vector<SQUARE_COLUMNS> excess, const Block &block)
{
    constexpr int N = SQUARE_COLUMNS, ROWS = LENGTH * RUNS;
    // Partial sums of each row, where so few rows would wait for the additions before.
    constexpr int PARTIAL = ROWS >= 8 ? 1 : ROWS >= 4 ? 2 : 4;
    Vector<N> sum[PARTIAL][RUNS][LENGTH] = {};
    size_t first[RUNS];
#pragma GCC unroll 2
    for (int run = 0; run < RUNS; run++) {
        first[run] = block.runs[run]->inputs;
#pragma GCC unroll 8
        for (int row = 0; row < LENGTH; row++) {
            sum[0][run][row] = -excess;
            if (!sums.overwrite)
                sum[0][run][row] +=
                    load<N>(sums.accumulators + block.runs[run][row].accumulators);
        }
    }
    const ptrdiff_t distance = block.distance;
    const Product *const end = sums.products + sums.product_count;
    for (const Product *product = sums.products; product < end; product++) {
        const int32_t *const weights = sums.weights + product->weights;
#pragma GCC unroll 2
        for (int run = 0; run < RUNS; run++) {
            const int32_t *inputs = sums.inputs + first[run] + product->inputs;
#pragma GCC unroll 8
            for (int row = 0; row < LENGTH; row++, inputs += distance) {
                // One address after the other: to know all of them at once takes more registers
                // than there are.
                asm("" : "+r"(inputs));
#pragma GCC unroll 4
                for (int group = 0; group < SQUARE_GROUPS; group++)
                    sum[group % PARTIAL][run][row] = multiply_add(
                        sum[group % PARTIAL][run][row], inputs[group], weights + group * N);
            }
        }
    }
#pragma GCC unroll 2
    for (int run = 0; run < RUNS; run++)
#pragma GCC unroll 8
        for (int row = 0; row < LENGTH; row++) {
#pragma GCC unroll 4
            for (int partial = 1; partial < PARTIAL; partial++)
                sum[0][run][row] += sum[partial][run][row];
            store<N>(sums.accumulators + block.runs[run][row].accumulators,
                     sums.narrow ? narrowed(sum[0][run][row]) : sum[0][run][row]);
        }
}

template <int RUNS, int... LESS>
SumBlock sum_runs_of(int length, std::integer_sequence<int, LESS...>)
{
    static constexpr SumBlock functions[] = {sum_runs<LESS + 1, RUNS>...};
    return functions[length - 1];
}

// Cuts rows into blocks.
class Blocks {
public:
    void cut(const Row *rows, size_t count)
    {
        blocks_.clear();
        alone_ = {};
        for (size_t begin = 0, end; begin < count; begin = end) {
            end = begin + 1;
            const auto distance_at = [&](size_t row) {
                return int32_t(rows[row].inputs - rows[row - 1].inputs);
            };
            const int32_t distance = end < count ? distance_at(end) : 0;
            while (end < count && distance_at(end) == distance)
                end++;
            const size_t length = end - begin;
            size_t parts = (length + MAX_RUN - 1) / MAX_RUN;
            // Two runs at once are faster than one.
            if (parts % 2 && length % (parts + 1) == 0)
                parts++;
            for (const Row *run = rows + begin; parts; parts--) {
                const size_t part = (rows + end - run) / parts;
                add(run, int(part), distance);
                run += part;
            }
        }
        for (int length = 1; length <= MAX_RUN; length++)
            if (alone_[length].run)
                end_alone(length);
    }

    const Block *begin() const { return blocks_.data(); }
    size_t count() const { return blocks_.size(); }

private:
    struct Alone {
        const Row *run;
        int32_t distance;
    };

    void add(const Row *run, int length, int32_t distance)
    {
        Alone &other = alone_[length];
        if (other.run && (other.distance == distance || length == 1)) {
            const auto sum = sum_runs_of<2>(length, std::make_integer_sequence<int, MAX_RUN>());
            blocks_.push_back({sum, {other.run, run}, distance});
            other.run = nullptr;
            return;
        }
        if (other.run)
            end_alone(length);
        other = {run, distance};
    }

    // Sums a run with no other one.
    void end_alone(int length)
    {
        const Alone &only = alone_[length];
        const auto sum = sum_runs_of<1>(length, std::make_integer_sequence<int, MAX_RUN>());
        blocks_.push_back({sum, {only.run, nullptr}, only.distance});
    }

    std::vector<Block> blocks_;
    // By length, a run that was not joined with another one yet.
    std::array<Alone, MAX_RUN + 1> alone_;
};

#else

struct Block {};

class Blocks {
public:
    void cut(const Row *, size_t) {}
    const Block *begin() const { return nullptr; }
    size_t count() const { return 0; }
};

#endif

}  // namespace
}  // namespace vta::LANES
