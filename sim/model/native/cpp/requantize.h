// clip(rint(float32((acc + bias) · scale)) + zero_point, low, high), as arithmetic.requantized.
//
// The product has up to 73 bits and is to be rounded to the 24 of a float32 once. Parted into two
// halves, the scale gives two products that are exact in a double. Their sum is rounded to odd: to
// the neighbour whose last bit is set, unless it is exact. That has two bits more than a float32
// and then some, so that rounding it to a float32 is the same as rounding the exact sum (Boldo and
// Melquiond, Emulation of FMA and correctly rounded sums, IEEE Trans. Computers 57, 2008).

#pragma once

#include "lanes.h"

namespace vta::LANES {
namespace {

template <int N>
class Requantizer {
    typedef double Double __attribute__((vector_size(8 * N)));
    typedef float Float __attribute__((vector_size(4 * N)));
    typedef int64_t Long __attribute__((vector_size(8 * N)));

    static constexpr int HALF = 25;
    static_assert(MULTIPLIED_WIDTH + HALF <= 53 && SCALE_WIDTH - HALF <= HALF);
    // Further out than any bound from any zero point.
    static constexpr float FAR = 2048;

public:
    // From the first of the elements that hold the parameters, which are `stride` words apart.
    Requantizer(const int32_t *parameters, size_t stride)
        : bias_(load<N>(parameters)),
          zero_point_(byte<0>(load<N>(parameters + 3 * stride))),
          low_(byte<1>(load<N>(parameters + 3 * stride))),
          high_(byte<2>(load<N>(parameters + 3 * stride))),
          wide_((load<N>(parameters + 3 * stride) >> WIDE_BIT & 1) != 0)
    {
        const Vector<N> low = load<N>(parameters + stride);
        const Vector<N> high = load<N>(parameters + 2 * stride);
        // Bits HALF and up; with those above bit 31 from `high`.
        const Vector<N> upper = (low >> HALF & ((1 << (32 - HALF)) - 1)) |
                                (high & ((1 << (SCALE_WIDTH - 32)) - 1)) << (32 - HALF);
        const Vector<N> lower = low & ((1 << HALF) - 1);
        upper_ = __builtin_convertvector(upper, Double) * double(1 << HALF);
        lower_ = __builtin_convertvector(lower, Double);
    }

    Vector<N> operator()(Vector<N> accumulators) const
    {
        const Vector<N> total = accumulators + bias_;
        constexpr int rest = 32 - MULTIPLIED_WIDTH, limit = 1 << (MULTIPLIED_WIDTH - 1);
        // A comparison that holds gives all bits set.
        const Vector<N> halved = total >> rest | ((total & ((1 << rest) - 1)) != 0 & 1);
        const Vector<N> factor = wide_ ? halved : total;
        const Vector<N> above = factor >= limit, below = factor < -limit;
        Float value = __builtin_convertvector(
            rounded_to_odd(__builtin_convertvector(factor, Double)) *
                (1.0 / (int64_t(1) << SCALE_FRACTION)),
            Float);
        const Float far = all_floats(FAR);
        value = (above | (value > far)) ? far : value;
        value = (below | (value < -far)) ? -far : value;
        // The float32 that it is added to has no bits for a fraction: the sum is rounded to a
        // whole number, in its lowest bits.
        const Float whole_numbers = all_floats(3 << 22);
        const Vector<N> whole =
            (Vector<N>)(value + whole_numbers) - (Vector<N>)whole_numbers + zero_point_;
        const Vector<N> at_least = whole > low_ ? whole : low_;
        return at_least < high_ ? at_least : high_;
    }

private:
    template <int AT>
    static Vector<N> byte(Vector<N> value)
    {
        return value << (24 - 8 * AT) >> 24;
    }

    static Float all_floats(float value) { return value - Float{}; }

    Double rounded_to_odd(Double factor) const
    {
        // The larger product first: what its sum with the other loses is exact then.
        const Double larger = factor * upper_, smaller = factor * lower_;
        const Double sum = larger + smaller, lost = smaller - (sum - larger);
        const Long bits = (Long)sum;
        const Long inexact = (Long)(lost != 0.0) & ((bits & 1) == 0);
        // Away from zero if the signs are equal, else towards it.
        const Long odd = ((bits ^ (Long)lost) >> 63) | 1;
        return (Double)(bits + (inexact & odd));
    }

    Vector<N> bias_, zero_point_, low_, high_, wide_;
    // The upper half of the scale, in its place, and the lower one.
    Double upper_, lower_;
};

}  // namespace
}  // namespace vta::LANES
