// An instruction stream, decoded: what each instruction asks of which unit.

#pragma once

#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "loops.hpp"
#include "parameters.hpp"

namespace estimate {

enum Opcode { LOAD, STORE, GEMM, FINISH, ALU, MULTIPLY };
enum Module { LOAD_MODULE, COMPUTE_MODULE, STORE_MODULE, MODULES };
// Of compute as in hw/compute.py; load and store have one unit, number 1.
enum Unit { NO_UNIT, TRANSFER_UNIT, GEMM_UNIT, ALU_UNIT, UNITS };

// Rows of a transfer, as the machine cuts them into bursts.
struct Rows {
    std::uint64_t address = 0;
    std::int64_t stride = 0, last_byte = 0, count = 0;
};

// The padding of a transfer: writes above its rows, then for each of them those at its sides, where
// a side without any takes a cycle too, then writes below.
struct Padding {
    Time cycles = 0;  // if nothing else is written
    Time above = 0, rows = 0, per_row = 0, idle_per_row = 0;
    bool begins_idle = false;

    // How many of the cycles without a write pass while data are written that leave `free` cycles.
    Time idle(Time free) const {
        if (free < above || !rows) return 0;
        const Time passed = per_row ? std::min(rows, (free - above) / per_row) : rows;
        return passed * idle_per_row + (passed < rows && begins_idle);
    }
};

struct Transfer {
    Rows rows;
    Memory memory = UOP;
    std::int64_t elements = 0;  // that cross the bus
    std::int64_t begin = 0, end = 0;  // accumulators that are loaded
    std::int64_t words = 0;
    Padding padding;
};

struct Instruction {
    Module module;
    Unit unit;
    bool pop_prev, pop_next, push_prev, push_next;
    bool independent = false;
    std::uint32_t at = 0;  // its `Transfer` or `Loops`
};

class Stream {
  public:
    // Decodes `count` instructions from `address`; UOP loads are followed in `uops`.
    Stream(const Parameters& parameters, const Fields& fields, const std::uint8_t* memory,
           std::uint64_t memory_bytes, std::span<std::uint32_t> uops)
        : parameters(parameters), fields(fields), memory(memory), bytes(memory_bytes), uops(uops),
          profiles(parameters, fields) {}

    bool decode(std::uint64_t address, std::uint64_t count) {
        if (count == 0 || address % 16 || address > bytes || count > (bytes - address) / 16) return false;
        instructions.reserve(count);
        for (std::uint64_t i = 0; i < count; i++) {
            std::memcpy(words, memory + address + 16 * i, 16);
            if ((get(fields.opcode) == FINISH) != (i + 1 == count)) return false;
            if (!decode_one()) return false;
        }
        return true;
    }

    std::vector<Instruction> instructions;
    std::vector<Transfer> transfers;
    std::vector<const Loops*> loops;

  private:
    std::int64_t get(const Field& field) const {
        if (!field.width) return 0;
        return words[field.offset / 64] >> field.offset % 64 & ((std::uint64_t(1) << field.width) - 1);
    }

    static std::uint64_t bit(const Field& flag) { return std::uint64_t(1) << flag.offset; }

    bool decode_one() {
        Instruction found{COMPUTE_MODULE, NO_UNIT, bool(get(fields.pop_prev)), bool(get(fields.pop_next)),
                          bool(get(fields.push_prev)), bool(get(fields.push_next))};
        switch (get(fields.opcode)) {
            case LOAD:
            case STORE: return decode_transfer(found);
            case GEMM:
            case MULTIPLY: decode_loops(found, fields.gemm, GEMM_UNIT); return true;
            case ALU: decode_loops(found, fields.alu, ALU_UNIT); return true;
            case FINISH: instructions.push_back(found); return true;
        }
        return false;
    }

    bool decode_transfer(Instruction& found) {
        const MemoryFields& f = fields.memory;
        const std::int64_t memory_id = get(f.memory);
        const bool stores = get(fields.opcode) == STORE;
        found.unit = TRANSFER_UNIT;
        found.at = std::uint32_t(transfers.size());
        if (stores) found.module = STORE_MODULE;
        // The two memories after ACC_8BIT set padding values: 6 in load, 7 in compute.
        else if (memory_id == INP || memory_id == WGT || memory_id == 6) found.module = LOAD_MODULE;
        Transfer transfer;
        if (memory_id < MEMORIES) fill(transfer, Memory(memory_id), stores);
        else if (memory_id > 7) return false;
        instructions.push_back(found);
        transfers.push_back(transfer);
        return true;
    }

    void fill(Transfer& transfer, Memory id, bool stores) {
        const MemoryFields& f = fields.memory;
        const Kind& kind = parameters.kinds[id];
        const std::int64_t x = get(f.x_size), y = get(f.y_size), stride = get(f.x_stride);
        const std::int64_t left = get(f.x_pad_0), right = get(f.x_pad_1);
        const std::int64_t above = get(f.y_pad_0), below = get(f.y_pad_1);
        transfer.memory = id;
        if (!x) return;
        transfer.elements = x * y;
        const bool contiguous = stride == x && !(left | right | above | below);
        Rows& rows = transfer.rows;
        rows.address = std::uint64_t(get(f.dram_base)) * kind.element_bytes;
        rows.stride = stride * kind.element_bytes;
        rows.last_byte = (contiguous ? x * y : x) * kind.element_bytes - 1;
        rows.count = contiguous ? (y ? 1 : 0) : y;
        transfer.words = count_words(rows);
        if (!stores && (id == ACC || id == ACC_8BIT)) {
            transfer.begin = get(f.sram_base);
            transfer.end = transfer.begin + (above + y + below) * (left + x + right);
        }
        if (!stores) transfer.padding = padding_of(kind, left + x + right, y, left, right, above, below);
        if (id == UOP) load_uops(get(f.sram_base), left, right, above, below, x, y, stride);
    }

