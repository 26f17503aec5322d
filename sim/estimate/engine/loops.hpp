// The loops of a GEMM or ALU instruction: how many micro-ops, in which halves of the accumulators,
// and where the ALU waits for its own results.

#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "cache.hpp"
#include "parameters.hpp"

namespace estimate {

struct LoopCommand {
    std::int64_t uop_begin = 0, uop_end = 0, iter_out = 0, iter_in = 0;
    std::int64_t dst_out = 0, dst_in = 0, src_out = 0, src_in = 0;
    bool is_alu = false, reset = false, adds = false, requantizes = false, looks_up = false, multiplies_and_adds = false;
    bool reads_source = false;

    // Whether that is one element for each micro-op, and not the first one of parameters or of a table.
    bool has_sources() const { return reads_source && !requantizes && !looks_up; }
};

// The operands of an ALU micro-op near one end of an instruction, and its distance from that end.
struct Edge {
    std::int64_t dst, src;
    Time distance;
};

// Those that may have a hazard with another instruction.
class Edges {
  public:
    void push(const Edge& edge) { edges[count++] = edge; }
    const Edge* begin() const { return edges.data(); }
    const Edge* end() const { return edges.data() + count; }

  private:
    std::size_t count = 0;
    std::array<Edge, MOST_ALU_LATENCY> edges;
};

// From when on an item at the ALU since `now` can be taken whose parameters begin at `first`;
// `readable` says when the results in flight allow to read an accumulator.
template <typename Readable>
Time parameters_read(const Parameters& parameters, Time now, std::int64_t first, Readable readable) {
    for (std::int64_t index = first; index < first + parameters.requantize_parameters; index++)
        now = std::max(now, readable(index)) + parameters.alu_cycles;
    return now + (first < parameters.first_copied);
}

// What a unit has to do for one instruction.
struct Loops {
    std::int64_t items = 1;  // micro-ops, or the one item of an instruction without any
    bool works = false;
    bool multiplies = false;
    bool adds = false;          // to accumulators, which GEMM reads for that
    bool many_uops = false;     // another micro-op is read for each item
    std::uint8_t banks = 0;     // bit n: it writes to the n-th half of the accumulators
    std::uint8_t sources = 0;   // of the halves from which it reads sources that have no copy
    // The accumulators that it writes to are among these.
    std::int64_t first_dst = 0, dsts = 0;
    std::int64_t parameters = -1;  // index of the first parameter of the first item
    bool has_factor = false;    // which is read before the first item
    std::int64_t table = -1;    // the first and the last table of its lookups
    std::int64_t last_table = -1;
    Time stalls = 0;            // cycles in which the ALU waits for its own writes, or reads sources
    bool ends_slowly = false;   // its last item takes a cycle for its source
    Edges first, last;          // of the ALU

    // Whether the first item has this accumulator as a parameter.
    bool has_parameter(const Parameters& of, std::int64_t index) const {
        return parameters >= 0 && index >= parameters && index < parameters + of.requantize_parameters;
    }
};

// The items of an ALU instruction, one after the other, as if nothing were before it.
class Walk {
  public:
    Walk(const Parameters& parameters, const LoopCommand& command, Loops& loops)
        : parameters(parameters), command(command), loops(loops) {
        dsts.fill(NONE);
    }

    void item(std::int64_t dst, std::int64_t src) {
        Time from = free();
        if (names(std::int32_t(dst), std::int32_t(src))) from = std::max(from, written(dst, src));
        if (command.requantizes && src != parameters_of) {
            // For the first item this is done when the instruction starts.
            if (parameters_of < 0) loops.parameters = src;
            else from = std::max(from, parameters_read(parameters, free(), src, [this](auto index) { return readable(index); }));
            parameters_of = src;
        }
        if (command.looks_up && src != loops.last_table) {
            if (loops.last_table < 0) loops.table = src;
            else from = after_writes(from) + parameters.table_words + 1;
            loops.last_table = src;
        }
        Time read = from;
        loops.ends_slowly = false;
        if (reads_ahead(src)) {
            if (src != held && !is_read_early(src)) {
                // In a cycle of its own.
                loops.ends_slowly = true;
                read = std::max(at + 1, readable(src));
                from = std::max(from, read + 1);
            }
            held = src == dst ? NONE : src;
            loops.sources |= upper(src) ? 2 : 1;
        }
        at = from;
        last_dst = dst;
        const std::size_t place = count++ % RECENT;
        dsts[place] = std::int32_t(dst);
        srcs[place] = std::int32_t(src);
        taken[place] = at;
        if (read < parameters.alu_latency) loops.first.push({dst, src, read});
    }

