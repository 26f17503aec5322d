// What the machine's counters would say of a run, in the order of `COUNTED` of library.py.

#pragma once

#include "machine.hpp"

namespace estimate {

struct Interval {
    Time begin, end;
};

// Adds the cycles from `begin` up to `end` to those in which a unit was busy; called in order.
inline void add_busy(std::vector<Interval>& busy, Time begin, Time end) {
    if (!busy.empty() && begin <= busy.back().end)
        busy.back().end = std::max(busy.back().end, end);
    else
        busy.push_back({begin, end});
}

inline Time length(const std::vector<Interval>& busy) {
    Time sum = 0;
    for (const Interval& interval : busy) sum += interval.end - interval.begin;
    return sum;
}

inline Time in_common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
    Time sum = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const Time begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
        if (begin < end) sum += end - begin;
        (a[i].end < b[j].end ? i : j)++;
    }
    return sum;
}

enum Busy { LOAD_BUSY, COMPUTE_LOAD_BUSY, GEMM_BUSY, ALU_BUSY, STORE_BUSY, BUSY };

inline Busy busy_of(const Instruction& instruction) {
    if (instruction.module == LOAD_MODULE) return LOAD_BUSY;
    if (instruction.module == STORE_MODULE) return STORE_BUSY;
    return instruction.unit == TRANSFER_UNIT ? COMPUTE_LOAD_BUSY : instruction.unit == GEMM_UNIT ? GEMM_BUSY : ALU_BUSY;
}

inline void count_all(const Machine& machine, const Stream& stream, const Record* records, std::int64_t* out) {
    std::vector<Interval> busy[BUSY];
    std::int64_t instructions[BUSY] = {}, elements[MEMORIES] = {}, gemm_uops = 0, alu_uops = 0;
    for (std::size_t i = 0; i < stream.instructions.size(); i++) {
        const Instruction& instruction = stream.instructions[i];
        if (instruction.unit == NO_UNIT || records[i].done >= NEVER) continue;
        const Busy unit = busy_of(instruction);
        instructions[unit]++;
        add_busy(busy[unit], records[i].begun, records[i].done);
        if (instruction.unit == TRANSFER_UNIT) {
            const Transfer& transfer = stream.transfers[instruction.at];
            elements[transfer.memory] += transfer.elements;
        } else if (const Loops& loops = *stream.loops[instruction.at]; loops.works) {
            if (instruction.unit == ALU_UNIT) alu_uops += loops.items;
            else if (loops.multiplies) gemm_uops += loops.items;
        }
    }
    const auto& modules = machine.modules;
    const std::int64_t words[BUSY] = {machine.bus.words_of[LOAD_READER], machine.bus.words_of[COMPUTE_READER], 0, 0,
                                      machine.bus.words_written};
    for (int unit = 0; unit < BUSY; unit++) *out++ = length(busy[unit]);
    *out++ = in_common(busy[LOAD_BUSY], busy[GEMM_BUSY]);
    *out++ = modules[LOAD_MODULE].waits_next;
    *out++ = modules[COMPUTE_MODULE].waits_prev;
    *out++ = modules[COMPUTE_MODULE].waits_next;
    *out++ = modules[STORE_MODULE].waits_prev;
    *out++ = machine.fetch.waits_for_memory;
    *out++ = machine.fetch.waits_for_modules;
    for (const Busy unit : {LOAD_BUSY, COMPUTE_LOAD_BUSY, STORE_BUSY})
        *out++ = std::max<Time>(0, length(busy[unit]) - words[unit]);
    for (int unit = 0; unit < BUSY; unit++) *out++ = instructions[unit];
    *out++ = gemm_uops;
    *out++ = alu_uops;
    for (int memory = 0; memory < MEMORIES; memory++) *out++ = elements[memory];
    *out++ = machine.bus.bursts;
    *out++ = machine.bus.latency_sum;
    *out++ = machine.store.burst_count;
    *out++ = machine.store.latency_sum;
}

}  // namespace estimate
