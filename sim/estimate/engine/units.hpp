// GEMM and ALU: one micro-op per cycle each, and what keeps one of them from going on.

#pragma once

#include "loader.hpp"
#include "loops.hpp"

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
        const std::int64_t leaves = queue.issued - depth;
        if (leaves < 0) return 0;
        return leaves < std::int64_t(queue.begun.size()) ? queue.begun[leaves] + 1 : NEVER;
    }

    // Instruction `index` is issued at `now`; one that is not independent waits for all of the other
    // unit so far.
    void issue(Time now, std::uint32_t index, const Loops& loops, bool alu, bool independent) {
        waiting[alu].issued++;
        waiting[alu].commands.push({index, now, &loops, independent ? 0 : waiting[!alu].issued});
    }

    // Accumulators from `begin` up to `end` are loaded: a table among them has to be read again.
    // Writes of GEMM or the ALU to a table are not modelled.
    void load(std::int64_t begin, std::int64_t end) {
        if (begin < table + parameters.table_elements && table < end) table = NO_TABLE;
    }

    // When the unit takes the next instruction of its queue, as far as known.
    Time begins(bool alu) const {
        if (waiting[alu].commands.empty()) return NEVER;
        const Command& next = waiting[alu].commands.front();
        const std::vector<Time>& others = waiting[!alu].done;
        if (next.after > std::int64_t(others.size())) return NEVER;
        const Time free = (alu ? this->alu.last : gemm.last) - parameters.issue_to_item + 1;
        const Time before = next.after ? others[next.after - 1] : 0;
        return std::max({next.issued, free, before});
    }

    // The unit takes that instruction at `now`; returns its index.
    std::uint32_t begin(Time now, bool alu) {
        const Command next = waiting[alu].commands.front();
        waiting[alu].commands.pop();
        waiting[alu].begun.push_back(now);
        if (alu) begin_alu(now, next.instruction, *next.loops);
        else begin_gemm(now, next.instruction, *next.loops);
        return next.instruction;
    }

    // The next time at which a unit is done with an instruction.
    Time ends(bool alu) const { return done[alu].empty() ? NEVER : done[alu].front().at; }

    Done end(bool alu) {
        const Done ended = done[alu].front();
        done[alu].pop();
        waiting[alu].done.push_back(ended.at);
        return ended;
    }

  private:
    struct Command {
        std::uint32_t instruction;
        Time issued;
        const Loops* loops;
        std::int64_t after;  // so many of the other unit
    };
    struct Waiting {
        Queue<Command> commands;
        std::int64_t issued = 0;
        std::vector<Time> begun, done;
    };

    void begin_gemm(Time now, std::uint32_t instruction, const Loops& loops) {
        const Time valid = std::max(now + parameters.issue_to_item, gemm.last + 1);
        Time begin = valid;
        const bool meets = alu.remaining && (alu.banks & loops.banks);
        if (meets) {
            // The ALU's writes in flight to this bank come first.
            const Time done = std::min(std::max<Time>(0, valid - alu.resumes), alu.remaining);
            if (done) begin = std::max(begin, std::min(valid, alu.last + 1) + parameters.alu_latency + 1);
        } else if (alu.written_banks & loops.banks) {
            begin = std::max(begin, alu.last + parameters.alu_latency + 2);
        }
        begin += shared_reads(loops, begin);
        gemm.last = begin + loops.items - 1;
        gemm.many_uops = loops.many_uops;
        gemm.begin = begin;
        for (int bank = 0; bank < 2; bank++)
            if (loops.banks >> bank & 1) gemm_in_bank[bank] = gemm.last;
        if (meets) pause_alu(valid);
        done[0].push({instruction, gemm.last + parameters.gemm_latency});
    }

    void begin_alu(Time now, std::uint32_t instruction, const Loops& loops) {
        const Time valid = std::max(now + parameters.issue_to_item, alu.last + 1);
        Time begin = valid + hazard(valid, loops);
        if (loops.requantizes && loops.works) {
            begin = std::max(begin, alu.last + parameters.alu_latency + 2) + parameters.requantize_parameters + 1;
        }
        if (loops.table >= 0) {
            if (loops.table != table) {
                begin = std::max(begin, alu.last + parameters.alu_latency + 2) + parameters.table_words + 1;
            }
            table = loops.last_table;
        }
        for (int bank = 0; bank < 2 && parameters.overlap; bank++)
            if (loops.banks >> bank & 1) begin = std::max(begin, gemm_in_bank[bank] + parameters.gemm_latency);
        alu.resumes = begin;
        alu.remaining = loops.items + loops.stalls;
        alu.last = begin + alu.remaining - 1;
        alu.banks = alu.written_banks = parameters.overlap ? loops.banks : 0;
        alu.many_uops = loops.many_uops;
        alu.tail = &loops.last;
        // The ALU has priority in reading micro-ops.
        if (gemm.many_uops && gemm.last >= valid && loops.works) {
            const Time until = std::min(gemm.last, alu.last);
            delay_gemm(loops.many_uops ? std::max<Time>(0, until - begin + 1) : 1);
        }
        done[1].push({instruction, alu.last + parameters.alu_latency + 2});
    }

    // Cycles that GEMM loses to micro-op reads of the ALU when it begins at `begin`.
    Time shared_reads(const Loops& loops, Time begin) const {
        if (!loops.many_uops || !alu.many_uops || !alu.remaining) return 0;
        return std::max<Time>(0, alu.last - std::max(begin, alu.resumes) + 1);
    }

    void delay_gemm(Time cycles) {
        const Time before = gemm.last;
        gemm.last += cycles;
        if (!done[0].empty()) done[0].back().at += cycles;
        for (Time& last : gemm_in_bank)
            if (last == before) last = gemm.last;
    }

    // GEMM enters the bank of the ALU's latest instruction at `now`.
    void pause_alu(Time now) {
        const Time worked = now - alu.resumes;
        if (worked >= alu.remaining) return;
        if (worked > 0) alu.remaining -= worked;
        alu.resumes = gemm.last + parameters.gemm_latency;
        alu.last = alu.resumes + alu.remaining - 1;
        if (!done[1].empty()) done[1].back().at = alu.last + parameters.alu_latency + 2;
    }

    // How long the first items wait for the last ones of the instruction before.
    Time hazard(Time valid, const Loops& loops) const {
        if (!alu.tail) return 0;
        Time wait = 0;
        for (const Edge& mine : loops.first)
            for (const Edge& other : *alu.tail)
                if (other.dst == mine.dst || other.dst == mine.src)
                    wait = std::max(wait, alu.last - other.distance + parameters.alu_latency + 1 - valid - mine.distance);
        return wait;
    }

    const Parameters& parameters;
    Waiting waiting[2];
    Queue<Done> done[2];
    struct {
        Time last = -1, begin = -1;  // when items of the latest instruction are taken
        bool many_uops = false;
    } gemm;
    struct {
        Time last = -NEVER, resumes = 0;
        Time remaining = 0;  // cycles of work from `resumes` on
        std::uint8_t banks = 0, written_banks = 0;
        bool many_uops = false;
        const std::vector<Edge>* tail = nullptr;
    } alu;
    static constexpr std::int64_t NO_TABLE = -NEVER;
    std::int64_t table = NO_TABLE;  // that the lanes have
    Time gemm_in_bank[2] = {-NEVER, -NEVER};
};

}  // namespace estimate