    // The items of an inner loop of one micro-op that begins with `dst` and `src`. Where none of
    // them meets another one, those in the middle pass at one per cycle, or at one per two cycles if
    // each has a source of its own without a copy in the bank of its destination.
    void row(std::int64_t dst, std::int64_t src) {
        const std::int64_t ends = parameters.alu_latency + 1, n = command.iter_in;
        const bool skips = n > 2 * ends && is_free(dst, src);
        const bool reads = command.src_in && reads_ahead(src) && upper(src) == upper(dst);
        const Time each = std::max<Time>(parameters.alu_cycles, reads ? 2 : 1);
        for (std::int64_t i = 0; i < n; i++) {
            if (skips && i == ends) {
                at += (n - 2 * ends) * each;
                i = n - ends;
            }
            item(dst + i * command.dst_in, src + i * command.src_in);
        }
    }

    void finish() {
        loops.stalls = at + 1 - loops.items;
        for (std::size_t i = 0; i < std::min(count, RECENT); i++)
            if (at - taken[i] < parameters.alu_latency) loops.last.push({dsts[i], srcs[i], at - taken[i]});
    }

  private:
    // The latest items, at least as many as the ALU can have in flight and one more.
    static constexpr std::size_t RECENT = std::size_t(MOST_ALU_LATENCY) + 1;
    static constexpr std::int32_t NONE = -2;

    // Whether no item of the row reads or writes what one of those in flight before it writes, and all
    // have the same parameters or table.
    bool is_free(std::int64_t dst, std::int64_t src) const {
        const LoopCommand& c = command;
        if (!c.dst_in) return false;
        if (!c.reads_source) return true;
        if (c.src_in && (c.requantizes || c.looks_up)) return false;
        const std::int64_t end_dst = dst + (c.iter_in - 1) * c.dst_in, last_src = src + (c.iter_in - 1) * c.src_in;
        const bool is_uniform = reads_ahead(src) == reads_ahead(last_src) && upper(src) == upper(last_src);
        if (!is_uniform || upper(dst) != upper(end_dst)) return false;
        if (last_src < dst || end_dst < src) return true;
        return c.src_in == c.dst_in && (src >= dst || dst - src > (parameters.alu_latency + 1) * c.dst_in);
    }

    bool names(std::int32_t dst, std::int32_t src) const {
        int found = 0;
        for (const std::int32_t recent : dsts) found |= (recent == dst) | (recent == src);
        return found;
    }

    // When a micro-op that reads `dst` and `src` can be taken, as far as recent writes decide that.
    Time written(std::int64_t dst, std::int64_t src) const {
        Time from = 0;
        for (std::size_t i = 0; i < std::min(count, RECENT); i++)
            if (dsts[i] == dst || dsts[i] == src) from = std::max(from, taken[i] + parameters.alu_latency + 1);
        return from;
    }

    // Whether an item with this source reads it before it enters the pipeline.
    bool reads_ahead(std::int64_t src) const { return command.has_sources() && src < parameters.first_copied; }

    // Whether the source is read while the item before reads its destination in the other bank.
    bool is_read_early(std::int64_t src) const {
        return count && upper(src) != upper(last_dst) && readable(src) <= at;
    }

    // When the source can be read ahead, as far as recent writes decide that.
    Time readable(std::int64_t src) const {
        Time from = 0;
        for (std::size_t i = 0; i < std::min(count, RECENT); i++)
            if (dsts[i] == src) from = std::max(from, taken[i] + parameters.alu_latency + 2);
        return from;
    }

    // When the lanes have taken all columns of the item before.
    Time free() const { return count ? at + parameters.alu_cycles : 0; }

    bool upper(std::int64_t index) const { return index >= parameters.acc_depth / 2; }

    Time after_writes(Time from) const { return std::max(from, at + parameters.alu_latency + 2); }

    const Parameters& parameters;
    const LoopCommand& command;
    Loops& loops;
    Time at = -1;
    std::int64_t parameters_of = -1, held = NONE, last_dst = NONE;
    std::array<std::int32_t, RECENT> dsts, srcs;  // half as wide, for vectors of the compiler
    std::array<Time, RECENT> taken;
    std::size_t count = 0;
};

// The loops of streams: equal ones are evaluated once.
class Profiles {
  public:
    Profiles(const Parameters& parameters, const Fields& fields) : parameters(parameters), fields(fields) {}

    // Micro-ops have changed, perhaps.
    void reload() { generation++; }

    // A new stream begins: what `of` returned before is no longer used.
    void restart() { cache.limit(); }

    // Of the instruction whose bits, as far as they matter here, are `key`; `command` decodes it.
    template <typename Decode>
    const Loops* of(const Key& key, std::span<const std::uint32_t> uops, Decode command) {
        auto& entry = cache.entry(key);
        const bool is_known = entry.value && entry.key == key;
        if (is_known && entry.value->generation == generation) return &entry.value->loops;
        return find(entry, is_known, key, uops, command());
    }

