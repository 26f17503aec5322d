// The on-chip memories in a layout that suits the arithmetic, and how LOAD and STORE convert it.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#include "executor.h"
#include "lanes.h"

namespace vta::LANES {
namespace {

template <class T>
class Buffer {
public:
    explicit Buffer(size_t count)
        : data_(static_cast<T *>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)))
    {
        if (!data_)
            throw std::bad_alloc();
    }
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    operator T *() { return data_; }
    operator const T *() const { return data_; }

private:
    T *data_;
};

// int8 values of 4-bit scalars, the low nibble first.
inline void unpack_nibbles(int8_t *to, const uint8_t *from, size_t scalars)
{
    for (size_t at = 0; at < scalars; at += 2) {
        const uint8_t both = from[at / 2];
        to[at] = int8_t(both << 4) >> 4;
        to[at + 1] = int8_t(both) >> 4;
    }
}

// The low bits of `value`, of which a scalar has 4 or 8, sign-extended.
inline int8_t padding_scalar(int32_t value, unsigned width)
{
    return width == 4 ? int8_t(uint8_t(value) << 4) >> 4 : int8_t(value);
}

inline Input input_of(int8_t scalar)
{
    return BIASED ? Input(uint8_t(scalar) ^ 0x80) : Input(scalar);
}

inline void put_inputs(Input *to, const int8_t *from, size_t count)
{
#if defined(__AVX512VNNI__)
    // Without a loop over the last scalars, which a row of few elements would spend its time in.
    const __m512i bias = _mm512_set1_epi8(-128);
    for (; count >= 64; count -= 64, to += 64, from += 64)
        _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_loadu_si512(from), bias));
    const __mmask64 rest = (uint64_t(1) << count) - 1;
    const __m512i last = _mm512_maskz_loadu_epi8(rest, from);
    _mm512_mask_storeu_epi8(to, rest, _mm512_xor_si512(last, bias));
    return;
#endif
    for (size_t at = 0; at < count; at++)
        to[at] = input_of(from[at]);
}

template <class T>
inline void put_accumulators(int32_t *to, const uint8_t *from, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        T value;
        std::memcpy(&value, from + at * sizeof value, sizeof value);
        to[at] = value;
    }
}

template <class T>
inline void take_accumulators(uint8_t *to, const int32_t *from, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        const T value = T(from[at]);
        std::memcpy(to + at * sizeof value, &value, sizeof value);
    }
}

class Scratchpads {
public:
    explicit Scratchpads(const Parameters &parameters)
        : columns(parameters.block_out), groups(parameters.block_in / GROUP),
          input_words(parameters.batch * groups), weight_words(columns * groups),
          accumulator_words(parameters.batch * columns), uops(parameters.uop_depth),
          inputs(parameters.inp_depth * size_t(input_words)),
          weights(parameters.wgt_depth * size_t(weight_words)),
          excess(BIASED ? parameters.wgt_depth * size_t(columns) : 0),
          accumulators(parameters.acc_depth * size_t(accumulator_words)), parameters_(parameters),
          scratch_(MAX_SCALARS)
    {
    }

    size_t depth(Memory memory) const
    {
        switch (memory) {
        case Memory::UOP:
            return parameters_.uop_depth;
        case Memory::INP:
            return parameters_.inp_depth;
        case Memory::WGT:
        case Memory::WGT_4BIT:
            return parameters_.wgt_depth;
        default:
            return parameters_.acc_depth;
        }
    }

    // Bytes of an element in DRAM.
    size_t element_bytes(Memory memory) const
    {
        switch (memory) {
        case Memory::UOP:
            return sizeof(uint32_t);
        case Memory::INP:
            return parameters_.batch * parameters_.block_in * parameters_.inp_width / 8;
        case Memory::WGT:
            return parameters_.block_out * parameters_.block_in * parameters_.wgt_width / 8;
        case Memory::WGT_4BIT:
            return parameters_.block_out * parameters_.block_in / 2;
        case Memory::ACC:
            return accumulator_words * parameters_.acc_width / 8;
        default:
            return accumulator_words * parameters_.out_width / 8;
        }
    }

    // Writes `count` elements from `element` on, as they lie in DRAM.
    void put(Memory memory, size_t element, const uint8_t *from, size_t count);

    // Writes `count` elements of padding from `element` on, each scalar the low bits of `value`.
    void pad(Memory memory, size_t element, int32_t value, size_t count);

