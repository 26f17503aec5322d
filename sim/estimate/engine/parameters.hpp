// What the engine knows of a machine and of its memory. estimate/parameters.py fills it in.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace estimate {

// Places for what is queued or in flight somewhere: `Parameters::fit` says whether they suffice.
constexpr std::size_t PLACES = 64;

using Time = std::int64_t;  // in cycles from the launch
constexpr Time NEVER = Time(1) << 60;
// Micro-ops of the ALU in flight, and one more.
constexpr Time MOST_ALU_LATENCY = 7;

// Compilers keep these in registers, but not the initializer lists of std::max and std::min.
template <typename... Times>
constexpr Time latest(Time first, Times... others) {
    ((first = std::max<Time>(first, others)), ...);
    return first;
}
template <typename... Times>
constexpr Time earliest(Time first, Times... others) {
    ((first = std::min<Time>(first, others)), ...);
    return first;
}

enum Memory { UOP, WGT, INP, ACC, OUT, ACC_8BIT, WGT_4BIT, MEMORIES };
// Memories with a counter of elements; those of WGT_4BIT are counted with WGT's.
constexpr int COUNTED = WGT_4BIT;

// Where a field of an instruction lies: in which of its words, and there. A mask of 0 is a field that
// the configuration lacks.
struct Field {
    std::int64_t word, shift;
    std::uint64_t mask;

    std::int64_t of(const std::uint64_t* words) const { return std::int64_t(words[word] >> shift & mask); }
};

// How the elements of a memory cross the bus.
struct Kind {
    std::int64_t element_bytes;
    std::int64_t cycles_per_word;  // that the loader needs for a word full of them
    std::int64_t words_per_write;  // that it puts together before it writes
    std::int64_t padding_per_write;
};

// All 64-bit integers, in the order of parameters.py.
struct Parameters {
    // The memory: `MemoryTiming` of sim/machine/dram.py.
    Time latency, shared, refresh_period, refresh_stall;
    // The configuration.
    std::int64_t bus_bytes, overlap, wgt_4bit, requantize_opcode, lookup_opcode, multiply_add_opcode;
    std::int64_t uop_depth, acc_depth, first_copied, table_elements;
    Kind kinds[MEMORIES];
    // Limits of the design: hw/timing.py, and hw/isa/.
    std::int64_t queue_depth, in_flight, gemm_commands, alu_commands, bursts_in_flight, words_ahead;
    std::int64_t fetch_burst_bytes, burst_words, burst_bytes, requantize_parameters, table_words;
    Time gemm_latency, alu_latency, alu_cycles, early_end;
    // Cycles from one event to the next: `Latencies` of hw/timing.py.
    Time launch_to_fetch;     // to the first request of fetch
    Time hand_over_to_issue;  // of an instruction that nothing else holds up
    Time issue_to_issue;      // of the next instruction of a module, if nothing else holds it up
    Time done_to_retire;      // from a unit's being done to the issue of what waits for that
    Time issue_to_request;    // of a LOAD; of a STORE, to its first burst's being announced
    Time grant_to_memory;     // from the choice of a request to its reaching memory
    Time word_to_fetch;       // from a word on the bus to the hand-over of its instruction
    Time word_to_done;        // from the last word of a LOAD to its end
    Time announce_to_word;    // from there to the first word on the bus
    Time response_to_done;    // from the last response of a STORE to its end
    Time issue_to_item;       // of GEMM and ALU, to the first micro-op
    Time item_to_alu;         // from there to its entering the pipeline of the ALU
    Time finish_to_end;       // from the issue of FINISH to the interrupt

    bool fit() const {
        const std::int64_t most =
            std::max({queue_depth, 2 * in_flight, gemm_commands, alu_commands, 2 * bursts_in_flight, fetch_burst_bytes / 8});
        return most <= std::int64_t(PLACES) && alu_latency <= MOST_ALU_LATENCY * alu_cycles;
    }
};

// Fields of instructions, in the order of parameters.py.
struct MemoryFields {
    Field memory, sram_base, dram_base, y_size, x_size, x_stride, y_pad_0, y_pad_1, x_pad_0, x_pad_1;
};
struct LoopFields {
    Field reset, uop_begin, uop_end, iter_out, iter_in, dst_out, dst_in, src_out, src_in;
    Field independent, alu_opcode, use_immediate;
};
struct Fields {
    Field opcode, tokens;
    MemoryFields memory;
    LoopFields gemm, alu;
    Field uop_dst, uop_src;
};

}  // namespace estimate
