#include "instruction.h"

#include <algorithm>

namespace vta {
namespace {

bool is_padding(uint32_t memory)
{
    return memory == uint32_t(Padding::LOAD) || memory == uint32_t(Padding::COMPUTE);
}

// The module to which fetch hands an instruction; compute for an unknown opcode or memory.
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
    const bool of_load = memory == uint32_t(Memory::INP) || memory == uint32_t(Memory::WGT) ||
                         memory == uint32_t(Memory::WGT_4BIT);
    return of_load ? Module::LOAD : Module::COMPUTE;
}

bool in(uint64_t mask, uint32_t value) { return value < 64 && mask >> value & 1; }

bool breaks(const Instruction &instruction, const Rule &rule)
{
    return in(rule.when_values, instruction[Field(rule.when_field)]) &&
           !in(rule.values, instruction[Field(rule.field)]);
}

// Whether `isa.illegal_reason` gives no reason for a known instruction.
bool is_legal(const Instruction &instruction, const Rule *begin, const Rule *end)
{
    const bool without_previous = instruction.module == Module::LOAD;
    const bool without_next = instruction.module == Module::STORE;
    if (without_previous && (instruction[Field::pop_prev] || instruction[Field::push_prev]))
        return false;
    if (without_next && (instruction[Field::pop_next] || instruction[Field::push_next]))
        return false;
    return std::none_of(begin, end, [&](const Rule &rule) { return breaks(instruction, rule); });
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

Decoder::Decoder(const Parameters &parameters) : parameters_(parameters)
{
    for (unsigned number = 0; number < OPCODES; number++) {
        // The fields that all instructions have are those of FINISH, which has no others.
        const bool known = parameters.known >> number & 1;
        const unsigned from = known ? number : unsigned(Opcode::FINISH);
        Layout &layout = layouts_[number];
        for (unsigned field = 0; field < FIELDS; field++) {
            const unsigned offset = parameters.offset[from][field];
            if (const unsigned width = parameters.width[from][field])
                layout.places[layout.fields++] = {uint8_t(field), uint8_t(offset / 64),
                                                  uint8_t(offset % 64),
                                                  uint32_t((uint64_t(1) << width) - 1)};
        }
        // Other bits of FINISH are ignored.
        for (unsigned word = 0; word < 2; word++)
            layout.covered[word] =
                from == unsigned(Opcode::FINISH) ? ~uint64_t(0) : parameters.covered[from][word];
    }
}

Instruction Decoder::operator()(uint64_t low, uint64_t high) const
{
    Instruction result{};
    const unsigned number = low & (OPCODES - 1);
    const bool known = parameters_.known >> number & 1;
    const Layout &layout = layouts_[number];
    const uint64_t words[] = {low, high};
    for (unsigned at = 0; at < layout.fields; at++) {
        const Place &place = layout.places[at];
        result.values[place.field] = words[place.word] >> place.offset & place.mask;
    }
    result.opcode = Opcode(number);
    uint32_t &memory = result.values[unsigned(Field::memory)];
    // As `isa.memory_id` encodes it.
    if (parameters_.wgt_4bit && result.opcode == Opcode::LOAD && memory == uint32_t(Memory::OUT))
        memory = uint32_t(Memory::WGT_4BIT);
    result.sets_padding = known && result.opcode == Opcode::LOAD && parameters_.pad_value &&
                          is_padding(result[Field::memory]);
    result.module = module_of(result, known);
    result.legal = known && !(low & ~layout.covered[0]) && !(high & ~layout.covered[1]) &&
                   is_legal(result, parameters_.rules + parameters_.first_rule[number],
                            parameters_.rules + parameters_.first_rule[number + 1]);
    if (result.legal)
        find_tokens(result);
    return result;
}

}  // namespace vta
