// A `Loader` of hw/dma: transfers in turn, each with its data and its padding.

#pragma once

#include "bursts.hpp"
#include "queue.hpp"

namespace estimate {

struct Done {
    std::uint32_t instruction;
    Time at;
};

class Loader {
  public:
    explicit Loader(const Parameters& parameters) : walker(parameters), parameters(parameters) {}

    bool has_room(const Transfer& transfer) const { return !transfer.words || walker.has_room(); }
    Time room_from(const Transfer& transfer) const { return transfer.words ? walker.room_from() : 0; }

    // A transfer is issued at `now`; `done` gets those that end without further data.
    void issue(Time now, std::uint32_t instruction, const Transfer& transfer, Queue<Done>& done) {
        if (transfer.words) walker.command(now, transfer.rows);
        turns.push({instruction, now + parameters.issue_to_request, &transfer, transfer.words, 0});
        if (turns.size() == 1) begin(done);
    }

    // When the next word can be taken from the bus.
    Time takes_from() const { return next_word; }
    Time cycles_per_word() const { return parameters.kinds[turns.front().transfer->memory].cycles_per_word; }

    // Words still to come of the transfer whose turn it is.
    std::int64_t words_left() const { return turns.front().words_left; }

    // `count` words have come, the last at `last`.
    void receive(std::int64_t count, Time last, Queue<Done>& done) {
        Turn& turn = turns.front();
        turn.words_left -= count;
        next_word = last + cycles_per_word();
        turn.last_word = last;
        if (!turn.words_left) end(done);
    }

    BurstWalker walker;

  private:
    struct Turn {
        std::uint32_t instruction;
        Time from;  // when it can begin
        const Transfer* transfer;
        std::int64_t words_left;
        Time last_word;
    };

    // The first of `turns` begins, and ends if no data are to come.
    void begin(Queue<Done>& done) {
        begun = std::max(turns.front().from, ended + 1);
        next_word = begun - 1;
        if (!turns.front().words_left) end(done);
    }

    void end(Queue<Done>& done) {
        const Turn turn = turns.front();
        const Transfer& transfer = *turn.transfer;
        const Kind& kind = parameters.kinds[transfer.memory];
        // Words are used in the cycle after they were on the bus.
        Time end = transfer.words ? turn.last_word + kind.cycles_per_word : begun;
        const Padding& padding = transfer.padding;
        if (padding.cycles) {
            const std::int64_t writes = transfer.words * kind.cycles_per_word / kind.words_per_write;
            const Time left = transfer.words ? end - begun + 1 - writes : 0;
            if (!transfer.words) end = begun - 1;
            // What ends with padding ends in the cycle after it.
            const Time to_come = padding.cycles - left - padding.idle(left);
            if (to_come > 0) end += to_come + 1;
        }
        ended = end;
        done.push({turn.instruction, end + parameters.word_to_done - 1});
        turns.pop();
        if (!turns.empty()) begin(done);
    }

    const Parameters& parameters;
    Queue<Turn> turns;
    Time begun = 0, ended = -1;
    Time next_word = 0;
};

}  // namespace estimate
