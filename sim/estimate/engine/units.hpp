// GEMM and ALU: one micro-op per cycle each, and what keeps one of them from going on.

#pragma once

#include "instruction.hpp"
#include "queue.hpp"

namespace estimate {

// An instruction waits in the queue before its unit, which it enters in the order of time. With the
// extension OVERLAP the halves of the accumulators are banks. A unit enters a bank when the
// other one has no write in flight there; GEMM has priority, and an ALU instruction in its bank
// stalls until GEMM has left it.
class Units {
  public:
    explicit Units(const Parameters& parameters) : parameters(parameters) {}

    // From when on the queue of GEMM, or the ALU, has room for an instruction, as far as known.
    Time room_from(bool alu) const {
        const Waiting& queue = waiting[alu];
        const std::int64_t depth = alu ? parameters.alu_commands : parameters.gemm_commands;
        const std::int64_t leaves = std::int64_t(queue.commands.count()) - depth;
        if (leaves < 0) return 0;
        return leaves < std::int64_t(queue.begun.count()) ? queue.begun.numbered(std::size_t(leaves)) + 1 : NEVER;
    }

    // An instruction is issued at `now`; one that is not independent waits for all of the other unit
    // so far.
    void issue(Time now, Instruction& instruction, bool alu) {
        const std::size_t after = instruction.independent ? 0 : waiting[!alu].commands.count();
        waiting[alu].commands.push({&instruction, now, after});
        if (waiting[alu].commands.size() > 1) return;
        begins[alu] = begin(alu);
        plan();
    }

    // `count` accumulators from `begin` on are loaded, or written by a unit: a table among them has to
    // be read again.
    void write(std::int64_t begin, std::int64_t count) {
        if (count && begin < table + parameters.table_elements && table < begin + count) table = NO_TABLE;
    }

    // When a unit next takes an instruction or is done with one, as far as known.
    Time next_at() const { return next.at; }

    // That happens. Says whether an instruction has ended.
    bool step() {
        const Event event = next;
        if (event.ends) {
            const Done& ended = done[event.alu].front();
            ended.instruction->done = ended.at;
            waiting[event.alu].done.push(ended.at);
            done[event.alu].pop();
            ends[event.alu] = end(event.alu);
            // Commands of the other unit may wait for this one.
            if (begins[!event.alu] >= NEVER) begins[!event.alu] = begin(!event.alu);
        } else {
            Waiting& queue = waiting[event.alu];
            Instruction& instruction = *queue.commands.front().instruction;
            queue.commands.pop();
            queue.begun.push(event.at);
            instruction.begun = event.at;
            event.alu ? begin_alu(event.at, instruction) : begin_gemm(event.at, instruction);
            for (const bool alu : {false, true}) {
                begins[alu] = begin(alu);
                ends[alu] = end(alu);
            }
        }
        plan();
        return event.ends;
    }

  private:
    struct Command {
        Instruction* instruction;
        Time issued;
        std::size_t after;  // so many of the other unit
    };
    struct Waiting {
        Ring<Command, PLACES> commands;
        Ring<Time, PLACES> begun, done;
    };
    struct Done {
        Instruction* instruction;
        Time at;
    };
    struct Event {
        Time at;
        bool ends, alu;
    };

    // Of events in one cycle, ends come first, and GEMM comes before the ALU.
    void plan() {
        const Time end = std::min(ends[0], ends[1]), begin = std::min(begins[0], begins[1]);
        next.at = std::min(end, begin);
        next.ends = end <= begin;
        next.alu = next.ends ? ends[1] < ends[0] : begins[1] < begins[0];
    }

    // When the unit is done with the first instruction that it has taken.
    Time end(bool alu) const { return done[alu].empty() ? NEVER : done[alu].front().at; }