  private:
    // Loops, the micro-ops that they were evaluated with, and when these were last seen.
    struct Profile {
        Loops loops;
        std::vector<std::uint32_t> uops;
        std::uint64_t generation;
    };

    [[gnu::noinline]] const Loops* find(Cache<Profile>::Entry& entry, bool is_known, const Key& key,
                                        std::span<const std::uint32_t> uops, const LoopCommand& command) {
        const bool is_legal = command.uop_begin < command.uop_end && command.uop_end <= std::int64_t(uops.size());
        const auto used = is_legal ? uops.subspan(command.uop_begin, command.uop_end - command.uop_begin)
                                   : std::span<const std::uint32_t>();
        if (!is_known || !std::ranges::equal(entry.value->uops, used)) {
            Profile& profile = cache.add(entry, key);
            profile.uops.assign(used.begin(), used.end());
            fill(profile.loops, command, uops);
        }
        entry.value->generation = generation;
        return &entry.value->loops;
    }

    static std::int64_t get(std::uint64_t uop, const Field& field) { return field.of(&uop); }

    void fill(Loops& loops, const LoopCommand& c, std::span<const std::uint32_t> uops) const {
        const std::int64_t count = c.uop_end - c.uop_begin;
        if (count <= 0 || !c.iter_out || !c.iter_in || c.uop_end > std::int64_t(uops.size())) return;
        loops.items = count * c.iter_out * c.iter_in;
        loops.works = true;
        loops.multiplies = !c.is_alu && !c.reset;
        loops.adds = c.adds;
        loops.many_uops = count > 1;
        loops.has_factor = c.multiplies_and_adds;
        find_dsts(loops, c, uops);
        loops.banks = banks(c, uops, loops);
        if (c.is_alu) walk(loops, c, uops);
    }

    void find_dsts(Loops& loops, const LoopCommand& c, std::span<const std::uint32_t> uops) const {
        std::int64_t low = INT64_MAX, high = 0;
        for (std::int64_t u = c.uop_begin; u < c.uop_end; u++) {
            const std::int64_t dst = get(uops[u], fields.uop_dst);
            low = std::min(low, dst);
            high = std::max(high, dst);
        }
        high += (c.iter_out - 1) * c.dst_out + (c.iter_in - 1) * c.dst_in;
        loops.first_dst = low;
        loops.dsts = high + 1 - low;
    }

    // The halves of the accumulators that an instruction works in. A few micro-ops in the other half
    // do not count: they delay nothing for long.
    std::uint8_t banks(const LoopCommand& c, std::span<const std::uint32_t> uops, const Loops& loops) const {
        const std::int64_t half = parameters.acc_depth / 2;
        if (loops.first_dst + loops.dsts <= half) return 1;
        if (loops.first_dst >= half) return 2;
        std::int64_t in_upper = 0;
        for (std::int64_t o = 0; o < c.iter_out; o++)
            for (std::int64_t u = c.uop_begin; u < c.uop_end; u++) {
                const std::int64_t below = half - get(uops[u], fields.uop_dst) - o * c.dst_out;
                if (below <= 0) in_upper += c.iter_in;
                else if (c.dst_in) in_upper += std::max<std::int64_t>(0, c.iter_in - (below + c.dst_in - 1) / c.dst_in);
            }
        const std::int64_t few = loops.items / 16;
        return std::uint8_t((loops.items - in_upper > few ? 1 : 0) | (in_upper > few ? 2 : 0));
    }

    void walk(Loops& loops, const LoopCommand& c, std::span<const std::uint32_t> uops) const {
        Walk walk(parameters, c, loops);
        const auto dst = [&](std::int64_t u) { return get(uops[u], fields.uop_dst); };
        const auto src = [&](std::int64_t u) { return c.reads_source ? get(uops[u], fields.uop_src) : -1; };
        for (std::int64_t o = 0; o < c.iter_out; o++) {
            if (c.uop_end - c.uop_begin == 1) {
                walk.row(dst(c.uop_begin) + o * c.dst_out, src(c.uop_begin) + o * c.src_out);
                continue;
            }
            for (std::int64_t i = 0; i < c.iter_in; i++)
                for (std::int64_t u = c.uop_begin; u < c.uop_end; u++)
                    walk.item(dst(u) + o * c.dst_out + i * c.dst_in, src(u) + o * c.src_out + i * c.src_in);
        }
        walk.finish();
    }

    const Parameters& parameters;
    const Fields& fields;
    std::uint64_t generation = 0;  // of micro-ops
    Cache<Profile> cache;
};

}  // namespace estimate