    std::int64_t count_words(const Rows& rows) const {
        const std::int64_t bus = parameters.bus_bytes;
        if (rows.stride % bus == 0)
            return rows.count * std::int64_t((rows.address + rows.last_byte) / bus - rows.address / bus + 1);
        std::int64_t words = 0;
        std::uint64_t address = rows.address;
        for (std::int64_t row = 0; row < rows.count; row++, address += rows.stride)
            words += std::int64_t((address + rows.last_byte) / bus - address / bus + 1);
        return words;
    }

    static Padding padding_of(const Kind& kind, std::int64_t width, std::int64_t y, std::int64_t left,
                              std::int64_t right, std::int64_t above, std::int64_t below) {
        const auto writes = [&](std::int64_t n) {
            return (n + kind.padding_per_write - 1) / kind.padding_per_write;
        };
        Padding padding;
        padding.above = above * writes(width);
        // The walk visits the rows if there is padding at their sides, or below them.
        if (y && (left | right | below)) {
            padding.rows = y;
            padding.per_row = writes(left) + writes(right);
            padding.idle_per_row = !left + !right;
            padding.begins_idle = !left;
        }
        padding.cycles = padding.above + below * writes(width) + padding.rows * (padding.per_row + padding.idle_per_row);
        return padding;
    }

    void load_uops(std::int64_t sram, std::int64_t left, std::int64_t right, std::int64_t above,
                   std::int64_t below, std::int64_t x, std::int64_t y, std::int64_t stride) {
        const std::int64_t width = left + x + right;
        const auto put = [&](std::int64_t index, std::uint32_t value) {
            if (index >= 0 && index < std::int64_t(uops.size())) uops[index] = value;
        };
        for (std::int64_t i = 0; i < above * width; i++) put(sram + i, 0);
        for (std::int64_t row = 0; row < y; row++) {
            const std::int64_t at = sram + (above + row) * width;
            for (std::int64_t i = 0; i < left; i++) put(at + i, 0);
            for (std::int64_t i = 0; i < x; i++) {
                const std::uint64_t from = std::uint64_t(get(fields.memory.dram_base) + row * stride + i) * 4;
                std::uint32_t value = 0;
                if (from + 4 <= bytes) std::memcpy(&value, memory + from, 4);
                put(at + left + i, value);
            }
            for (std::int64_t i = 0; i < right; i++) put(at + left + x + i, 0);
        }
        for (std::int64_t i = 0; i < below * width; i++) put(sram + (above + y) * width + i, 0);
        profiles.forget();
        recent = {};
    }

    void decode_loops(Instruction& found, const LoopFields& f, Unit unit) {
        found.unit = unit;
        found.independent = get(f.independent);
        found.at = std::uint32_t(loops.size());
        instructions.push_back(found);
        // Most are repeated, save for the tokens that they take and give.
        const std::uint64_t word = words[0] & ~flags;
        Known& known = recent[(word ^ words[1]) * 0x9E3779B97F4A7C15u >> 56];
        if (!known.loops || known.words[0] != word || known.words[1] != words[1])
            known = {{word, words[1]}, profiles.of(loop_command(f, unit), uops)};
        loops.push_back(known.loops);
    }

    LoopCommand loop_command(const LoopFields& f, Unit unit) const {
        LoopCommand command;
        command.uop_begin = get(f.uop_begin);
        command.uop_end = get(f.uop_end);
        command.iter_out = get(f.iter_out);
        command.iter_in = get(f.iter_in);
        command.dst_out = get(f.dst_out);
        command.dst_in = get(f.dst_in);
        command.src_out = get(f.src_out);
        command.src_in = get(f.src_in);
        command.is_alu = unit == ALU_UNIT;
        command.reset = !command.is_alu && get(f.reset);
        command.requantizes = command.is_alu && get(f.alu_opcode) == parameters.requantize_opcode;
        command.looks_up = command.is_alu && get(f.alu_opcode) == parameters.lookup_opcode;
        command.reads_source = command.is_alu && !get(f.use_immediate);
        return command;
    }

    const Parameters& parameters;
    const Fields& fields;
    const std::uint8_t* const memory;
    const std::uint64_t bytes;
    const std::span<std::uint32_t> uops;
    Profiles profiles;
    std::uint64_t words[2] = {};
    // The token flags in the first word, at the same place in all instructions.
    const std::uint64_t flags = bit(fields.pop_prev) | bit(fields.pop_next) | bit(fields.push_prev) | bit(fields.push_next);
    struct Known {
        std::uint64_t words[2];
        const Loops* loops = nullptr;
    };
    std::array<Known, 256> recent = {};
};

}  // namespace estimate
