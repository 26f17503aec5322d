// The loops of a GEMM or ALU instruction: how many micro-ops, in which halves of the accumulators,
// and where the ALU waits for its own results.

#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "parameters.hpp"

namespace estimate {

struct LoopCommand {
    std::int64_t uop_begin = 0, uop_end = 0, iter_out = 0, iter_in = 0;
    std::int64_t dst_out = 0, dst_in = 0, src_out = 0, src_in = 0;
    std::int64_t is_alu = 0, reset = 0, requantizes = 0, looks_up = 0, reads_source = 0;
};

// The operands of an ALU micro-op near one end of an instruction, and its distance from that end.
struct Edge {
    std::int64_t dst, src;
    Time distance;
};

// What a unit has to do for one instruction.
struct Loops {
    std::int64_t items = 1;  // micro-ops, or the one item of an instruction without any
    bool works = false;
    bool multiplies = false;
    bool many_uops = false;     // another micro-op is read for each item
    std::uint8_t banks = 0;     // bit n: it writes to the n-th half of the accumulators
    bool requantizes = false;
    std::int64_t table = -1;    // the first and the last table of its lookups
    std::int64_t last_table = -1;
    Time stalls = 0;            // cycles in which the ALU waits for its own writes
    std::vector<Edge> first, last;  // of the ALU: those that may have a hazard with another instruction
};

class Profiles {
  public:
    Profiles(const Parameters& parameters, const Fields& fields) : parameters(parameters), fields(fields) {}

    // Micro-ops have changed.
    void forget() { known.clear(); }

    const Loops* of(const LoopCommand& command, std::span<const std::uint32_t> uops) {
        const auto [place, is_new] = known.try_emplace(command);
        if (is_new) {
            place->second = &all.emplace_back();
            fill(all.back(), command, uops);
        }
        return place->second;
    }

  private:
    struct Hash {
        std::size_t operator()(const LoopCommand& command) const {
            std::uint64_t words[sizeof command / 8], hash = 0;
            std::memcpy(words, &command, sizeof command);
            for (const std::uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
            return hash ^ hash >> 32;
        }
    };
    struct Equal {
        bool operator()(const LoopCommand& a, const LoopCommand& b) const { return !std::memcmp(&a, &b, sizeof a); }
    };

    static std::int64_t get(std::uint32_t uop, const Field& field) {
        return uop >> field.offset & ((std::uint32_t(1) << field.width) - 1);
    }

    void fill(Loops& loops, const LoopCommand& c, std::span<const std::uint32_t> uops) {
        const std::int64_t count = c.uop_end - c.uop_begin;
        if (count <= 0 || !c.iter_out || !c.iter_in || c.uop_end > std::int64_t(uops.size())) return;
        loops.items = count * c.iter_out * c.iter_in;
        loops.works = true;
        loops.multiplies = !c.is_alu && !c.reset;
        loops.many_uops = count > 1;
        loops.requantizes = c.requantizes;
        loops.banks = banks(c, uops, loops.items);
        if (c.is_alu) walk(loops, c, uops);
    }

    // The halves of the accumulators that an instruction works in. A few micro-ops in the other half
    // do not count: they delay nothing for long.
    std::uint8_t banks(const LoopCommand& c, std::span<const std::uint32_t> uops, std::int64_t items) const {
        std::int64_t low = INT64_MAX, high = 0;
        for (std::int64_t i = c.uop_begin; i < c.uop_end; i++) {
            const std::int64_t dst = get(uops[i], fields.uop_dst);
            low = std::min(low, dst);
            high = std::max(high, dst);
        }
        high += (c.iter_out - 1) * c.dst_out + (c.iter_in - 1) * c.dst_in;
        const std::int64_t half = parameters.acc_depth / 2;
        if (high < half) return 1;
        if (low >= half) return 2;
        std::int64_t in_upper = 0;
        for (std::int64_t o = 0; o < c.iter_out; o++)
            for (std::int64_t i = 0; i < c.iter_in; i++)
                for (std::int64_t u = c.uop_begin; u < c.uop_end; u++)
                    in_upper += get(uops[u], fields.uop_dst) + o * c.dst_out + i * c.dst_in >= half;
        const std::int64_t few = items / 16;
        return std::uint8_t((items - in_upper > few ? 1 : 0) | (in_upper > few ? 2 : 0));
    }

    // The latest items of the ALU, at least as many as it can have in flight.
    struct Recent {
        static constexpr std::size_t SIZE = 8;
        std::int64_t dst[SIZE], src[SIZE];
        Time taken[SIZE];
        std::size_t count = 0;

        bool names(std::int64_t a, std::int64_t b) const {
            bool found = false;
            for (std::size_t i = 0; i < SIZE; i++) found |= (dst[i] == a) | (dst[i] == b);
            return found;
        }
        void add(std::int64_t of_dst, std::int64_t of_src, Time at) {
            const std::size_t place = count++ % SIZE;
            dst[place] = of_dst;
            src[place] = of_src;
            taken[place] = at;
        }
    };

    // The items of an ALU instruction, one after the other, as if nothing were before it.
    void walk(Loops& loops, const LoopCommand& c, std::span<const std::uint32_t> uops) const {
        Recent recent;
        std::fill(recent.dst, recent.dst + Recent::SIZE, -2);
        Time at = -1;
        std::int64_t parameters_of = -1;
        for (std::int64_t o = 0; o < c.iter_out; o++)
            for (std::int64_t i = 0; i < c.iter_in; i++)
                for (std::int64_t u = c.uop_begin; u < c.uop_end; u++) {
                    const std::int64_t dst = get(uops[u], fields.uop_dst) + o * c.dst_out + i * c.dst_in;
                    const std::int64_t src =
                        c.reads_source ? get(uops[u], fields.uop_src) + o * c.src_out + i * c.src_in : -1;
                    Time earliest = at + 1;
                    if (recent.names(dst, src)) earliest = std::max(earliest, written(recent, dst, src));
                    if (c.requantizes && src != parameters_of) {
                        // For the first item this is done when the instruction starts.
                        if (parameters_of >= 0)
                            earliest = std::max(earliest, at + parameters.alu_latency + 2) +
                                       parameters.requantize_parameters + 1;
                        parameters_of = src;
                    }
                    if (c.looks_up && src != loops.last_table) {
                        if (loops.last_table < 0) loops.table = src;
                        else earliest = std::max(earliest, at + parameters.alu_latency + 2) + parameters.table_words + 1;
                        loops.last_table = src;
                    }
                    at = earliest;
                    recent.add(dst, src, at);
                    if (at < parameters.alu_latency) loops.first.push_back({dst, src, at});
                }
        loops.stalls = at + 1 - loops.items;
        for (std::size_t i = 0; i < std::min(recent.count, Recent::SIZE); i++)
            if (at - recent.taken[i] < parameters.alu_latency)
                loops.last.push_back({recent.dst[i], recent.src[i], at - recent.taken[i]});
    }

    // When a micro-op that reads `dst` and `src` can be taken, as far as recent writes decide that.
    Time written(const Recent& recent, std::int64_t dst, std::int64_t src) const {
        Time from = 0;
        for (std::size_t i = 0; i < std::min(recent.count, Recent::SIZE); i++)
            if (recent.dst[i] == dst || recent.dst[i] == src)
                from = std::max(from, recent.taken[i] + parameters.alu_latency + 1);
        return from;
    }

    const Parameters& parameters;
    const Fields& fields;
    std::unordered_map<LoopCommand, const Loops*, Hash, Equal> known;
    std::deque<Loops> all;
};

}  // namespace estimate
