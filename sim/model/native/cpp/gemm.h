// GEMM: micro-ops are sorted by destination, then all rows with the same products are summed.

#pragma once

#include "microops.h"
#include "taps.h"

namespace vta::LANES {
namespace {

class Gemm {
public:
    Gemm(const Parameters &parameters, Scratchpads &scratchpads)
        : batch_(parameters.batch), narrow_(parameters.acc_width == 16), scratchpads_(scratchpads),
          sum_products_(sum_products_for(scratchpads.columns, scratchpads.groups)),
          group_of_(parameters.acc_depth, NONE)
    {
    }

    // Iterations of both loops and micro-ops that fit into one part.
    static constexpr uint64_t MAX_ITERATIONS = 1 << 14, MAX_PRODUCTS = 1 << 17;

    // Sorts micro-ops by destination.
    void sort(MicroOps &uops)
    {
        uops.group_dst.clear();
        uops.group_start.assign(1, 0);
        // Counts the micro-ops of each destination, then has where its next one goes.
        next_.clear();
        for (const uint32_t dst : uops.dst) {
            uint32_t &group = group_of_[dst];
            if (group == NONE) {
                group = uint32_t(uops.group_dst.size());
                uops.group_dst.push_back(dst);
                next_.push_back(0);
            }
            next_[group]++;
        }
        for (uint32_t &next : next_) {
            uops.group_start.push_back(uops.group_start.back() + next);
            next = *(uops.group_start.end() - 2);
        }
        uops.products.resize(uops.count);
        for (uint32_t at = 0; at < uops.count; at++)
            uops.products[next_[group_of_[uops.dst[at]]]++] = product(uops.src[at], uops.wgt[at]);
        for (const uint32_t dst : uops.group_dst)
            group_of_[dst] = NONE;
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

    void run(MicroOps &uops, const Part &part, bool overwrite)
    {
        // The last product of a destination stays: what is written twice is written in order.
        const bool in_order =
            overwrite &&
            !are_distinct(uops.spread, spread_of(part.outer), spread_of(part.inner));
        const uint64_t iterations = uint64_t(part.outer.count) * part.inner.count;
        const bool has_few_sums = iterations == 1 && uops.count < 4 * uops.group_dst.size();
        if (in_order || has_few_sums)
            run_one_by_one(uops, part, overwrite);
        else
            run_sorted(uops, part, overwrite);
    }

    // DEPTHWISE, one micro-op after the other.
    void run_taps(const MicroOps &uops, const Part &part, uint32_t taps, bool overwrite)
    {
        const auto run = sum_taps_for(scratchpads_.columns);
        for (uint32_t o = 0; o < part.outer.count; o++)
            for (uint32_t i = 0; i < part.inner.count; i++) {
                const Offsets base = offsets_in(part, o, i);
                for (uint32_t at = 0; at < uops.count; at++)
                    for (uint32_t row = 0; row < batch_; row++)
                        run(scratchpads_, {base.dst + uops.dst[at], base.src + uops.src[at],
                                           base.wgt + uops.wgt[at], row, batch_, taps},
                            overwrite, narrow_);
            }
    }

private:
    static constexpr uint32_t NONE = ~0u;
    // Products that are kept for instructions that sum the same ones.
    static constexpr size_t MAX_KEPT = 1 << 12;

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
    void run_sorted(MicroOps &uops, const Part &part, bool overwrite)
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
        const size_t times = outer_sums.count * inner_sums.count;
        const Product *products =
            times > 1 ? repeat(uops, outer_sums, inner_sums) : uops.products.data();
        for (uint32_t o = 0; o < each.outer.count; o++)
            for (uint32_t i = 0; i < each.inner.count; i++) {
                const Offsets base = offsets_in(each, o, i);
                for (uint32_t group = 0; group < uops.group_dst.size(); group++) {
                    const uint32_t begin = uops.group_start[group];
                    sum(base, uops.group_dst[group], products + begin * times,
                        (uops.group_start[group + 1] - begin) * times, overwrite);
                }
            }
        if (uops.repeated.size() > MAX_KEPT)
            std::vector<Product>().swap(uops.repeated);
    }

    // The products of each destination in all iterations of two loops, unless they are known.
    const Product *repeat(MicroOps &uops, const Loop &outer, const Loop &inner)
    {
        if (!uops.repeated.empty() && outer == uops.outer && inner == uops.inner)
            return uops.repeated.data();
        uops.outer = outer;
        uops.inner = inner;
        uops.repeated.clear();
        for (uint32_t group = 0; group < uops.group_dst.size(); group++)
            for (uint32_t o = 0; o < outer.count; o++)
                for (uint32_t i = 0; i < inner.count; i++) {
                    const Product further =
                        product(o * outer.src + i * inner.src, o * outer.wgt + i * inner.wgt);
                    for (uint32_t at = uops.group_start[group]; at < uops.group_start[group + 1];
                         at++)
                        uops.repeated.push_back({uops.products[at].inputs + further.inputs,
                                                 uops.products[at].weights + further.weights,
                                                 uops.products[at].excess + further.excess});
                }
        return uops.repeated.data();
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

    // The rows that two loops go through, from accumulator and input 0 on.
    struct RowList {
        Loop outer, inner;
        std::vector<Row> rows;
        Blocks blocks;
    };

    // Lists the rows of two loops, unless it has.
    void list_rows(const Loop &outer, const Loop &inner)
    {
        const uint32_t number = outer.count + 3 * outer.src + 5 * inner.count + 7 * inner.src;
        RowList &list = lists_[number % lists_.size()];
        listed_ = &list;
        if (outer == list.outer && inner == list.inner)
            return;
        list.outer = outer;
        list.inner = inner;
        list.rows.clear();
        for (uint32_t o = 0; o < outer.count; o++)
            for (uint32_t i = 0; i < inner.count; i++) {
                const uint32_t dst = o * outer.dst + i * inner.dst;
                const uint32_t src = o * outer.src + i * inner.src;
                for (uint32_t row = 0; row < batch_; row++)
                    list.rows.push_back({(dst * batch_ + row) * scratchpads_.columns,
                                         (src * batch_ + row) * scratchpads_.groups});
            }
        list.blocks.cut(list.rows.data(), list.rows.size());
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
                           listed_->rows.data(), listed_->rows.size(), listed_->blocks.begin(),
                           listed_->blocks.count(), products, count, overwrite, narrow_};
        sum_products_(sums, scratchpads_.groups);
    }

    const uint32_t batch_;
    const bool narrow_;
    Scratchpads &scratchpads_;
    const SumProducts sum_products_;
    // By destination, its number among those of the micro-ops that are being sorted.
    std::vector<uint32_t> group_of_, next_;
    // Some of the lists that were made, and the one in use.
    std::array<RowList, 32> lists_ = {};
    const RowList *listed_;
};

}  // namespace
}  // namespace vta::LANES