    // When the unit takes the next instruction of its queue, as far as known.
    Time begin(bool alu) const {
        if (waiting[alu].commands.empty()) return NEVER;
        const Command& first = waiting[alu].commands.front();
        const auto& others = waiting[!alu].done;
        if (first.after > others.count()) return NEVER;
        const Time free = (alu ? this->alu.last - parameters.item_to_alu : gemm.last) - parameters.issue_to_item + 1;
        const Time before = first.after ? others.numbered(first.after - 1) : 0;
        return latest(first.issued, free, before);
    }

    void begin_gemm(Time now, Instruction& instruction) {
        const Loops& loops = *instruction.loops;
        const Time valid = std::max(now + parameters.issue_to_item, gemm.last + 1);
        Time begin = valid;
        const bool meets = alu.remaining && (alu.banks & loops.banks);
        const bool takes_port = loops.adds && alu.remaining && (alu.sources & loops.banks);
        if (meets) {
            // The ALU's writes in flight to this bank come first.
            const Time done = std::min(std::max<Time>(0, valid - alu.resumes), alu.remaining);
            if (done) begin = std::max(begin, std::min(valid, alu.last + 1) + parameters.alu_latency + 1);
        } else if (alu.banks & loops.banks) {
            begin = std::max(begin, alu_written());
        }
        begin += shared_reads(loops, begin);
        gemm.last = begin + loops.items - 1;
        gemm.many_uops = loops.many_uops;
        gemm.begin = begin;
        write(loops.first_dst, loops.dsts);
        for (int bank = 0; bank < 2; bank++) {
            if (!(loops.banks >> bank & 1)) continue;
            gemm_in_bank[bank] = gemm.last;
            if (loops.adds) gemm_reads_bank[bank] = gemm.last;
        }
        if (meets) pause_alu(valid, parameters.gemm_latency);
        else if (takes_port) pause_alu(valid + gemm_reads(), gemm_reads() + 1);
        done[0].push({&instruction, gemm.last + parameters.gemm_latency - parameters.early_end});
    }

    void begin_alu(Time now, Instruction& instruction) {
        const Loops& loops = *instruction.loops;
        const Time valid = std::max(now + parameters.issue_to_item + parameters.item_to_alu, alu.last + 1);
        // The lanes take all columns of an item before the next one.
        const Time free = std::max(valid, alu.last + parameters.alu_cycles);
        Time begin = std::max(free, valid + hazard(valid, loops));
        // The port of micro-ops is GEMM's in the cycle after a stall, in which the ALU moves on, and the
        // ALU's in the next one, in which it stalls.
        const Time lost = alu.ends_slowly && begin == alu.last + 1 && gemm.many_uops && gemm.last >= valid;
        begin += lost;
        if (loops.parameters >= 0) {
            const auto readable = [this](std::int64_t index) { return alu_readable(index); };
            begin = std::max(begin, parameters_read(parameters, free + lost, loops.parameters, readable));
        }
        if (loops.has_factor) begin = std::max(begin, alu_written()) + parameters.alu_cycles + 1;
        if (loops.table >= 0) {
            if (loops.table != table) {
                begin = std::max(begin, alu_written()) + parameters.table_words + 1;
            }
            table = loops.last_table;
        }
        write(loops.first_dst, loops.dsts);
        const std::uint8_t banks = parameters.overlap ? loops.banks : 0;
        for (int bank = 0; bank < 2; bank++) {
            if (loops.sources >> bank & 1) begin = std::max(begin, gemm_reads_bank[bank] + gemm_reads() + 1);
            if (banks >> bank & 1) begin = std::max(begin, gemm_in_bank[bank] + parameters.gemm_latency);
        }
        alu.resumes = begin;
        alu.remaining = loops.items + loops.stalls;
        alu.last = begin + alu.remaining - 1;
        alu.banks = banks;
        alu.sources = loops.sources;
        alu.many_uops = loops.many_uops;
        alu.ends_slowly = loops.ends_slowly;
        alu.items = loops.items;
        alu.tail = &loops.last;
        // The ALU has priority in reading micro-ops.
        if (gemm.many_uops && gemm.last >= valid && loops.works) {
            const Time until = std::min(gemm.last, alu.last);
            delay_gemm(loops.many_uops ? std::min(std::max<Time>(0, until - begin + 1), loops.items) : 1 + 2 * lost);
        }
        done[1].push({&instruction, alu_done()});
    }

