// A `Loader` of hw/dma: transfers in turn, each with its data and its padding.

#pragma once

#include "bursts.hpp"
#include "queue.hpp"

namespace estimate {

class Loader {
  public:
    explicit Loader(const Parameters& parameters) : walker(parameters), parameters(parameters) {}

    bool has_room(const Transfer& transfer) const { return !transfer.words || walker.has_room(); }
    Time room_from(const Transfer& transfer) const { return transfer.words ? walker.room_from() : 0; }

    // A transfer is issued at `now`. It may end at once.
    void issue(Time now, Instruction& instruction) {
        const Transfer& transfer = instruction.transfer;
        if (transfer.words) walker.command(now, transfer.rows);
        turns.push({&instruction, now + parameters.issue_to_request, transfer.words});
        if (turns.size() == 1) begin();
    }

    // When the next word can be taken from the bus.
    Time takes_from() const { return next_word; }
    Time cycles_per_word() const { return word_cycles; }

    // Words still to come of the transfer whose turn it is.
    std::int64_t words_left() const { return turns.front().words_left; }

    // `count` words have come, the last at `last`. Says whether a transfer has ended.
    bool receive(std::int64_t count, Time last) {
        Turn& turn = turns.front();
        turn.words_left -= count;
        next_word = last + word_cycles;
        if (turn.words_left) return false;
        end(last);
        return true;
    }

    BurstWalker walker;

  private:
    struct Turn {
        Instruction* instruction;
        Time from;  // when it can begin
        std::int64_t words_left;
    };

    // The first of `turns` begins, and ends if no data are to come.
    void begin() {
        const Turn& turn = turns.front();
        begun = std::max(turn.from, ended + 1);
        next_word = begun - 1;
        word_cycles = parameters.kinds[turn.instruction->transfer.memory].cycles_per_word;
        if (!turn.words_left) end(0);
    }

    void end(Time last_word) {
        Instruction& instruction = *turns.front().instruction;
        const Transfer& transfer = instruction.transfer;
        // Words are used in the cycle after they were on the bus.
        ended = transfer.words ? last_word + word_cycles : begun;
        if (transfer.padding.cycles) ended = end_of_padding(transfer, ended);
        instruction.done = ended + parameters.word_to_done - 1;
        turns.pop();
        if (!turns.empty()) begin();
    }

    // When a transfer with padding ends whose words end at `end`.
    Time end_of_padding(const Transfer& transfer, Time end) const {
        const Kind& kind = parameters.kinds[transfer.memory];
        const Padding& padding = transfer.padding;
        const std::int64_t writes = transfer.words * kind.cycles_per_word / kind.words_per_write;
        const Time left = transfer.words ? end - begun + 1 - writes : 0;
        if (!transfer.words) end = begun - 1;
        // What ends with padding ends in the cycle after it.
        const Time to_come = padding.cycles - left - padding.idle(left);
        return to_come > 0 ? end + to_come + 1 : end;
    }

    const Parameters& parameters;
    Ring<Turn, PLACES> turns;
    Time begun = 0, ended = -1;
    Time next_word = 0, word_cycles = 1;
};

}  // namespace estimate
