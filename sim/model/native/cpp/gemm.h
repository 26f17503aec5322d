// GEMM: micro-ops are sorted by destination, then all rows with the same products are summed.

#pragma once

#include "microops.h"
#include "products.h"

namespace vta::LANES {
namespace {

class Gemm {
public:
    Gemm(const Parameters &parameters, Scratchpads &scratchpads)
        : batch_(parameters.batch), narrow_(parameters.acc_width == 16), scratchpads_(scratchpads),
          sum_products_(sum_products_for(scratchpads.columns, scratchpads.groups)),
          group_of_(parameters.acc_depth), group_dst_(parameters.uop_depth),
          group_start_(parameters.uop_depth + 1), sorted_(parameters.uop_depth),
          next_(parameters.uop_depth), excess_(scratchpads.columns),
          rows_(MOST_ITERATIONS * parameters.batch), products_(MOST_PRODUCTS)
    {
    }

    // Iterations of both loops and micro-ops that fit into one part.
    static constexpr uint64_t MOST_ITERATIONS = 1 << 14, MOST_PRODUCTS = 1 << 17;

    // Sorts micro-ops by destination.
    void sort(const MicroOps &uops)
    {
        std::fill_n(static_cast<uint32_t *>(group_of_), scratchpads_.depth(Memory::ACC), NONE);
        groups_ = 0;
        for (uint32_t at = 0; at < uops.count; at++) {
            uint32_t &group = group_of_[uops.dst[at]];
            if (group == NONE) {
                group = groups_++;
                group_dst_[group] = uops.dst[at];
                next_[group] = 0;
            }
            next_[group]++;
        }
        group_start_[0] = 0;
        for (uint32_t group = 0; group < groups_; group++) {
            group_start_[group + 1] = group_start_[group] + next_[group];
            next_[group] = group_start_[group];
        }
        for (uint32_t at = 0; at < uops.count; at++)
            sorted_[next_[group_of_[uops.dst[at]]]++] = {
                uops.src[at] * scratchpads_.input_words, uops.wgt[at] * scratchpads_.weight_words};
    }

    void reset(const MicroOps &uops, const Part &part)
    {
        const size_t size = scratchpads_.accumulator_words;
        for (uint32_t o = 0; o < part.outer.count; o++)
            for (uint32_t i = 0; i < part.inner.count; i++) {
                const uint32_t offset = part.dst + o * part.outer.dst + i * part.inner.dst;
                for (uint32_t at = 0; at < uops.count; at++)
                    std::memset(scratchpads_.accumulators + (uops.dst[at] + offset) * size, 0,
                                size * sizeof(int32_t));
            }
    }

    void run(const MicroOps &uops, const Part &part, bool overwrite)
    {
        // The last product of a destination stays: what is written twice is written in order.
        const bool in_order =
            overwrite &&
            !are_distinct(uops.spread, spread_of(part.outer), spread_of(part.inner));
        const uint64_t iterations = uint64_t(part.outer.count) * part.inner.count;
        const bool has_few_sums = iterations == 1 && uops.count < 4 * groups_;
        if (in_order || has_few_sums)
            run_one_by_one(uops, part, overwrite);
        else
            run_sorted(part, overwrite);
    }

private:
    static constexpr uint32_t NONE = ~0u;

    void run_one_by_one(const MicroOps &uops, const Part &part, bool overwrite)
    {
        for (uint32_t o = 0; o < part.outer.count; o++)
            for (uint32_t i = 0; i < part.inner.count; i++) {
                const uint32_t dst = part.dst + o * part.outer.dst + i * part.inner.dst;
                const uint32_t src = part.src + o * part.outer.src + i * part.inner.src;
                const uint32_t wgt = part.wgt + o * part.outer.wgt + i * part.inner.wgt;
                for (uint32_t at = 0; at < uops.count; at++) {
                    const uint32_t tile = uops.wgt[at] + wgt;
                    const size_t rows = put_rows(0, uops.dst[at] + dst, uops.src[at] + src);
                    products_[0] = {0, tile * scratchpads_.weight_words};
                    sum(rows, 1, scratchpads_.excess + size_t(tile) * excess_words(), overwrite);
                }
            }
    }

