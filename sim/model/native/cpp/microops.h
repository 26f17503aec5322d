// The micro-ops of a GEMM or ALU instruction and the two loops around them.

#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "products.h"

namespace vta::LANES {
namespace {

// One of the two loops: its iterations, and what each adds to the fields of a micro-op.
struct Loop {
    uint32_t count, dst, src, wgt;

    bool operator==(const Loop &other) const
    {
        return count == other.count && dst == other.dst && src == other.src && wgt == other.wgt;
    }
};

// Some iterations of both loops of an instruction, executed at once.
struct Part {
    Loop outer, inner;
    // What the iterations before the first one of the part have added.
    uint32_t dst, src, wgt;
};

// A set of destinations: the least distance of any two, the distance of the lowest from the highest,
// and whether all are known to differ.
struct Spread {
    uint32_t step, span;
    bool differs;
};

// Whether all sums of one offset from each spread differ. Conservative: true only if they do.
inline bool are_distinct(Spread one, Spread other, Spread third = {0, 0, true})
{
    Spread spreads[] = {one, other, third};
    for (int last = 2; last > 0; last--)
        for (int at = 0; at < last; at++)
            if (spreads[at].step > spreads[at + 1].step)
                std::swap(spreads[at], spreads[at + 1]);
    uint32_t span = 0;
    for (const Spread &spread : spreads) {
        if (!spread.differs || (spread.span && spread.step <= span))
            return false;
        span += spread.span;
    }
    return true;
}

inline Spread spread_of(const Loop &loop)
{
    return {loop.count > 1 ? loop.dst : 0, (loop.count - 1) * loop.dst,
            loop.count == 1 || loop.dst != 0};
}

// Whether a loop of several iterations stays at its destinations.
inline bool repeats(const Loop &loop) { return loop.count > 1 && loop.dst == 0; }

// The micro-ops [begin, end) of the scratchpad.
struct MicroOps {
    uint32_t begin = 0, end = 0, count = 0;
    // Their fields.
    std::vector<uint32_t> dst, src, wgt;
    uint32_t most_dst, most_src, most_wgt, least_dst, least_src;
    // Of the destinations, which are only known to differ if each is above the one before.
    Spread spread;
    // For GEMM, which sorts them when it first meets them: each destination, in the order of their
    // first micro-ops, where its products begin, and the products.
    std::vector<uint32_t> group_dst, group_start;
    std::vector<Product> products;
    // The products of each destination over the iterations of two loops that add to the same ones.
    Loop outer, inner;
    std::vector<Product> repeated;

    bool is_sorted() const { return !group_start.empty(); }
};

// The micro-ops that instructions have named since the scratchpad changed.
class MicroOpSets {
public:
    explicit MicroOpSets(const Parameters &parameters)
        : parameters_(parameters), most_(4 * uint64_t(parameters.uop_depth))
    {
    }

    // The scratchpad has changed.
    void forget()
    {
        if (held_)
            sets_ = {};
        held_ = 0;
    }

    // Those of [begin, end), which may change the sets given before.
    MicroOps &select(const uint32_t *uops, uint32_t begin, uint32_t end)
    {
        MicroOps &found = sets_[(begin * 0x9e3779b1u ^ end * 0x85ebca77u) >> (32 - SET_BITS)];
        if (begin != found.begin || end != found.end) {
            if (held_ > most_)
                forget();
            held_ += end - begin;
            extract(found, uops, begin, end);
        }
        return found;
    }

private:
    void extract(MicroOps &to, const uint32_t *uops, uint32_t begin, uint32_t end) const
    {
        const auto field = [](uint32_t bits, uint32_t offset, uint32_t width) {
            return bits >> offset & ((1u << width) - 1);
        };
        const uint32_t count = end - begin;
        to.begin = begin;
        to.end = end;
        to.count = count;
        to.group_start.clear();
        to.repeated.clear();
        for (std::vector<uint32_t> *fields : {&to.dst, &to.src, &to.wgt})
            fields->resize(count);
        to.most_dst = to.most_src = to.most_wgt = 0;
        to.least_dst = to.least_src = ~0u;
        for (uint32_t at = 0; at < count; at++) {
            const uint32_t bits = uops[begin + at];
            to.dst[at] = field(bits, parameters_.uop_dst_offset, parameters_.uop_dst_width);
            to.src[at] = field(bits, parameters_.uop_src_offset, parameters_.uop_src_width);
            to.wgt[at] = field(bits, parameters_.uop_wgt_offset, parameters_.uop_wgt_width);
            to.most_dst = std::max(to.most_dst, to.dst[at]);
            to.most_src = std::max(to.most_src, to.src[at]);
            to.most_wgt = std::max(to.most_wgt, to.wgt[at]);
            to.least_dst = std::min(to.least_dst, to.dst[at]);
            to.least_src = std::min(to.least_src, to.src[at]);
        }
        to.spread = {count > 1 ? ~0u : 0, to.most_dst - to.least_dst, true};
        for (uint32_t at = 1; at < count; at++) {
            to.spread.differs &= to.dst[at] > to.dst[at - 1];
            to.spread.step = std::min(to.spread.step, to.dst[at] - to.dst[at - 1]);
        }
    }

    const Parameters parameters_;
    static constexpr unsigned SET_BITS = 8;
    std::array<MicroOps, 1 << SET_BITS> sets_;
    // Micro-ops in all sets, and how many are too many.
    uint64_t held_ = 0;
    const uint64_t most_;
};

}  // namespace
}  // namespace vta::LANES