    // Copies the low bits of `count` accumulators from `element` on, as they lie in DRAM.
    void take(size_t element, uint8_t *to, size_t count) const;

    // Columns of an element and groups of inputs in a row; then 32-bit words of an element of each
    // scratchpad.
    const uint32_t columns, groups, input_words, weight_words, accumulator_words;
    Buffer<uint32_t> uops;
    // Groups of inputs in a word each, row after row.
    Buffer<int32_t> inputs;
    // For each tile and each group of inputs in turn, that group of all rows (output channels).
    Buffer<int32_t> weights;
    // For each tile, what the bias of all inputs adds to each column.
    Buffer<int32_t> excess;
    // Sign-extended to 32 bits.
    Buffer<int32_t> accumulators;

private:
    // The widest tile has 32 by 32 scalars, or 16 rows of 32.
    static constexpr size_t MAX_SCALARS = 1024;

    Input *input_scalars(size_t element)
    {
        return reinterpret_cast<Input *>(inputs + element * input_words);
    }

    void put_input_scalars(size_t element, const uint8_t *from, size_t count);
    void put_tile(size_t element, const int8_t *from);
    template <int N>
    void put_excess(size_t element);
    void put_weight_tiles(size_t element, const uint8_t *from, size_t count);
    void put_packed_tiles(size_t element, const uint8_t *from, size_t count);

    const Parameters parameters_;
    Buffer<int8_t> scratch_;
};

void Scratchpads::put(Memory memory, size_t element, const uint8_t *from, size_t count)
{
    int32_t *to = accumulators + element * accumulator_words;
    const size_t scalars = count * accumulator_words;
    switch (memory) {
    case Memory::UOP:
        std::memcpy(uops + element, from, count * sizeof(uint32_t));
        return;
    case Memory::INP:
        put_input_scalars(element, from, count);
        return;
    case Memory::WGT:
        if (parameters_.wgt_width == 8)
            put_weight_tiles(element, from, count);
        else
            put_packed_tiles(element, from, count);
        return;
    case Memory::WGT_4BIT:
        put_packed_tiles(element, from, count);
        return;
    default:
        break;
    }
    switch (memory == Memory::ACC ? parameters_.acc_width : parameters_.out_width) {
    case 4:
        for (size_t at = 0; at < scalars; at += 2) {
            to[at] = int8_t(from[at / 2] << 4) >> 4;
            to[at + 1] = int8_t(from[at / 2]) >> 4;
        }
        break;
    case 8:
        put_accumulators<int8_t>(to, from, scalars);
        break;
    case 16:
        put_accumulators<int16_t>(to, from, scalars);
        break;
    default:
        put_accumulators<int32_t>(to, from, scalars);
    }
}

void Scratchpads::put_input_scalars(size_t element, const uint8_t *from, size_t count)
{
    const size_t row = parameters_.batch * parameters_.block_in;
    Input *to = input_scalars(element);
    if (parameters_.inp_width == 8) {
        put_inputs(to, reinterpret_cast<const int8_t *>(from), count * row);
        return;
    }
    for (size_t at = 0; at < count; at++) {
        unpack_nibbles(scratch_, from + at * row / 2, row);
        put_inputs(to + at * row, scratch_, row);
    }
}

#if defined(__AVX512VNNI__)

// Square tiles as they lie in DRAM, transposed in words, and the excess of each.
inline void put_square_tiles(int32_t *to, int32_t *excess, const uint8_t *from, size_t count)
{
    const __m512i halves =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i others = _mm512_add_epi32(halves, _mm512_set1_epi32(2));
    const __m512i bias = _mm512_set1_epi32(int32_t(0x80808080));
    for (; count; count--, to += 64, excess += 16, from += 256) {
        // Weights come from far, and the processor itself does not look beyond a page.
        for (int line = 0; line < 256; line += 64)
            __builtin_prefetch(from + 2048 + line);
        const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + 64);
        const __m512i third = _mm512_loadu_si512(from + 128), last = _mm512_loadu_si512(from + 192);
        // Two groups each, of the upper eight rows and of the lower ones.
        const __m512i upper = _mm512_permutex2var_epi32(first, halves, second);
        const __m512i lower = _mm512_permutex2var_epi32(third, halves, last);
        const __m512i upper_2 = _mm512_permutex2var_epi32(first, others, second);
        const __m512i lower_2 = _mm512_permutex2var_epi32(third, others, last);
        const __m512i groups[] = {_mm512_shuffle_i64x2(upper, lower, 0x44),
                                  _mm512_shuffle_i64x2(upper, lower, 0xee),
                                  _mm512_shuffle_i64x2(upper_2, lower_2, 0x44),
                                  _mm512_shuffle_i64x2(upper_2, lower_2, 0xee)};
        __m512i sum = _mm512_setzero_si512();
        for (int group = 0; group < 4; group++) {
            _mm512_store_si512(to + 16 * group, groups[group]);
            sum = _mm512_dpbusd_epi32(sum, bias, groups[group]);
        }
        _mm512_store_si512(excess, sum);
    }
}