    // Sums wrap, so that their order does not matter.
    void run_sorted(const Part &part, bool overwrite)
    {
        const Loop none = {1, 0, 0, 0};
        Loop outer = part.outer, inner = part.inner;
        Loop each_outer = none, each_inner = none;
        // A loop with other weights for other rows: its iterations have nothing in common.
        if (outer.dst && outer.wgt)
            std::swap(outer, each_outer);
        if (inner.dst && inner.wgt)
            std::swap(inner, each_inner);
        if (!repeats(outer) && !repeats(inner) &&
            !are_distinct(spread_of(outer), spread_of(inner)))
            std::swap(outer, each_outer);
        for (uint32_t o = 0; o < each_outer.count; o++)
            for (uint32_t i = 0; i < each_inner.count; i++)
                run_groups(outer, inner,
                           {none, none, part.dst + o * each_outer.dst + i * each_inner.dst,
                            part.src + o * each_outer.src + i * each_inner.src,
                            part.wgt + o * each_outer.wgt + i * each_inner.wgt},
                           overwrite);
    }

    void run_groups(const Loop &outer, const Loop &inner, const Part &base, bool overwrite)
    {
        // A loop either goes on to other rows, or adds to the same ones.
        const Loop none = {1, 0, 0, 0};
        const Loop &outer_rows = repeats(outer) ? none : outer;
        const Loop &inner_rows = repeats(inner) ? none : inner;
        const Loop &outer_sums = repeats(outer) ? outer : none;
        const Loop &inner_sums = repeats(inner) ? inner : none;
        for (uint32_t group = 0; group < groups_; group++) {
            size_t rows = 0;
            for (uint32_t o = 0; o < outer_rows.count; o++)
                for (uint32_t i = 0; i < inner_rows.count; i++)
                    rows = put_rows(rows,
                                    group_dst_[group] + base.dst + o * outer_rows.dst +
                                        i * inner_rows.dst,
                                    base.src + o * outer_rows.src + i * inner_rows.src);
            size_t products = 0;
            for (uint32_t o = 0; o < outer_sums.count; o++)
                for (uint32_t i = 0; i < inner_sums.count; i++)
                    products = put_products(products, group,
                                            o * outer_sums.src + i * inner_sums.src,
                                            base.wgt + o * outer_sums.wgt + i * inner_sums.wgt);
            sum(rows, products, total_excess(products), overwrite);
        }
    }

    // Adds a tile's rows to the list, whose new length it gives.
    size_t put_rows(size_t at, uint32_t dst, uint32_t src)
    {
        for (uint32_t row = 0; row < batch_; row++)
            rows_[at++] = {(dst * batch_ + row) * scratchpads_.columns,
                           (src * batch_ + row) * scratchpads_.groups};
        return at;
    }

    size_t put_products(size_t at, uint32_t group, uint32_t src, uint32_t wgt)
    {
        const uint32_t inputs = src * scratchpads_.input_words;
        const uint32_t weights = wgt * scratchpads_.weight_words;
        for (uint32_t from = group_start_[group]; from < group_start_[group + 1]; from++)
            products_[at++] = {sorted_[from].inputs + inputs, sorted_[from].weights + weights};
        return at;
    }

    size_t excess_words() const { return BIASED ? scratchpads_.columns : 0; }

    const int32_t *total_excess(size_t products)
    {
        if (!BIASED)
            return nullptr;
        std::fill_n(static_cast<int32_t *>(excess_), scratchpads_.columns, 0);
        for (size_t at = 0; at < products; at++) {
            const uint32_t tile = products_[at].weights / scratchpads_.weight_words;
            const int32_t *excess = scratchpads_.excess + size_t(tile) * scratchpads_.columns;
            for (uint32_t column = 0; column < scratchpads_.columns; column++)
                excess_[column] += excess[column];
        }
        return excess_;
    }

    void sum(size_t rows, size_t products, const int32_t *excess, bool overwrite)
    {
        sum_products_({scratchpads_.accumulators, scratchpads_.inputs, scratchpads_.weights, excess,
                       rows_, rows, products_, products, overwrite, narrow_},
                      scratchpads_.groups);
    }

    const uint32_t batch_;
    const bool narrow_;
    Scratchpads &scratchpads_;
    const SumProducts sum_products_;
    // Micro-ops by destination, in the order of their first.
    uint32_t groups_ = 0;
    Buffer<uint32_t> group_of_, group_dst_, group_start_;
    Buffer<Product> sorted_;
    Buffer<uint32_t> next_;
    Buffer<int32_t> excess_;
    Buffer<Row> rows_;
    Buffer<Product> products_;
};

}  // namespace
}  // namespace vta::LANES
