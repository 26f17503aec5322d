// What the machine's counters would say of a run.

#pragma once

#include <vector>

#include "bus.hpp"

namespace estimate {

// The cycles in which a unit is busy.
class BusyTime {
  public:
    // Adds those from `begin` up to `end`; called in the order of instructions.
    void add(Time begin, Time end) {
        if (!intervals.empty() && begin <= intervals.back().end)
            intervals.back().end = std::max(intervals.back().end, end);
        else
            intervals.push_back({begin, end});
    }

    void clear() { intervals.clear(); }

    Time length() const {
        Time sum = 0;
        for (const Interval& interval : intervals) sum += interval.end - interval.begin;
        return sum;
    }

    Time in_common(const BusyTime& other) const {
        const auto &a = intervals, &b = other.intervals;
        Time sum = 0;
        for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
            const Time begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
            if (begin < end) sum += end - begin;
            (a[i].end < b[j].end ? i : j)++;
        }
        return sum;
    }

  private:
    struct Interval {
        Time begin, end;
    };
    std::vector<Interval> intervals;
};

class Counters {
  public:
    void clear() {
        for (BusyTime& of_unit : busy) of_unit.clear();
        forwarding.clear();
        std::fill_n(instructions, BUSY, 0);
        std::fill_n(elements, COUNTED, 0);
        std::fill_n(waits_prev, MODULES, 0);
        std::fill_n(waits_next, MODULES, 0);
        gemm_uops = alu_uops = 0;
    }

    // An instruction retires.
    template <Module module>
    void add(const Instruction& instruction) {
        waits_prev[module] += instruction.prev.length();
        waits_next[module] += instruction.next.length();
        if (instruction.unit == NO_UNIT) return;
        const Busy unit = busy_of(module, instruction.unit);
        instructions[unit]++;
        busy[unit].add(instruction.begun, instruction.done);
        if (instruction.unit == TRANSFER_UNIT) {
            const Shape& shape = *instruction.transfer.shape;
            elements[shape.memory == WGT_4BIT ? WGT : shape.memory] += shape.elements;
            if (shape.forwards) forwarding.add(instruction.begun, instruction.done);
        } else if (const Loops& loops = *instruction.loops; loops.works) {
            if (instruction.unit == ALU_UNIT) alu_uops += loops.items;
            else if (loops.multiplies) gemm_uops += loops.items;
        }
    }

    // Writes all counters, in the order of library.py.
    void write(const Bus& bus, const Fetch& fetch, const Storer& store, std::int64_t* out) const {
        // What goes to the inputs does not wait for memory.
        const std::int64_t words[BUSY] = {bus.words_of[LOAD_READER], bus.words_of[COMPUTE_READER], 0, 0,
                                          bus.words_written + forwarding.length()};
        for (const BusyTime& of_unit : busy) *out++ = of_unit.length();
        *out++ = busy[LOAD_BUSY].in_common(busy[GEMM_BUSY]);
        *out++ = waits_next[LOAD_MODULE];
        *out++ = waits_prev[COMPUTE_MODULE];
        *out++ = waits_next[COMPUTE_MODULE];
        *out++ = waits_prev[STORE_MODULE];
        *out++ = fetch.waits_for_memory;
        *out++ = fetch.waits_for_modules;
        for (const Busy unit : {LOAD_BUSY, COMPUTE_LOAD_BUSY, STORE_BUSY})
            *out++ = std::max<Time>(0, busy[unit].length() - words[unit]);
        for (const std::int64_t of_unit : instructions) *out++ = of_unit;
        *out++ = gemm_uops;
        *out++ = alu_uops;
        for (const std::int64_t of_memory : elements) *out++ = of_memory;
        *out++ = bus.bursts;
        *out++ = bus.latency_sum;
        *out++ = store.burst_count;
        *out++ = store.latency_sum;
    }

  private:
    enum Busy { LOAD_BUSY, COMPUTE_LOAD_BUSY, GEMM_BUSY, ALU_BUSY, STORE_BUSY, BUSY };

    static Busy busy_of(Module module, Unit unit) {
        if (module == LOAD_MODULE) return LOAD_BUSY;
        if (module == STORE_MODULE) return STORE_BUSY;
        return unit == TRANSFER_UNIT ? COMPUTE_LOAD_BUSY : unit == GEMM_UNIT ? GEMM_BUSY : ALU_BUSY;
    }

    BusyTime busy[BUSY], forwarding;
    std::int64_t instructions[BUSY], elements[COUNTED], gemm_uops, alu_uops;
    Time waits_prev[MODULES], waits_next[MODULES];
};

}  // namespace estimate
