// An instruction stream, decoded as it is handed over: what each instruction asks of which unit.

#pragma once

#include <bit>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "instruction.hpp"

namespace estimate {

class Stream {
  public:
    Stream(const Parameters& parameters, const Fields& fields)
        : parameters(parameters), fields(fields), log_bus(std::countr_zero(std::uint64_t(parameters.bus_bytes))),
          uops(std::size_t(parameters.uop_depth)), profiles(parameters, fields),
          gemm_key(key_of(fields.gemm)), alu_key(key_of(fields.alu)),
          shape_key(key_of({fields.opcode, fields.memory.memory, fields.memory.y_size, fields.memory.x_size,
                            fields.memory.x_stride, fields.memory.y_pad_0, fields.memory.y_pad_1,
                            fields.memory.x_pad_0, fields.memory.x_pad_1})) {}

    // Begins a stream of `count` instructions at `address`; micro-ops stay as they are. False if
    // they are not all in memory.
    bool open(const std::uint8_t* of_memory, std::uint64_t memory_bytes, std::uint64_t address, std::uint64_t count) {
        if (count == 0 || address % 16 || address > memory_bytes || count > (memory_bytes - address) / 16) return false;
        memory = of_memory;
        bytes = memory_bytes;
        next = memory + address;
        end = next + 16 * count;
        profiles.restart();
        shapes.limit();
        return true;
    }

    // Which module the next instruction is for; MODULES if it is not legal there.
    Module look() {
        std::memcpy(words, next, 16);
        opcode = get(fields.opcode);
        if ((opcode == FINISH) != (next + 16 == end)) return MODULES;
        switch (opcode) {
            case STORE: return STORE_MODULE;
            case LOAD: break;
            default: return opcode <= DEPTHWISE ? COMPUTE_MODULE : MODULES;
        }
        // The two numbers after ACC_8BIT set padding values: 6 in load, 7 in compute.
        const std::int64_t number = get(fields.memory.memory);
        if (number > 7) return MODULES;
        const Memory memory_id = memory_of();
        return memory_id == INP || memory_id == WGT || memory_id == WGT_4BIT || number == 6 ? LOAD_MODULE
                                                                                           : COMPUTE_MODULE;
    }

    // Decodes the instruction that was looked at, and goes on to the next one. UOP loads are followed.
    void decode(Instruction& found) {
        next += 16;
        found.tokens = std::uint8_t(get(fields.tokens));
        switch (opcode) {
            case LOAD:
            case STORE: return decode_transfer(found);
            case ALU: return decode_loops(found, fields.alu, ALU_UNIT, alu_key);
            case FINISH: found.unit = NO_UNIT; return;
            default: return decode_loops(found, fields.gemm, GEMM_UNIT, gemm_key);
        }
    }

  private:
    std::int64_t get(const Field& field) const { return field.of(words); }
    // The memory of a LOAD or STORE; MEMORIES if it sets a padding value.
    Memory memory_of() const {
        const std::int64_t number = get(fields.memory.memory);
        if (number > ACC_8BIT) return MEMORIES;
        // As `isa.memory_id` encodes it.
        if (number == OUT && opcode == LOAD && parameters.wgt_4bit) return WGT_4BIT;
        return Memory(number);
    }

    Key key(const Key& mask) const { return {{words[0] & mask.words[0], words[1] & mask.words[1]}}; }

    void decode_transfer(Instruction& found) {
        found.unit = TRANSFER_UNIT;
        const Key key = this->key(shape_key);
        auto& entry = shapes.entry(key);
        if (!entry.value || entry.key != key) fill(shapes.add(entry, key));
        const Shape& shape = *entry.value;
        Transfer& transfer = found.transfer;
        transfer.shape = &shape;
        transfer.base = get(fields.memory.sram_base);
        transfer.address = std::uint64_t(get(fields.memory.dram_base)) * parameters.kinds[shape.memory].element_bytes;
        transfer.words = count_words(shape.rows, transfer.address);
        if (shape.memory == UOP && shape.elements | shape.padding.cycles) load_uops(transfer);
    }

    // What the instruction moves.
    void fill(Shape& shape) const {
        shape = {};
        shape.word_cycles = 1;
        const MemoryFields& f = fields.memory;
        const Memory id = memory_of();
        if (id == MEMORIES) return;
        const Kind& kind = parameters.kinds[id];
        const std::int64_t x = get(f.x_size), y = get(f.y_size), stride = get(f.x_stride);
        const std::int64_t left = get(f.x_pad_0), right = get(f.x_pad_1);
        const std::int64_t above = get(f.y_pad_0), below = get(f.y_pad_1);
        const std::int64_t width = left + x + right, all = x ? (above + y + below) * width : 0;
        shape.memory = id;
        if (opcode == STORE && id == INP) {
            shape.forwards = true;
            shape.forwarded = all;
            return;
        }
        if (!x) return;
        shape.elements = x * y;
        const bool contiguous = stride == x && !(left | right | above | below);
        shape.rows.stride = stride * kind.element_bytes;
        shape.rows.last_byte = (contiguous ? x * y : x) * kind.element_bytes - 1;
        shape.rows.count = contiguous ? (y ? 1 : 0) : y;
        // A word may hold more elements than a row, of which the others take no time.
        shape.word_cycles = std::min(kind.cycles_per_word, contiguous && y ? x * y : x);
        if (opcode == STORE) return;
        if (id == ACC || id == ACC_8BIT) shape.accumulators = all;
        if (left | right | above | below) shape.padding = padding_of(kind, width, y, left, right, above, below);
    }

