#include "instruction.h"

namespace vta {
namespace {

uint32_t extract(uint64_t low, uint64_t high, unsigned offset, unsigned width)
{
    const uint64_t word = offset < 64 ? low >> offset : high >> (offset - 64);
    return static_cast<uint32_t>(word & ((uint64_t(1) << width) - 1));
}

bool is_padding(uint32_t memory)
{
    return memory == uint32_t(Padding::LOAD) || memory == uint32_t(Padding::COMPUTE);
}

// The module to which fetch hands an instruction; what is illegal goes to compute.
Module module_of(const Instruction &instruction, bool known)
{
    if (!known)
        return Module::COMPUTE;
    if (instruction.opcode == Opcode::STORE)
        return Module::STORE;
    if (instruction.opcode != Opcode::LOAD)
        return Module::COMPUTE;
    const uint32_t memory = instruction[Field::memory];
    if (instruction.sets_padding)
        return memory == uint32_t(Padding::LOAD) ? Module::LOAD : Module::COMPUTE;
    const bool of_load = memory == uint32_t(Memory::INP) || memory == uint32_t(Memory::WGT);
    return of_load ? Module::LOAD : Module::COMPUTE;
}

bool is_legal_load(const Instruction &load)
{
    if (load[Field::reserved])
        return false;
    if (!load.sets_padding)
        return load[Field::memory] <= uint32_t(Memory::ACC_8BIT) &&
               load[Field::memory] != uint32_t(Memory::OUT);
    for (const Field field : UNUSED_BY_SET_PADDING)
        if (load[field])
            return false;
    return true;
}

bool is_legal_store(const Instruction &store)
{
    return !store[Field::reserved] && store[Field::memory] == uint32_t(Memory::OUT) &&
           !store[Field::y_pad_0] && !store[Field::y_pad_1] && !store[Field::x_pad_0] &&
           !store[Field::x_pad_1];
}

bool is_legal_alu(const Parameters &parameters, const Instruction &alu)
{
    if (alu[Field::alu_opcode] <= uint32_t(AluOp::MUL))
        return true;
    return alu[Field::alu_opcode] == uint32_t(AluOp::REQUANTIZE) && parameters.requantize &&
           !alu[Field::use_immediate];
}

// The rule of `isa.InstructionSet.problem`.
bool is_legal(const Parameters &parameters, const Instruction &instruction, bool known)
{
    if (!known)
        return false;
    const bool without_previous = instruction.module == Module::LOAD;
    const bool without_next = instruction.module == Module::STORE;
    if (without_previous && (instruction[Field::pop_prev] || instruction[Field::push_prev]))
        return false;
    if (without_next && (instruction[Field::pop_next] || instruction[Field::push_next]))
        return false;
    switch (instruction.opcode) {
    case Opcode::LOAD:
        return is_legal_load(instruction);
    case Opcode::STORE:
        return is_legal_store(instruction);
    case Opcode::MULTIPLY:
        return !instruction[Field::reset];
    case Opcode::ALU:
        return is_legal_alu(parameters, instruction);
    case Opcode::GEMM:
    case Opcode::FINISH:
        break;
    }
    return true;
}

uint8_t bit(Queue queue) { return uint8_t(1u << unsigned(queue)); }

void find_tokens(Instruction &instruction)
{
    struct Neighbours {
        Queue from_previous, from_next, to_previous, to_next;
    };
    // Load has no previous neighbour and store no next one; legal instructions do not name them.
    static const Neighbours neighbours[] = {
        {Queue::COMPUTE_TO_LOAD, Queue::COMPUTE_TO_LOAD, Queue::LOAD_TO_COMPUTE,
         Queue::LOAD_TO_COMPUTE},
        {Queue::LOAD_TO_COMPUTE, Queue::STORE_TO_COMPUTE, Queue::COMPUTE_TO_LOAD,
         Queue::COMPUTE_TO_STORE},
        {Queue::COMPUTE_TO_STORE, Queue::COMPUTE_TO_STORE, Queue::STORE_TO_COMPUTE,
         Queue::STORE_TO_COMPUTE},
    };
    const Neighbours &of = neighbours[unsigned(instruction.module)];
    if (instruction[Field::pop_prev])
        instruction.pops |= bit(of.from_previous);
    if (instruction[Field::pop_next])
        instruction.pops |= bit(of.from_next);
    if (instruction[Field::push_prev])
        instruction.pushes |= bit(of.to_previous);
    if (instruction[Field::push_next])
        instruction.pushes |= bit(of.to_next);
}

}  // namespace

Instruction decode(const Parameters &parameters, uint64_t low, uint64_t high)
{
    Instruction result{};
    const unsigned number = low & (OPCODES - 1);
    result.opcode = Opcode(number);
    const bool known = parameters.known >> number & 1;
    // What all instructions have lies where FINISH, which has nothing else, has it.
    const unsigned layout = known ? number : unsigned(Opcode::FINISH);
    for (unsigned field = 0; field < FIELDS; field++)
        if (const unsigned width = parameters.width[layout][field])
            result.values[field] = extract(low, high, parameters.offset[layout][field], width);
    result.sets_padding = known && result.opcode == Opcode::LOAD && parameters.pad_value &&
                          is_padding(result[Field::memory]);
    result.module = module_of(result, known);
    const bool unused = low & ~parameters.covered[layout][0] || high & ~parameters.covered[layout][1];
    result.legal = is_legal(parameters, result, known) &&
                   (result.opcode == Opcode::FINISH || !unused);
    if (result.legal)
        find_tokens(result);
    return result;
}

}  // namespace vta
