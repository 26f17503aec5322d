// Vectors of integers, and the products of a tile's row, for one vector extension of the host.
//
// This file is compiled once for each: LANES names the namespace, so that nothing compiled for one
// processor is linked into code for another. Two constants decide the layout of tiles: GROUP inputs
// of a row lie together in 32 bits, which a product takes at once; and with BIASED, inputs are kept
// with 128 added, for instructions that multiply unsigned by signed bytes.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace vta::LANES {
namespace {

template <int N>
struct VectorOf {
    typedef int32_t type __attribute__((vector_size(4 * N)));
};
template <int N>
using Vector = typename VectorOf<N>::type;

template <int N>
inline Vector<N> load(const int32_t *from)
{
    Vector<N> result;
    std::memcpy(&result, __builtin_assume_aligned(from, 4 * N < 64 ? 4 * N : 64), sizeof result);
    return result;
}

template <int N>
inline void store(int32_t *to, Vector<N> value)
{
    std::memcpy(__builtin_assume_aligned(to, 4 * N < 64 ? 4 * N : 64), &value, sizeof value);
}

template <int N>
inline Vector<N> all(int32_t value)
{
    return value - Vector<N>{};
}

// Sixteen bits of each, sign-extended.
template <class V>
inline V narrowed(V value)
{
    return value << 16 >> 16;
}

// sum + the products of GROUP inputs, the same for all lanes, and of GROUP weights of each lane; or
// those of GROUP inputs of each lane.
#if defined(__AVX512VNNI__)

typedef uint8_t Input;
constexpr int GROUP = 4;
constexpr bool BIASED = true;
// Accumulators that stay in registers.
constexpr int REGISTERS = 12, REGISTER_LANES = 16;
// Whether a sum takes so long that two after each other wait.
constexpr bool WAITS = true;
// Tiles of 16 by 16, which most machines have, take ways of their own.
constexpr int SQUARE_COLUMNS = 16, SQUARE_GROUPS = SQUARE_COLUMNS / GROUP;

template <class V>
inline V multiply_add(V sum, V inputs, const int32_t *weights)
{
    constexpr int N = sizeof(V) / sizeof(int32_t);
    if constexpr (N == 4)
        return (V)_mm_dpbusd_epi32((__m128i)sum, (__m128i)inputs, (__m128i)load<4>(weights));
    else if constexpr (N == 8)
        return (V)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)inputs, (__m256i)load<8>(weights));
    else
        return (V)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)inputs, (__m512i)load<16>(weights));
}

inline Vector<4> multiply_add(Vector<4> sum, int32_t inputs, const int32_t *weights)
{
    return (Vector<4>)_mm_dpbusd_epi32((__m128i)sum, _mm_set1_epi32(inputs),
                                       (__m128i)load<4>(weights));
}

inline Vector<8> multiply_add(Vector<8> sum, int32_t inputs, const int32_t *weights)
{
    return (Vector<8>)_mm256_dpbusd_epi32((__m256i)sum, _mm256_set1_epi32(inputs),
                                          (__m256i)load<8>(weights));
}

inline Vector<16> multiply_add(Vector<16> sum, int32_t inputs, const int32_t *weights)
{
    return (Vector<16>)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(inputs),
                                           (__m512i)load<16>(weights));
}

#else

typedef int16_t Input;
constexpr int GROUP = 2;
constexpr bool BIASED = false;
constexpr bool WAITS = false;

template <class V>
inline V multiply_add(V sum, V inputs, const int32_t *weights)
{
    V both;
    std::memcpy(&both, weights, sizeof both);
    return sum + narrowed(both) * narrowed(inputs) + (both >> 16) * (inputs >> 16);
}

#if defined(__AVX2__)

constexpr int REGISTERS = 8, REGISTER_LANES = 8;

inline Vector<4> multiply_add(Vector<4> sum, int32_t inputs, const int32_t *weights)
{
    return sum + (Vector<4>)_mm_madd_epi16(_mm_set1_epi32(inputs), (__m128i)load<4>(weights));
}

inline Vector<8> multiply_add(Vector<8> sum, int32_t inputs, const int32_t *weights)
{
    return sum +
           (Vector<8>)_mm256_madd_epi16(_mm256_set1_epi32(inputs), (__m256i)load<8>(weights));
}

#else

constexpr int REGISTERS = 8, REGISTER_LANES = 4;

inline Vector<4> multiply_add(Vector<4> sum, int32_t inputs, const int32_t *weights)
{
#if defined(__SSE2__)
    return sum + (Vector<4>)_mm_madd_epi16(_mm_set1_epi32(inputs), (__m128i)load<4>(weights));
#else
    const Vector<4> both = load<4>(weights);
    return sum + (both << 16 >> 16) * int32_t(int16_t(inputs)) + (both >> 16) * (inputs >> 16);
#endif
}

#endif
#endif

}  // namespace
}  // namespace vta::LANES