    std::int64_t count_words(const Rows& rows, std::uint64_t address) const {
        const auto words_at = [this, &rows](std::uint64_t address) {
            return std::int64_t(((address + rows.last_byte) >> log_bus) - (address >> log_bus) + 1);
        };
        if (!(rows.stride & (parameters.bus_bytes - 1))) return rows.count * words_at(address);
        std::int64_t words = 0;
        for (std::int64_t row = 0; row < rows.count; row++) words += words_at(address + row * rows.stride);
        return words;
    }

    static Padding padding_of(const Kind& kind, std::int64_t width, std::int64_t y, std::int64_t left,
                              std::int64_t right, std::int64_t above, std::int64_t below) {
        const auto writes = [&](std::int64_t n) {
            return (n + kind.padding_per_write - 1) / kind.padding_per_write;
        };
        Padding padding = {};
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

    [[gnu::noinline]] void load_uops(const Transfer& transfer) {
        const MemoryFields& f = fields.memory;
        const std::int64_t x = get(f.x_size), y = get(f.y_size), stride = get(f.x_stride);
        const std::int64_t left = get(f.x_pad_0), right = get(f.x_pad_1);
        const std::int64_t above = get(f.y_pad_0), below = get(f.y_pad_1);
        const std::int64_t width = left + x + right, sram = transfer.base;
        const auto put = [&](std::int64_t index, std::uint32_t value) {
            if (index >= 0 && index < std::int64_t(uops.size())) uops[index] = value;
        };
        for (std::int64_t i = 0; i < above * width; i++) put(sram + i, 0);
        for (std::int64_t row = 0; row < y; row++) {
            const std::int64_t at = sram + (above + row) * width;
            for (std::int64_t i = 0; i < left; i++) put(at + i, 0);
            for (std::int64_t i = 0; i < x; i++) {
                const std::uint64_t from = transfer.address + std::uint64_t(row * stride + i) * 4;
                std::uint32_t value = 0;
                if (from + 4 <= bytes) std::memcpy(&value, memory + from, 4);
                put(at + left + i, value);
            }
            for (std::int64_t i = 0; i < right; i++) put(at + left + x + i, 0);
        }
        for (std::int64_t i = 0; i < below * width; i++) put(sram + (above + y) * width + i, 0);
        profiles.reload();
    }

    void decode_loops(Instruction& found, const LoopFields& f, Unit unit, const Key& matter) {
        found.unit = unit;
        found.independent = get(f.independent);
        // Most are repeated, save for the tokens that they take and give.
        found.loops = profiles.of(key(matter), uops, [&] { return loop_command(f, unit); });
    }

    LoopCommand loop_command(const LoopFields& f, Unit unit) const {
        LoopCommand command;
        command.uop_begin = get(f.uop_begin);
        command.uop_end = get(f.uop_end);
        command.iter_out = get(f.iter_out);
        command.iter_in = get(f.iter_in);
        command.dst_out = get(f.dst_out);
        command.dst_in = get(f.dst_in);
        command.is_alu = unit == ALU_UNIT;
        // In its place DEPTHWISE says that it overwrites.
        command.reset = !command.is_alu && opcode != DEPTHWISE && get(f.reset);
        command.adds = !command.is_alu && opcode != MULTIPLY && !get(f.reset);
        command.requantizes = command.is_alu && get(f.alu_opcode) == parameters.requantize_opcode;
        command.looks_up = command.is_alu && get(f.alu_opcode) == parameters.lookup_opcode;
        command.multiplies_and_adds = command.is_alu && get(f.alu_opcode) == parameters.multiply_add_opcode;
        command.reads_source = command.is_alu && !get(f.use_immediate);
        if (command.reads_source) {
            command.src_out = get(f.src_out);
            command.src_in = get(f.src_in);
        }
        return command;
    }

    // The bits of an instruction that its `LoopCommand` depends on.
    Key key_of(const LoopFields& f) const {
        return key_of({fields.opcode, f.reset, f.uop_begin, f.uop_end, f.iter_out, f.iter_in, f.dst_out, f.dst_in,
                       f.src_out, f.src_in, f.alu_opcode, f.use_immediate});
    }

    static Key key_of(std::initializer_list<Field> matter) {
        Key key = {};
        for (const Field& field : matter) key.words[field.word] |= field.mask << field.shift;
        return key;
    }

    const Parameters& parameters;
    const Fields& fields;
    const int log_bus;
    std::vector<std::uint32_t> uops;
    Profiles profiles;
    Cache<Shape> shapes;
    const Key gemm_key, alu_key, shape_key;
    const std::uint8_t *memory = nullptr, *next = nullptr, *end = nullptr;
    std::uint64_t bytes = 0;
    // Of the instruction that was looked at.
    std::uint64_t words[2] = {};
    std::int64_t opcode = 0;
};

}  // namespace estimate