#endif

void Scratchpads::put_weight_tiles(size_t element, const uint8_t *from, size_t count)
{
    const size_t scalars = parameters_.block_out * parameters_.block_in;
#if defined(__AVX512VNNI__)
    if (columns == SQUARE_COLUMNS && groups == SQUARE_GROUPS)
        return put_square_tiles(weights + element * weight_words, excess + element * columns, from,
                                count);
#endif
    for (size_t at = 0; at < count; at++)
        put_tile(element + at, reinterpret_cast<const int8_t *>(from + at * scalars));
}

// Scalars of 4 bits.
void Scratchpads::put_packed_tiles(size_t element, const uint8_t *from, size_t count)
{
    const size_t scalars = parameters_.block_out * parameters_.block_in;
    for (size_t at = 0; at < count; at++) {
        unpack_nibbles(scratch_, from + at * scalars / 2, scalars);
        put_tile(element + at, scratch_);
    }
}

void Scratchpads::put_tile(size_t element, const int8_t *from)
{
    int32_t *to = weights + element * weight_words;
    const size_t row = parameters_.block_in;
    for (size_t column = 0; column < columns; column++)
        for (size_t group = 0; group < groups; group++) {
            // As the inputs are, but not biased.
            Input scalars[GROUP];
            for (int at = 0; at < GROUP; at++)
                scalars[at] = Input(from[column * row + group * GROUP + at]);
            std::memcpy(to + group * columns + column, scalars, sizeof(int32_t));
        }
    switch (columns) {
    case 4:
        return put_excess<4>(element);
    case 8:
        return put_excess<8>(element);
    default:
        return put_excess<16>(element);
    }
}

template <int N>
void Scratchpads::put_excess(size_t element)
{
    if constexpr (BIASED) {
        // Four unsigned bytes of 128.
        constexpr int32_t bias = int32_t(0x80808080);
        const int32_t *tile = weights + element * weight_words;
        for (size_t part = 0; part < columns; part += N) {
            Vector<N> sum{};
            for (size_t group = 0; group < groups; group++)
                sum = multiply_add(sum, bias, tile + group * columns + part);
            store<N>(excess + element * columns + part, sum);
        }
    }
}

void Scratchpads::pad(Memory memory, size_t element, int32_t value, size_t count)
{
    if (!count)
        return;
    switch (memory) {
    case Memory::UOP:
        std::memset(uops + element, 0, count * sizeof(uint32_t));
        return;
    case Memory::INP: {
        const Input input = input_of(padding_scalar(value, parameters_.inp_width));
        std::fill_n(input_scalars(element), count * parameters_.batch * parameters_.block_in, input);
        return;
    }
    case Memory::WGT:
    case Memory::WGT_4BIT: {
        std::memset(scratch_, padding_scalar(value, parameters_.wgt_width), MAX_SCALARS);
        for (size_t at = 0; at < count; at++)
            put_tile(element + at, scratch_);
        return;
    }
    default: {
        const int32_t scalar = parameters_.acc_width == 16 ? int16_t(value) : value;
        int32_t *to = accumulators + element * accumulator_words;
        for (size_t at = 0; at < count * accumulator_words; at++)
            to[at] = scalar;
    }
    }
}

void Scratchpads::take(size_t element, uint8_t *to, size_t count) const
{
    const int32_t *from = accumulators + element * accumulator_words;
    const size_t scalars = count * accumulator_words;
    switch (parameters_.out_width) {
    case 4:
        for (size_t at = 0; at < scalars; at += 2)
            to[at / 2] = uint8_t((from[at] & 15) | from[at + 1] << 4);
        break;
    case 8:
        take_accumulators<int8_t>(to, from, scalars);
        break;
    case 16:
        take_accumulators<int16_t>(to, from, scalars);
        break;
    default:
        take_accumulators<int32_t>(to, from, scalars);
    }
}

}  // namespace
}  // namespace vta::LANES
