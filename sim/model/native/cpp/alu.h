// The ALU, one whole element after the other.

#pragma once

#include <optional>

#include "microops.h"
#include "requantize.h"

namespace vta::LANES {
namespace {

struct Alu {
    int32_t *accumulators;
    size_t words;  // of an element
    bool narrow;
    uint32_t table_elements;
    bool rounds_twice;
};

// The result of 32-bit scalars; `narrowed`, that of 16-bit ones.
template <AluOp OPERATION, class V>
inline V alu_result(V first, V second)
{
    switch (OPERATION) {
    case AluOp::MIN:
        return first < second ? first : second;
    case AluOp::MAX:
        return first > second ? first : second;
    case AluOp::ADD:
        return first + second;
    case AluOp::MUL:
        return first * second;
    default: {
        const V zero{}, most = zero + 31;
        const V right = second > most ? most : second;
        // A left shift by 32 or more leaves nothing; the negation of the least number wraps to
        // itself, so amounts are compared before they are negated.
        const V left = second < -most ? zero : first << (second < zero ? -second & 31 : zero);
        return second < zero ? left : first >> (right & 31);
    }
    }
}

// One element; without IMMEDIATE, the second operand is `src`.
template <AluOp OPERATION, int N, bool IMMEDIATE>
inline void operate(const Alu &alu, int32_t *dst, const int32_t *src, Vector<N> immediate)
{
    for (size_t word = 0; word < alu.words; word += N) {
        const Vector<N> second = IMMEDIATE ? immediate : load<N>(src + word);
        const Vector<N> result = alu_result<OPERATION, Vector<N>>(load<N>(dst + word), second);
        store<N>(dst + word, alu.narrow ? narrowed(result) : result);
    }
}

template <AluOp OPERATION, int N, bool IMMEDIATE>
void run_operation(const Alu &alu, const MicroOps &uops, const Part &part, int32_t immediate)
{
    const Vector<N> second = all<N>(immediate);
    const size_t dst_step = part.inner.dst * alu.words, src_step = part.inner.src * alu.words;
    for (uint32_t o = 0; o < part.outer.count; o++) {
        int32_t *dst = alu.accumulators + (part.dst + o * part.outer.dst) * alu.words;
        const int32_t *src = alu.accumulators + (part.src + o * part.outer.src) * alu.words;
        if (uops.count == 1) {
            dst += uops.dst[0] * alu.words;
            src += uops.src[0] * alu.words;
            for (uint32_t i = 0; i < part.inner.count; i++, dst += dst_step, src += src_step)
                operate<OPERATION, N, IMMEDIATE>(alu, dst, src, second);
            continue;
        }
        for (uint32_t i = 0; i < part.inner.count; i++, dst += dst_step, src += src_step)
            for (uint32_t at = 0; at < uops.count; at++)
                operate<OPERATION, N, IMMEDIATE>(alu, dst + uops.dst[at] * alu.words,
                                                 src + uops.src[at] * alu.words, second);
    }
}

template <AluOp OPERATION, int N>
void run_operation(const Alu &alu, const MicroOps &uops, const Part &part, const int32_t *immediate)
{
    if (immediate)
        run_operation<OPERATION, N, true>(alu, uops, part, *immediate);
    else
        run_operation<OPERATION, N, false>(alu, uops, part, 0);
}

// For an inner loop that uses the same parameters in all iterations and writes none of them: they
// are read once.
template <int N>
void requantize_reordered(const Alu &alu, const MicroOps &uops, const Part &part)
{
    for (uint32_t at = 0; at < uops.count; at++)
        for (uint32_t o = 0; o < part.outer.count; o++) {
            const uint32_t src = uops.src[at] + part.src + o * part.outer.src;
            const uint32_t dst = uops.dst[at] + part.dst + o * part.outer.dst;
            for (size_t word = 0; word < alu.words; word += N) {
                const Requantizer<N> requantizer(alu.accumulators + src * alu.words + word,
                                                 alu.words, alu.rounds_twice);
                for (uint32_t i = 0; i < part.inner.count; i++) {
                    int32_t *scalars =
                        alu.accumulators + (dst + i * part.inner.dst) * alu.words + word;
                    store<N>(scalars, requantizer(load<N>(scalars)));
                }
            }
        }
}

// `execute` with the elements src and dst of each micro-op, in the order of the machine.
template <typename Execute>
void in_order(const MicroOps &uops, const Part &part, const Execute &execute)
{
    for (uint32_t o = 0; o < part.outer.count; o++)
        for (uint32_t i = 0; i < part.inner.count; i++)
            for (uint32_t at = 0; at < uops.count; at++)
                execute(uops.src[at] + part.src + o * part.outer.src + i * part.inner.src,
                        uops.dst[at] + part.dst + o * part.outer.dst + i * part.inner.dst);
}

template <int N>
void requantize_in_order(const Alu &alu, const MicroOps &uops, const Part &part)
{
    in_order(uops, part, [&](uint32_t src, uint32_t dst) {
        for (size_t word = 0; word < alu.words; word += N) {
            int32_t *scalars = alu.accumulators + dst * alu.words + word;
            const Requantizer<N> requantizer(alu.accumulators + src * alu.words + word, alu.words,
                                             alu.rounds_twice);
            store<N>(scalars, requantizer(load<N>(scalars)));
        }
    });
}

template <int N>
void requantize(const Alu &alu, const MicroOps &uops, const Part &part)
{
    const uint32_t first_dst = uops.least_dst + part.dst;
    const uint32_t last_dst =
        uops.most_dst + part.dst + spread_of(part.outer).span + spread_of(part.inner).span;
    const uint32_t first_src = uops.least_src + part.src;
    const uint32_t last_src = uops.most_src + part.src + (part.outer.count - 1) * part.outer.src +
                              (part.inner.count - 1) * part.inner.src + REQUANTIZE_PARAMETERS - 1;
    const bool any_order =
        (last_src < first_dst || last_dst < first_src) &&
        are_distinct(uops.spread, spread_of(part.outer), spread_of(part.inner));
    if (any_order && part.inner.src == 0)
        return requantize_reordered<N>(alu, uops, part);
    if (any_order && part.outer.src == 0)
        return requantize_reordered<N>(
            alu, uops, {part.inner, part.outer, part.dst, part.src, part.wgt});
    requantize_in_order<N>(alu, uops, part);
}

// The bytes that lie from one element on, as in memory.
class Table {
public:
    Table(const Alu &alu, uint32_t element)
    {
        const int32_t *words = alu.accumulators + element * alu.words;
        const unsigned size = alu.narrow ? 2 : 4;
        for (unsigned at = 0; at < TABLE_BYTES; at++)
            entries_[at] = int8_t(words[at / size] >> at % size * 8);
    }

