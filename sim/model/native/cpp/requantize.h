// clip(rint(float32((acc + bias) · scale)) + zero_point, low, high), as arithmetic.requantized.
//
// The product is to be rounded to the 24 bits of a float32 once. It has up to 73 bits, 43 of them a
// fraction: as long as it is below 2^10 it fits the 53 of a double, and the product of doubles is
// exact. From there on its result is a bound, however it is rounded. So is the sum of the product and
// of what is added before it is rounded twice, a multiple of 2^-16.

#pragma once

#include "lanes.h"

namespace vta::LANES {
namespace {

template <int N>
struct FloatsOf {
    typedef double doubles __attribute__((vector_size(8 * N)));
    typedef float floats __attribute__((vector_size(4 * N)));
};

// Lanes of a vector of doubles, and those that are requantized at once.
constexpr int DOUBLES = 8;
#if defined(__AVX512F__)
constexpr int REQUANTIZE_LANES = 16;
#else
constexpr int REQUANTIZE_LANES = 8;
#endif

template <int N>
inline typename FloatsOf<N>::doubles to_doubles(Vector<N> value)
{
#if defined(__AVX512F__)
    // The compiler makes two conversions of it.
    if constexpr (N == DOUBLES)
        return _mm512_cvtepi32_pd((__m256i)value);
#endif
    return __builtin_convertvector(value, typename FloatsOf<N>::doubles);
}

template <int N>
inline typename FloatsOf<N>::floats to_floats(typename FloatsOf<N>::doubles value)
{
#if defined(__AVX512F__)
    if constexpr (N == DOUBLES)
        return _mm512_cvtpd_ps(value);
#endif
    return __builtin_convertvector(value, typename FloatsOf<N>::floats);
}

template <int N>
class Requantizer {
    // A vector of doubles or two; parts of integers and floats that belong to one.
    static constexpr int PART = N < DOUBLES ? N : DOUBLES, PARTS = N / PART;
    using Double = typename FloatsOf<PART>::doubles;
    using Float = typename FloatsOf<N>::floats;

    static_assert(SCALE_WIDTH <= 53 && SCALE_FRACTION + 10 <= 53);
    static_assert(1 << SECOND_SHIFT_WIDTH <= SCALE_FRACTION);
    // Further out than any bound from any zero point.
    static constexpr int FAR = 2048;

public:
    // From the first of the elements that hold the parameters, which are `stride` words apart.
    Requantizer(const int32_t *parameters, size_t stride, bool rounds_twice)
        : bias_(load<N>(parameters)),
          zero_point_(byte<0>(load<N>(parameters + 3 * stride))),
          low_(byte<1>(load<N>(parameters + 3 * stride))),
          high_(byte<2>(load<N>(parameters + 3 * stride))),
          wide_((load<N>(parameters + 3 * stride) >> WIDE_BIT & 1) != 0),
          twice_((load<N>(parameters + 3 * stride) >> ROUND_TWICE_BIT & rounds_twice) != 0)
    {
        const Vector<N> low = load<N>(parameters + stride);
        const Vector<N> high = load<N>(parameters + 2 * stride);
        constexpr int upper_bits = SCALE_WIDTH - 32;
        const Vector<N> upper = high & ((1 << upper_bits) - 1);
        // `low` is converted as signed, so its bit 31 stands for -2^31: that is corrected by 2^32.
        const Vector<N> carried = upper - (low >> 31);
        for (int lane = 0; lane < N; lane++)
            any_is_wide_ |= wide_[lane] != 0, any_is_twice_ |= twice_[lane] != 0;
        for (int part = 0; part < PARTS; part++)
            scale_[part] = (doubles(carried, part) * 4294967296.0 + doubles(low, part)) *
                           (1.0 / (int64_t(1) << SCALE_FRACTION));
        if (any_is_twice_)
            read_second_shift(load<N>(parameters + 3 * stride));
    }

