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
          next_(parameters.uop_depth), rows_(MAX_ITERATIONS * parameters.batch),
          products_(MAX_PRODUCTS)
    {
        std::fill_n(static_cast<uint32_t *>(group_of_), parameters.acc_depth, NONE);
    }

    // Iterations of both loops and micro-ops that fit into one part.
    static constexpr uint64_t MAX_ITERATIONS = 1 << 14, MAX_PRODUCTS = 1 << 17;

    // Sorts micro-ops by destination.
    void sort(const MicroOps &uops)
    {
        for (uint32_t group = 0; group < groups_; group++)
            group_of_[group_dst_[group]] = NONE;
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
            sorted_[next_[group_of_[uops.dst[at]]]++] = product(uops.src[at], uops.wgt[at]);
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

    static constexpr Loop ONCE = {1, 0, 0, 0};

    struct Offsets {
        uint32_t dst, src, wgt;
    };

    void run_one_by_one(const MicroOps &uops, const Part &part, bool overwrite)
    {
        list_rows(ONCE, ONCE);
        for (uint32_t o = 0; o < part.outer.count; o++)
            for (uint32_t i = 0; i < part.inner.count; i++) {
                const Offsets base = offsets_in(part, o, i);
                for (uint32_t at = 0; at < uops.count; at++) {
                    const Product only = product(uops.src[at], uops.wgt[at]);
                    sum(base, uops.dst[at], &only, 1, overwrite);
                }
            }
    }

    // Sums wrap, so that their order does not matter.
    void run_sorted(const Part &part, bool overwrite)
    {
        Loop outer = part.outer, inner = part.inner;
        // The iterations of a loop that changes both weights and rows have nothing in common.
        Part each = {ONCE, ONCE, part.dst, part.src, part.wgt};
        if (outer.dst && outer.wgt)
            std::swap(outer, each.outer);
        if (inner.dst && inner.wgt)
            std::swap(inner, each.inner);
        if (!repeats(outer) && !repeats(inner) &&
            !are_distinct(spread_of(outer), spread_of(inner)))
            std::swap(outer, each.outer);
        // Any other loop either goes on to other rows, or adds to the same ones.
        list_rows(repeats(outer) ? ONCE : outer, repeats(inner) ? ONCE : inner);
        const Loop &outer_sums = repeats(outer) ? outer : ONCE;
        const Loop &inner_sums = repeats(inner) ? inner : ONCE;
        for (uint32_t o = 0; o < each.outer.count; o++)
            for (uint32_t i = 0; i < each.inner.count; i++)
                for (uint32_t group = 0; group < groups_; group++)
                    sum_group(offsets_in(each, o, i), group, outer_sums, inner_sums, overwrite);
    }

    void sum_group(const Offsets &base, uint32_t group, const Loop &outer, const Loop &inner,
                   bool overwrite)
    {
        const Product *products = sorted_ + group_start_[group];
        size_t count = group_start_[group + 1] - group_start_[group];
        if (outer.count * inner.count > 1) {
            size_t all = 0;
            for (uint32_t o = 0; o < outer.count; o++)
                for (uint32_t i = 0; i < inner.count; i++) {
                    const Product further =
                        product(o * outer.src + i * inner.src, o * outer.wgt + i * inner.wgt);
                    for (size_t at = 0; at < count; at++)
                        products_[all++] = {products[at].inputs + further.inputs,
                                            products[at].weights + further.weights,
                                            products[at].excess + further.excess};
                }
            products = products_;
            count = all;
        }
        sum(base, group_dst_[group], products, count, overwrite);
    }

    static Offsets offsets_in(const Part &part, uint32_t o, uint32_t i)
    {
        return {part.dst + o * part.outer.dst + i * part.inner.dst,
                part.src + o * part.outer.src + i * part.inner.src,
                part.wgt + o * part.outer.wgt + i * part.inner.wgt};
    }

    Product product(uint32_t src, uint32_t wgt) const
    {
        return {src * scratchpads_.input_words, wgt * scratchpads_.weight_words,
                BIASED ? wgt * scratchpads_.columns : 0};
    }

    // Lists the rows that two loops go through, from accumulator and input 0 on.
    void list_rows(const Loop &outer, const Loop &inner)
    {
        if (outer == listed_outer_ && inner == listed_inner_)
            return;
        listed_outer_ = outer;
        listed_inner_ = inner;
        row_count_ = 0;
        for (uint32_t o = 0; o < outer.count; o++)
            for (uint32_t i = 0; i < inner.count; i++) {
                const uint32_t dst = o * outer.dst + i * inner.dst;
                const uint32_t src = o * outer.src + i * inner.src;
                for (uint32_t row = 0; row < batch_; row++)
                    rows_[row_count_++] = {(dst * batch_ + row) * scratchpads_.columns,
                                           (src * batch_ + row) * scratchpads_.groups};
            }
    }

    // Adds the products to all rows that are listed.
    void sum(const Offsets &base, uint32_t dst, const Product *products, size_t count,
             bool overwrite)
    {
        const Product first = product(base.src, base.wgt);
        const Sums sums = {scratchpads_.accumulators +
                               size_t(base.dst + dst) * scratchpads_.accumulator_words,
                           scratchpads_.inputs + first.inputs,
                           scratchpads_.weights + first.weights,
                           scratchpads_.excess + first.excess,
                           rows_, row_count_, products, count, overwrite, narrow_};
        sum_products_(sums, scratchpads_.groups);
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
    Loop listed_outer_ = {0, 0, 0, 0}, listed_inner_ = {0, 0, 0, 0};
    size_t row_count_ = 0;
    Buffer<Row> rows_;
    Buffer<Product> products_;
};

}  // namespace
}  // namespace vta::LANES