    // Cycles that GEMM loses to micro-op reads of the ALU when it begins at `begin`.
    Time shared_reads(const Loops& loops, Time begin) const {
        if (!loops.many_uops || !alu.many_uops || !alu.remaining) return 0;
        return std::min(std::max<Time>(0, alu.last - std::max(begin, alu.resumes) + 1), alu.items);
    }

    void delay_gemm(Time cycles) {
        const Time before = gemm.last;
        gemm.last += cycles;
        if (!done[0].empty()) done[0].back().at += cycles;
        for (Time* banks : {gemm_in_bank, gemm_reads_bank})
            for (int bank = 0; bank < 2; bank++)
                if (banks[bank] == before) banks[bank] = gemm.last;
    }

    // GEMM enters the bank of the ALU's latest instruction at `now`, or reads where that has its
    // sources, until so many cycles after its last item.
    void pause_alu(Time now, Time latency) {
        const Time worked = now - alu.resumes;
        if (worked >= alu.remaining) return;
        if (worked > 0) alu.remaining -= worked;
        alu.resumes = gemm.last + latency;
        alu.last = alu.resumes + alu.remaining - 1;
        if (!done[1].empty()) done[1].back().at = alu_done();
    }

    // From when on the ALU's last write can be read, and when its latest instruction is done.
    Time alu_written() const { return alu.last + parameters.alu_latency + 2; }
    Time alu_done() const { return alu_written() - parameters.early_end; }

    // When an accumulator can be read that the ALU's latest instruction may have written.
    Time alu_readable(std::int64_t index) const {
        Time from = -NEVER;
        if (alu.tail)
            for (const Edge& other : *alu.tail)
                if (other.dst == index) from = std::max(from, alu.last - other.distance + parameters.alu_latency + 2);
        return from;
    }

    // From an item of GEMM being taken to its accumulator being read.
    Time gemm_reads() const { return parameters.gemm_latency - 3; }

    // How long the first items wait for the last ones of the instruction before.
    Time hazard(Time valid, const Loops& loops) const {
        const Time most = alu.last + parameters.alu_latency + 1 - valid;
        if (!alu.tail || most <= 0) return 0;
        Time wait = 0;
        for (const Edge& mine : loops.first)
            for (const Edge& other : *alu.tail)
                if (other.dst == mine.dst || other.dst == mine.src)
                    wait = std::max(wait, most - other.distance - mine.distance);
        return wait;
    }

    const Parameters& parameters;
    Waiting waiting[2];
    Ring<Done, PLACES> done[2];
    Time begins[2] = {NEVER, NEVER}, ends[2] = {NEVER, NEVER};  // when each unit next does, as far as known
    Event next = {NEVER, true, false};
    struct {
        Time last = -1, begin = -1;  // when items of the latest instruction are taken
        bool many_uops = false;
    } gemm;
    struct {
        Time last = -NEVER, resumes = 0;
        Time remaining = 0;  // cycles of work from `resumes` on
        std::int64_t items = 0;
        std::uint8_t banks = 0, sources = 0;
        bool many_uops = false, ends_slowly = false;
        const Edges* tail = nullptr;
    } alu;
    static constexpr std::int64_t NO_TABLE = -NEVER;
    std::int64_t table = NO_TABLE;  // that the lanes have
    Time gemm_in_bank[2] = {-NEVER, -NEVER}, gemm_reads_bank[2] = {-NEVER, -NEVER};
};

}  // namespace estimate
