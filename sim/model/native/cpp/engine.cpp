// Instructions on one instruction set of the host; compiled once for each, see lanes.h.

#include <vector>

#include "alu.h"
#include "gemm.h"

namespace vta::LANES {
namespace {

class Engine : public Executor {
public:
    Engine(const Parameters &parameters, const Dram &dram)
        : parameters_(parameters), dram_(dram), scratchpads_(parameters), sets_(parameters),
          gemm_(parameters, scratchpads_)
    {
    }

    void begin() override { padding_of_load_ = padding_of_compute_ = 0; }

    Cause start(const Instruction &instruction) override
    {
        switch (instruction.opcode) {
        case Opcode::LOAD:
        case Opcode::STORE:
            return instruction.sets_padding ? Cause::NONE : check_transfer(instruction);
        default:
            return start_loops(instruction);
        }
    }

    bool proceed(const Instruction &instruction) override
    {
        switch (instruction.opcode) {
        case Opcode::LOAD:
            if (instruction.sets_padding)
                set_padding(instruction);
            else
                load_elements(instruction);
            count(instruction.module == Module::LOAD ? Counter::load_instructions
                                                     : Counter::compute_load_instructions,
                  1);
            return true;
        case Opcode::STORE:
            if (forwards(instruction))
                forward_elements(instruction);
            else
                store_elements(instruction);
            count(Counter::store_instructions, 1);
            return true;
        default:
            break;
        }
        if (next_ < iterations_)
            run_part(instruction);
        if (next_ < iterations_)
            return false;
        count(instruction.opcode == Opcode::ALU ? Counter::alu_instructions
                                                : Counter::gemm_instructions,
              1);
        return true;
    }

    void fill(Memory memory, const uint8_t *elements) override
    {
        scratchpads_.put(memory, 0, elements, scratchpads_.depth(memory));
        sets_.forget();
    }

    const int32_t *accumulators() const override { return scratchpads_.accumulators; }

private:
    // Micro-ops that one part takes; all iterations of the inner loop if possible.
    static constexpr uint64_t UOPS_PER_PART = Gemm::MAX_PRODUCTS;

    Cause check_transfer(const Instruction &transfer) const
    {
        const Memory memory = Memory(transfer[Field::memory]);
        const uint64_t elements = transfer.elements();
        if (!elements)
            return Cause::NONE;
        if (transfer[Field::sram_base] + elements > scratchpads_.depth(memory))
            return Cause::INDEX_OUT_OF_RANGE;
        if (!transfer[Field::y_size])
            return Cause::NONE;
        if (forwards(transfer)) {
            const uint64_t behind =
                source_row(transfer, transfer[Field::y_size] - 1) + transfer[Field::x_size];
            return behind <= scratchpads_.depth(Memory::OUT) ? Cause::NONE
                                                             : Cause::INDEX_OUT_OF_RANGE;
        }
        // No stride is negative, so the last row ends last.
        const uint64_t end = transfer[Field::dram_base] +
                             uint64_t(transfer[Field::y_size] - 1) * transfer[Field::x_stride] +
                             transfer[Field::x_size];
        const uint64_t size = scratchpads_.element_bytes(memory);
        const uint64_t limit = limits[uint32_t(memory)];
        const bool there = dram_.has(transfer[Field::dram_base] * size, end * size);
        return there && (!limit || end <= limit) ? Cause::NONE : Cause::BUS_ERROR;
    }

    void set_padding(const Instruction &instruction)
    {
        int32_t &padding =
            instruction.module == Module::LOAD ? padding_of_load_ : padding_of_compute_;
        padding = int32_t(instruction[Field::dram_base]);
    }

    void load_elements(const Instruction &load)
    {
        if (!load.elements())
            return;
        const Memory memory = Memory(load[Field::memory]);
        const uint32_t row = load.row_elements(), x_size = load[Field::x_size];
        const uint32_t before = load[Field::x_pad_0], after = load[Field::x_pad_1];
        const int32_t padding =
            load.module == Module::LOAD ? padding_of_load_ : padding_of_compute_;
        size_t element = load[Field::sram_base];
        if (memory == Memory::UOP)
            sets_.forget();
        scratchpads_.pad(memory, element, padding, size_t(load[Field::y_pad_0]) * row);
        element += size_t(load[Field::y_pad_0]) * row;
        for (uint32_t y = 0; y < load[Field::y_size]; y++, element += row) {
            scratchpads_.pad(memory, element, padding, before);
            scratchpads_.put(memory, element + before, address(load, memory, y), x_size);
            scratchpads_.pad(memory, element + before + x_size, padding, after);
        }
        scratchpads_.pad(memory, element, padding, size_t(load[Field::y_pad_1]) * row);
        count(elements_counter(memory), uint64_t(x_size) * load[Field::y_size]);
    }