    Vector<N> operator()(Vector<N> accumulators) const
    {
        const Vector<N> total = accumulators + bias_;
        constexpr int rest = 32 - MULTIPLIED_WIDTH, limit = 1 << (MULTIPLIED_WIDTH - 1);
        // A true comparison has all bits set.
        Vector<N> factor = total;
        if (any_is_wide_) {
            const Vector<N> halved = total >> rest | (((total & ((1 << rest) - 1)) != 0) & 1);
            factor = wide_ ? halved : total;
        }
        const Vector<N> above = factor >= limit, below = factor < -limit;
        Float value = product(factor);
        const Float far = all_floats(FAR);
        value = (above | (value > far)) ? far : value;
        value = (below | (value < -far)) ? -far : value;
        // A float32 of this magnitude has no bits for a fraction: the sum is rounded to a whole
        // number, which is in its lowest bits.
        const Float whole_numbers = all_floats(3 << 22);
        Vector<N> whole = (Vector<N>)(value + whole_numbers) - (Vector<N>)whole_numbers;
        if (any_is_twice_) {
            const Vector<N> limited = above ? all<N>(FAR) : below ? all<N>(-FAR) : rounded_twice(factor);
            whole = twice_ ? limited : whole;
        }
        whole += zero_point_;
        const Vector<N> at_least = whole > low_ ? whole : low_;
        return at_least < high_ ? at_least : high_;
    }

private:
    template <int AT>
    static Vector<N> byte(Vector<N> value)
    {
        return value << (24 - 8 * AT) >> 24;
    }

    static Double doubles(const Vector<N> &value, int part)
    {
        if constexpr (PARTS == 1)
            return to_doubles<N>(value);
        else if (part == 0)
            return to_doubles<PART>(
                __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7));
        else
            return to_doubles<PART>(
                __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15));
    }

    // Rounded to float32 once.
    Float product(const Vector<N> &factor) const
    {
        const auto first = to_floats<PART>(doubles(factor, 0) * scale_[0]);
        if constexpr (PARTS == 1)
            return first;
        else
            return __builtin_shufflevector(first, to_floats<PART>(doubles(factor, 1) * scale_[1]),
                                           0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }

    // What is added to products of sums that are not negative, and of others.
    void read_second_shift(const Vector<N> &bounds)
    {
        for (int lane = 0; lane < N; lane++) {
            const int shift = bounds[lane] >> SECOND_SHIFT_BIT & ((1 << SECOND_SHIFT_WIDTH) - 1);
            const double second = shift ? 0.5 / (1 << shift) : 0;
            positive_[lane / PART][lane % PART] = 0.5 + second;
            negative_[lane / PART][lane % PART] = 0.5 - second;
        }
    }

    Vector<N> rounded_twice(const Vector<N> &factor) const
    {
        const Vector<PART> first = rounded_twice_part(factor, 0);
        if constexpr (PARTS == 1)
            return first;
        else
            return __builtin_shufflevector(first, rounded_twice_part(factor, 1), 0, 1, 2, 3, 4, 5,
                                           6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }

    Vector<PART> rounded_twice_part(const Vector<N> &factor, int part) const
    {
        const Double sum = doubles(factor, part), far = Double{} + FAR;
        Double value = sum * scale_[part] + (sum < 0 ? negative_[part] : positive_[part]);
        value = value > far ? far : value < -far ? -far : value;
        // Conversions round towards 0.
        const Vector<PART> whole = __builtin_convertvector(value, Vector<PART>);
        return whole + __builtin_convertvector(to_doubles<PART>(whole) > value, Vector<PART>);
    }

    static Float all_floats(float value) { return value - Float{}; }

    Vector<N> bias_, zero_point_, low_, high_, wide_, twice_;
    Double scale_[PARTS], positive_[PARTS], negative_[PARTS];
    bool any_is_wide_ = false, any_is_twice_ = false;
};

}  // namespace
}  // namespace vta::LANES
