// Fetch, the queues of load, compute and store, their tokens, and the report of a fault.

#pragma once

#include <memory>
#include <vector>

#include "executor.h"

namespace vta {

class Machine {
public:
    Machine(const Parameters &parameters, const Dram &dram, std::unique_ptr<Executor> executor);

    // A new run of `count` instructions at byte `address`.
    void begin(uint64_t address, uint64_t count);

    // Continues for about so many seconds; returns whether the run has ended, and how in `report`.
    bool advance(double seconds, Report &report);

    // Ends the run with the fault of the lowest instruction that could go on, if there is one.
    void time_out(Report &report) const;

    Executor &executor() { return *executor_; }

private:
    struct Entry {
        uint64_t index;
        const Instruction *instruction;
        // The same, in streams so long that what was decoded is overwritten.
        Instruction own;
    };

    struct ModuleQueue {
        Entry entries[QUEUE_DEPTH];
        unsigned first, count;
        // Of the oldest: its tokens are taken; a part of it is executed; all but its pushes is done.
        bool started, in_progress, executed;
        Cause fault;

        const Entry &oldest() const { return entries[first]; }
        bool has_room() const { return count < QUEUE_DEPTH; }
    };

    bool can_step(const ModuleQueue &queue) const;
    bool can_fetch() const;
    bool has_all(uint8_t pops) const;
    bool can_push(uint8_t pushes) const;
    bool others_done() const;
    Module choose() const;
    void fetch();
    Cause look();
    void step(ModuleQueue &queue);
    void retire(ModuleQueue &queue);
    void report_end(Report &report) const;
    void fill_in(Report &report) const;
    ModuleQueue &queue_of(Module module) { return queues_[unsigned(module)]; }

    // An instruction and the bits that it was decoded from.
    struct Decoded {
        uint64_t words[2];
        Instruction instruction;
    };

    const Decoder decode_;
    // By place in the stream: runs of the same program decode it once.
    std::vector<Decoded> decoded_;
    const Dram dram_;
    std::unique_ptr<Executor> executor_;

    ModuleQueue queues_[3];
    uint32_t tokens_[TOKEN_QUEUES];
    uint64_t address_, count_, next_;
    // The instruction that fetch has looked at, if it holds one.
    const Instruction *fetched_;
    bool holds_one_, fetch_stopped_, finished_;
    Cause fetch_fault_;
};

}  // namespace vta