    void store_elements(const Instruction &store)
    {
        if (!store.elements())
            return;
        const uint32_t x_size = store[Field::x_size];
        for (uint32_t y = 0; y < store[Field::y_size]; y++)
            scratchpads_.take(store[Field::sram_base] + size_t(y) * x_size,
                              address(store, Memory::OUT, y), x_size);
        count(Counter::out_elements, store.elements());
    }

    // Extension FORWARD; a legal STORE of this memory is one.
    static bool forwards(const Instruction &transfer)
    {
        return transfer.opcode == Opcode::STORE && Memory(transfer[Field::memory]) == Memory::INP;
    }

    // The accumulator that is the first of row `y`.
    static uint64_t source_row(const Instruction &forward, uint32_t y)
    {
        return (forward[Field::dram_base] & 0xffff) + uint64_t(y) * forward[Field::x_stride];
    }

    void forward_elements(const Instruction &forward)
    {
        if (!forward.elements())
            return;
        const uint32_t row = forward.row_elements(), x_size = forward[Field::x_size];
        const uint32_t before = forward[Field::x_pad_0], after = forward[Field::x_pad_1];
        const int32_t padding = int32_t(forward[Field::dram_base]) >> 16;
        size_t element = forward[Field::sram_base];
        scratchpads_.pad(Memory::INP, element, padding, size_t(forward[Field::y_pad_0]) * row);
        element += size_t(forward[Field::y_pad_0]) * row;
        forwarded_.resize(x_size * scratchpads_.element_bytes(Memory::INP));
        for (uint32_t y = 0; y < forward[Field::y_size]; y++, element += row) {
            scratchpads_.pad(Memory::INP, element, padding, before);
            scratchpads_.take(source_row(forward, y), forwarded_.data(), x_size);
            scratchpads_.put(Memory::INP, element + before, forwarded_.data(), x_size);
            scratchpads_.pad(Memory::INP, element + before + x_size, padding, after);
        }
        scratchpads_.pad(Memory::INP, element, padding, size_t(forward[Field::y_pad_1]) * row);
    }

    uint8_t *address(const Instruction &transfer, Memory memory, uint32_t y) const
    {
        const uint64_t element =
            transfer[Field::dram_base] + uint64_t(y) * transfer[Field::x_stride];
        return dram_.at(element * scratchpads_.element_bytes(memory));
    }

    static Counter elements_counter(Memory memory)
    {
        switch (memory) {
        case Memory::UOP:
            return Counter::uop_elements;
        case Memory::WGT:
        case Memory::WGT_4BIT:
            return Counter::wgt_elements;
        case Memory::INP:
            return Counter::inp_elements;
        case Memory::ACC:
            return Counter::acc_elements;
        default:
            return Counter::acc_8bit_elements;
        }
    }

    Cause start_loops(const Instruction &instruction)
    {
        next_ = 0;
        iterations_ = instruction.iterations();
        const uint32_t begin = instruction[Field::uop_begin], end = instruction[Field::uop_end];
        if (end <= begin)
            iterations_ = 0;
        if (!iterations_)
            return Cause::NONE;
        if (end > parameters_.uop_depth)
            return Cause::INDEX_OUT_OF_RANGE;
        const bool is_alu = instruction.opcode == Opcode::ALU;
        uops_ = &sets_.select(scratchpads_.uops, begin, end);
        bool within = reach(instruction, uops_->most_dst, Field::dst_factor_out,
                            Field::dst_factor_in) < parameters_.acc_depth;
        if (is_alu ? !instruction[Field::use_immediate] : !instruction[Field::reset]) {
            const uint32_t following =
                (is_alu ? sources(AluOp(instruction[Field::alu_opcode])) : taps(instruction)) - 1;
            within &= reach(instruction, uops_->most_src, Field::src_factor_out,
                            Field::src_factor_in) +
                          following <
                      (is_alu ? parameters_.acc_depth : parameters_.inp_depth);
            if (!is_alu)
                within &= reach(instruction, uops_->most_wgt, Field::wgt_factor_out,
                                Field::wgt_factor_in) < parameters_.wgt_depth;
        }
        if (is_alu && AluOp(instruction[Field::alu_opcode]) == AluOp::MULTIPLY_ADD)
            within &= factor(instruction) < parameters_.acc_depth;
        if (!within)
            return Cause::INDEX_OUT_OF_RANGE;
        if (!is_alu && !uops_->is_sorted())
            gemm_.sort(*uops_);
        return Cause::NONE;
    }

    // Elements that are the second operand of a micro-op, one after the other.
    uint32_t sources(AluOp operation) const
    {
        switch (operation) {
        case AluOp::REQUANTIZE:
            return REQUANTIZE_PARAMETERS;
        case AluOp::LOOKUP:
            return parameters_.table_elements;
        default:
            return 1;
        }
    }

