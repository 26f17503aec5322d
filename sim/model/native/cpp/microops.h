// The micro-ops of a GEMM or ALU instruction and the two loops around them.

#pragma once

#include <algorithm>

#include "scratchpads.h"

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

class MicroOps {
public:
    explicit MicroOps(const Parameters &parameters)
        : dst(parameters.uop_depth), src(parameters.uop_depth), wgt(parameters.uop_depth),
          parameters_(parameters)
    {
    }

    // The scratchpad has changed.
    void forget() { begin_ = end_ = 0; }

    // Extracts the fields of micro-ops [begin, end); returns whether they are others than before.
    bool select(const uint32_t *uops, uint32_t begin, uint32_t end)
    {
        if (begin == begin_ && end == end_)
            return false;
        begin_ = begin;
        end_ = end;
        count = end - begin;
        const auto field = [](uint32_t bits, uint32_t offset, uint32_t width) {
            return bits >> offset & ((1u << width) - 1);
        };
        most_dst = most_src = most_wgt = 0;
        least_dst = least_src = ~0u;
        for (uint32_t at = 0; at < count; at++) {
            const uint32_t bits = uops[begin + at];
            dst[at] = field(bits, parameters_.uop_dst_offset, parameters_.uop_dst_width);
            src[at] = field(bits, parameters_.uop_src_offset, parameters_.uop_src_width);
            wgt[at] = field(bits, parameters_.uop_wgt_offset, parameters_.uop_wgt_width);
            most_dst = std::max(most_dst, dst[at]);
            most_src = std::max(most_src, src[at]);
            most_wgt = std::max(most_wgt, wgt[at]);
            least_dst = std::min(least_dst, dst[at]);
            least_src = std::min(least_src, src[at]);
        }
        find_spread();
        return true;
    }

    uint32_t count = 0;
    Buffer<uint32_t> dst, src, wgt;
    uint32_t most_dst, most_src, most_wgt, least_dst, least_src;
    // Of the destinations, which are only known to differ if each is above the one before.
    Spread spread;

private:
    void find_spread()
    {
        spread = {count > 1 ? ~0u : 0, most_dst - least_dst, true};
        for (uint32_t at = 1; at < count; at++) {
            spread.differs &= dst[at] > dst[at - 1];
            spread.step = std::min(spread.step, dst[at] - dst[at - 1]);
        }
    }

    const Parameters parameters_;
    uint32_t begin_ = 0, end_ = 0;
};

}  // namespace
}  // namespace vta::LANES
