#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace vta {
namespace {

// What `choose` returns if no module can take a step.
constexpr Module NONE = Module(0xff);
// Steps between two readings of the clock.
constexpr unsigned STEPS_PER_READING = 64;
// Instructions that are kept decoded.
constexpr uint64_t MAX_DECODED = 1 << 16;

using Clock = std::chrono::steady_clock;

}  // namespace

Machine::Machine(const Parameters &parameters, const Dram &dram,
                 std::unique_ptr<Executor> executor)
    : decode_(parameters), dram_(dram), executor_(std::move(executor))
{
    begin(0, 0);
}

void Machine::begin(uint64_t address, uint64_t count)
{
    for (ModuleQueue &queue : queues_) {
        queue.first = queue.count = 0;
        queue.started = queue.in_progress = queue.executed = false;
        queue.fault = Cause::NONE;
    }
    std::memset(tokens_, 0, sizeof tokens_);
    std::memset(executor_->counters, 0, sizeof executor_->counters);
    executor_->begin();
    address_ = address;
    count_ = count;
    next_ = 0;
    holds_one_ = fetch_stopped_ = finished_ = false;
    fetch_fault_ = Cause::NONE;
    const uint64_t kept = std::min(count, MAX_DECODED);
    if (decoded_.size() < kept)
        decoded_.resize(kept, {{0, 0}, decode_(0, 0)});
}

bool Machine::advance(double seconds, Report &report)
{
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    unsigned steps = 0;
    while (!finished_) {
        const Module module = choose();
        if (module == NONE)
            break;
        bool paused = false;
        if (module == Module::FETCH) {
            fetch();
        } else {
            step(queue_of(module));
            paused = queue_of(module).in_progress;
        }
        if ((paused || ++steps % STEPS_PER_READING == 0) && Clock::now() > end)
            return false;
    }
    report_end(report);
    return true;
}

// The module with the earliest instruction of those that can take a step. What fetch looks at is
// later than all that it has handed on.
Module Machine::choose() const
{
    Module chosen = NONE;
    uint64_t earliest = ~uint64_t(0);
    for (unsigned number = 0; number < 3; number++) {
        const ModuleQueue &queue = queues_[number];
        if (queue.count && queue.oldest().index < earliest && can_step(queue)) {
            earliest = queue.oldest().index;
            chosen = Module(number);
        }
    }
    return chosen == NONE && can_fetch() ? Module::FETCH : chosen;
}

bool Machine::can_step(const ModuleQueue &queue) const
{
    const Instruction &instruction = *queue.oldest().instruction;
    if (queue.fault != Cause::NONE)
        return false;
    if (queue.in_progress)
        return true;
    if (queue.executed)
        return can_push(instruction.pushes);
    if (queue.started)
        return others_done();
    return has_all(instruction.pops);
}

bool Machine::can_fetch() const
{
    return !fetch_stopped_ && (!holds_one_ || queues_[unsigned(fetched_->module)].has_room());
}

bool Machine::has_all(uint8_t pops) const
{
    for (unsigned queue = 0; queue < TOKEN_QUEUES; queue++)
        if (pops >> queue & 1 && !tokens_[queue])
            return false;
    return true;
}

bool Machine::can_push(uint8_t pushes) const
{
    for (unsigned queue = 0; queue < TOKEN_QUEUES; queue++)
        if (pushes >> queue & 1 && tokens_[queue] >= TOKEN_LIMIT)
            return false;
    return true;
}

// Whether load and store have retired everything, for FINISH, after which nothing comes.
bool Machine::others_done() const
{
    return !queues_[unsigned(Module::LOAD)].count && !queues_[unsigned(Module::STORE)].count;
}

// Looks at the next instruction, unless it has, and hands it on if there is room.
void Machine::fetch()
{
    if (!holds_one_) {
        fetch_fault_ = look();
        if (fetch_fault_ != Cause::NONE) {
            fetch_stopped_ = true;
            return;
        }
        holds_one_ = true;
    }
    ModuleQueue &queue = queue_of(fetched_->module);
    if (!queue.has_room())
        return;
    Entry &entry = queue.entries[(queue.first + queue.count++) % QUEUE_DEPTH];
    entry.index = next_;
    entry.instruction = fetched_;
    if (count_ > MAX_DECODED) {
        entry.own = *fetched_;
        entry.instruction = &entry.own;
    }
    holds_one_ = false;
    fetch_stopped_ = ++next_ == count_;
}