    // The accumulator by which all micro-ops of a MULTIPLY_ADD multiply.
    static uint32_t factor(const Instruction &instruction)
    {
        return uint16_t(instruction[Field::immediate]);
    }

    // Inputs that a micro-op of GEMM takes, one after the other.
    uint32_t taps(const Instruction &instruction) const
    {
        return instruction.opcode == Opcode::DEPTHWISE ? parameters_.taps : 1;
    }

    // The index in the last iteration, which reaches furthest: no factor is negative.
    static uint64_t reach(const Instruction &instruction, uint32_t most, Field out, Field in)
    {
        return most + uint64_t(instruction[Field::iter_out] - 1) * instruction[out] +
               uint64_t(instruction[Field::iter_in] - 1) * instruction[in];
    }

    void run_part(const Instruction &instruction)
    {
        const Part part = next_part(instruction);
        const uint64_t iterations = uint64_t(part.outer.count) * part.inner.count;
        if (instruction.opcode == Opcode::ALU) {
            const int32_t immediate = int16_t(instruction[Field::immediate]);
            run_alu_(part, AluOp(instruction[Field::alu_opcode]),
                     instruction[Field::use_immediate] ? &immediate : nullptr,
                     factor(instruction));
            count(Counter::alu_uops, iterations * uops_->count);
        } else if (instruction[Field::reset]) {
            gemm_.reset(*uops_, part);
        } else {
            if (instruction.opcode == Opcode::DEPTHWISE)
                gemm_.run_taps(*uops_, part, parameters_.taps, instruction[Field::overwrite]);
            else
                gemm_.run(*uops_, part, instruction.opcode == Opcode::MULTIPLY);
            count(Counter::gemm_uops, iterations * uops_->count);
        }
        next_ += iterations;
    }

    // As many iterations as a part takes: several of the outer loop, or some of the inner one.
    Part next_part(const Instruction &instruction) const
    {
        const bool is_alu = instruction.opcode == Opcode::ALU;
        const uint32_t inner_count = instruction[Field::iter_in];
        const uint64_t most = std::max<uint64_t>(
            1, std::min(UOPS_PER_PART / uops_->count, Gemm::MAX_ITERATIONS));
        const uint32_t o = next_ / inner_count, i = next_ % inner_count;
        const Loop outer = {1, instruction[Field::dst_factor_out], instruction[Field::src_factor_out],
                      is_alu ? 0 : instruction[Field::wgt_factor_out]};
        const Loop inner = {1, instruction[Field::dst_factor_in], instruction[Field::src_factor_in],
                      is_alu ? 0 : instruction[Field::wgt_factor_in]};
        Part part = {outer, inner, o * outer.dst + i * inner.dst,
                     o * outer.src + i * inner.src, o * outer.wgt + i * inner.wgt};
        if (i == 0 && most >= inner_count) {
            part.inner.count = inner_count;
            part.outer.count =
                std::min<uint64_t>(most / inner_count, instruction[Field::iter_out] - o);
        } else {
            part.inner.count = std::min<uint64_t>(most, inner_count - i);
        }
        // A loop of one iteration adds nothing, whatever its factors are.
        for (Loop *loop : {&part.outer, &part.inner})
            if (loop->count == 1)
                *loop = {1, 0, 0, 0};
        return part;
    }

    void run_alu_(const Part &part, AluOp operation, const int32_t *immediate, uint32_t factor)
    {
        const Alu alu = {scratchpads_.accumulators, scratchpads_.accumulator_words,
                         parameters_.acc_width == 16, parameters_.table_elements,
                         parameters_.round_twice != 0};
        switch (scratchpads_.accumulator_words) {
        case 4:
            return run_alu<4>(alu, operation, *uops_, part, immediate, factor);
        case 8:
            return run_alu<8>(alu, operation, *uops_, part, immediate, factor);
        default:
            return run_alu<16>(alu, operation, *uops_, part, immediate, factor);
        }
    }

    const Parameters parameters_;
    const Dram dram_;
    Scratchpads scratchpads_;
    MicroOpSets sets_;
    Gemm gemm_;
    int32_t padding_of_load_, padding_of_compute_;
    // A row of results on its way to inputs.
    std::vector<uint8_t> forwarded_;
    // Of the GEMM or ALU instruction in progress: its micro-ops, its next iteration, of both loops,
    // and how many.
    MicroOps *uops_;
    uint64_t next_, iterations_;
};

}  // namespace

std::unique_ptr<Executor> make_executor(const Parameters &parameters, const Dram &dram)
{
    return std::make_unique<Engine>(parameters, dram);
}

}  // namespace vta::LANES