    int32_t operator()(int32_t value) const { return entries_[value & (TABLE_BYTES - 1)]; }

private:
    int8_t entries_[TABLE_BYTES];
};

inline void look_up(const Alu &alu, const MicroOps &uops, const Part &part)
{
    uint32_t known = ~0u;
    std::optional<Table> table;
    in_order(uops, part, [&](uint32_t src, uint32_t dst) {
        if (src != known)
            table.emplace(alu, src);
        // A table that is written to is read again.
        known = dst >= src && dst < src + alu.table_elements ? ~0u : src;
        int32_t *scalars = alu.accumulators + dst * alu.words;
        for (size_t word = 0; word < alu.words; word++)
            scalars[word] = (*table)(scalars[word]);
    });
}

// Accumulators of a machine with this operation have 32 bits.
template <int N>
void multiply_and_add(const Alu &alu, const MicroOps &uops, const Part &part, uint32_t factor)
{
    const int32_t *factors = alu.accumulators + factor * alu.words;
    in_order(uops, part, [&](uint32_t src, uint32_t dst) {
        int32_t *scalars = alu.accumulators + dst * alu.words;
        const int32_t *addends = alu.accumulators + src * alu.words;
        for (size_t word = 0; word < alu.words; word += N)
            store<N>(scalars + word, load<N>(scalars + word) * load<N>(factors + word) +
                                         load<N>(addends + word));
    });
}

// Without `immediate`, the second operand is read; `factor` is of MULTIPLY_ADD.
template <int N>
void run_alu(const Alu &alu, AluOp operation, const MicroOps &uops, const Part &part,
             const int32_t *immediate, uint32_t factor)
{
    switch (operation) {
    case AluOp::MIN:
        return run_operation<AluOp::MIN, N>(alu, uops, part, immediate);
    case AluOp::MAX:
        return run_operation<AluOp::MAX, N>(alu, uops, part, immediate);
    case AluOp::ADD:
        return run_operation<AluOp::ADD, N>(alu, uops, part, immediate);
    case AluOp::SHR:
        return run_operation<AluOp::SHR, N>(alu, uops, part, immediate);
    case AluOp::MUL:
        return run_operation<AluOp::MUL, N>(alu, uops, part, immediate);
    case AluOp::REQUANTIZE:
        return requantize<(N < REQUANTIZE_LANES ? N : REQUANTIZE_LANES)>(alu, uops, part);
    case AluOp::LOOKUP:
        return look_up(alu, uops, part);
    case AluOp::MULTIPLY_ADD:
        return multiply_and_add<N>(alu, uops, part, factor);
    }
}

}  // namespace
}  // namespace vta::LANES