Cause Machine::look()
{
    if (count_ == 0 || address_ % INSTRUCTION_BYTES)
        return Cause::BAD_STREAM;
    const uint64_t address = address_ + next_ * INSTRUCTION_BYTES;
    if (!dram_.has(address, address + INSTRUCTION_BYTES))
        return Cause::BUS_ERROR;
    uint64_t words[2];
    std::memcpy(words, dram_.at(address), sizeof words);
    Decoded &known = decoded_[next_ % MAX_DECODED];
    if (known.words[0] != words[0] || known.words[1] != words[1])
        known = {{words[0], words[1]}, decode_(words[0], words[1])};
    fetched_ = &known.instruction;
    const bool is_last = next_ == count_ - 1;
    return (fetched_->opcode == Opcode::FINISH) == is_last ? Cause::NONE : Cause::BAD_STREAM;
}

// Takes the oldest instruction as far as it can go, or a part of the way if it is a long one.
void Machine::step(ModuleQueue &queue)
{
    const Instruction &instruction = *queue.oldest().instruction;
    if (!instruction.legal) {
        queue.fault = Cause::ILLEGAL_INSTRUCTION;
        return;
    }
    const bool is_finish = instruction.opcode == Opcode::FINISH;
    if (!queue.started) {
        for (unsigned pop = 0; pop < TOKEN_QUEUES; pop++)
            tokens_[pop] -= instruction.pops >> pop & 1;
        queue.started = true;
        if (!is_finish) {
            queue.fault = executor_->start(instruction);
            if (queue.fault != Cause::NONE)
                return;
            queue.in_progress = true;
        }
    }
    if (is_finish && !others_done())
        return;
    if (queue.in_progress) {
        if (!executor_->proceed(instruction))
            return;
        queue.in_progress = false;
    }
    queue.executed = true;
    if (can_push(instruction.pushes))
        retire(queue);
}

void Machine::retire(ModuleQueue &queue)
{
    const Instruction &instruction = *queue.oldest().instruction;
    for (unsigned push = 0; push < TOKEN_QUEUES; push++)
        tokens_[push] += instruction.pushes >> push & 1;
    finished_ = instruction.opcode == Opcode::FINISH;
    queue.first = (queue.first + 1) % QUEUE_DEPTH;
    queue.count--;
    queue.started = queue.executed = false;
}

// The fault of the lowest instruction; if there is none, the deadlock of the lowest blocked one.
void Machine::report_end(Report &report) const
{
    fill_in(report);
    if (finished_)
        return;
    uint64_t faulty = ~uint64_t(0), blocked = ~uint64_t(0);
    Module blocked_module = NONE;
    const auto consider = [&](uint64_t index, Module module, Cause cause) {
        if (index < faulty) {
            faulty = index;
            report.instruction = index;
            report.module = uint32_t(module);
            report.cause = uint32_t(cause);
        }
    };
    if (fetch_fault_ != Cause::NONE)
        consider(next_, Module::FETCH, fetch_fault_);
    for (unsigned number = 0; number < 3; number++) {
        const ModuleQueue &queue = queues_[number];
        if (!queue.count)
            continue;
        const uint64_t index = queue.oldest().index;
        if (queue.fault != Cause::NONE) {
            consider(index, Module(number), queue.fault);
        } else if (queue.executed) {
            consider(index, Module(number), Cause::TOKEN_OVERFLOW);
        } else if (index < blocked) {
            blocked = index;
            blocked_module = Module(number);
        }
    }
    if (report.cause == uint32_t(Cause::NONE))
        consider(blocked, blocked_module, Cause::DEADLOCK);
}

void Machine::time_out(Report &report) const
{
    const Module module = choose();
    if (finished_ || module == NONE) {
        report_end(report);
        return;
    }
    fill_in(report);
    report.module = uint32_t(module);
    report.instruction =
        module == Module::FETCH ? next_ : queues_[unsigned(module)].oldest().index;
    report.cause = uint32_t(Cause::TIMEOUT);
}

void Machine::fill_in(Report &report) const
{
    report = {};
    std::memcpy(report.counters, executor_->counters, sizeof report.counters);
    std::memcpy(report.tokens, tokens_, sizeof report.tokens);
}

}  // namespace vta
