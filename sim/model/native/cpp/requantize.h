// clip(rint(float32((acc + bias) · scale)) + zero_point, low, high), as arithmetic.requantized.
//
// The product is to be rounded to the 24 bits of a float32 once. It has up to 73 bits, 43 of them a
// fraction: as long as it is below 2^10 it fits the 53 of a double, and the product of doubles is
// exact. From there on its result is a bound, however it is rounded.

#pragma once

#include "lanes.h"

namespace vta::LANES {
namespace {

template <int N>
struct FloatsOf {
    typedef double doubles __attribute__((vector_size(8 * N)));
    typedef float floats __attribute__((vector_size(4 * N)));
};

template <int N>
class Requantizer {
    using Double = typename FloatsOf<N>::doubles;
    using Float = typename FloatsOf<N>::floats;

    static_assert(SCALE_WIDTH <= 53 && SCALE_FRACTION + 10 <= 53);
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
        constexpr int upper_bits = SCALE_WIDTH - 32;
        const Vector<N> upper = high & ((1 << upper_bits) - 1);
        // `low` is converted as signed, so its bit 31 stands for -2^31: that is corrected by 2^32.
        const Double lower = __builtin_convertvector(low, Double);
        const Vector<N> carried = upper - (low >> 31);
        const Double scale = __builtin_convertvector(carried, Double) * 4294967296.0 + lower;
        scale_ = scale * (1.0 / (int64_t(1) << SCALE_FRACTION));
    }

    Vector<N> operator()(Vector<N> accumulators) const
    {
        const Vector<N> total = accumulators + bias_;
        constexpr int rest = 32 - MULTIPLIED_WIDTH, limit = 1 << (MULTIPLIED_WIDTH - 1);
        // A true comparison has all bits set.
        const Vector<N> halved = total >> rest | (((total & ((1 << rest) - 1)) != 0) & 1);
        const Vector<N> factor = wide_ ? halved : total;
        const Vector<N> above = factor >= limit, below = factor < -limit;
        const Double product = __builtin_convertvector(factor, Double) * scale_;
        Float value = __builtin_convertvector(product, Float);
        const Float far = all_floats(FAR);
        value = (above | (value > far)) ? far : value;
        value = (below | (value < -far)) ? -far : value;
        // A float32 of this magnitude has no bits for a fraction: the sum is rounded to a whole
        // number, which is in its lowest bits.
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

    Vector<N> bias_, zero_point_, low_, high_, wide_;
    Double scale_;
};

}  // namespace
}  // namespace vta::LANES
