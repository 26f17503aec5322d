// A `Loader` of hw/dma: transfers in turn, each with its data and its padding.

#pragma once

#include "bursts.hpp"
#include "forwarder.hpp"
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
        if (transfer.words) walker.command(now, transfer);
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
        // Words are used in the cycle after they were on the bus.
        next_word = last + word_cycles;
        if (turn.words_left) return false;
        end();
        return true;
    }

    // `forwarder` meets what is written to the inputs with the next `count` words, of which the first
    // comes at `begin` and another one every `stride` cycles: these words, and the padding before the
    // last of them. With `all` also the padding that is left then.
    void show(Forwarder& forwarder, std::int64_t count, Time begin, Time stride, bool all) const {
        if (turns.empty() || turns.front().instruction->transfer.shape->memory != INP) return;
        const Padding& padding = turns.front().instruction->transfer.shape->padding;
        const std::int64_t group = parameters.kinds[INP].words_per_write, came = words_come();
        const Time period = group * stride;
        Time write = begin + (group - 1 - came % group) * stride + parameters.word_to_done;
        std::int64_t writes = (came + count) / group - came / group;
        Time from = next_word + parameters.word_to_done, step = padding_steps();
        for (; step < padding.cycles && writes; from++) {
            const bool is_data = from == write, is_idle = padding.is_idle(step);
            if (is_data || !is_idle) forwarder.meet({from, 1, 1});
            step += !is_data || is_idle;
            if (is_data) {
                writes--;
                write += period;
            }
        }
        forwarder.meet({write, writes, period});
        if (all) End{padding, step, from}.show(forwarder);
    }

    // And the padding of transfers all of whose words have come.
    void show_ends(Forwarder& forwarder) const {
        std::size_t& met = forwarder.met;
        met = std::max(met, ends.count() - std::min(ends.count(), PLACES));
        while (met < ends.count()) ends.numbered(met++).show(forwarder);
    }

    BurstWalker walker;

  private:
    struct Turn {
        Instruction* instruction;
        Time from;  // when it can begin
        std::int64_t words_left;
    };

    // Padding of the inputs from a step on, the first at `from`, when all words have come.
    struct End {
        Padding padding;
        Time step, from;

        void show(Forwarder& forwarder) const {
            if (!forwarder.reaches(from + padding.cycles - step)) return;
            for (Time at = step; at < padding.cycles; at++)
                if (!padding.is_idle(at)) forwarder.meet({from + at - step, 1, 1});
        }
    };

    // The first of `turns` begins, and ends if no data are to come.
    void begin() {
        const Turn& turn = turns.front();
        begun = std::max(turn.from, ended + 1);
        next_word = begun - 1;
        word_cycles = turn.instruction->transfer.shape->word_cycles;
        if (!turn.words_left) end();
    }

    void end() {
        Instruction& instruction = *turns.front().instruction;
        const Transfer& transfer = instruction.transfer;
        ended = transfer.words ? next_word : begun;
        if (const Padding& padding = transfer.shape->padding; padding.cycles) {
            const Time step = padding_steps(), left = padding.cycles - step;
            if (left && transfer.shape->memory == INP)
                ends.push({padding, step, next_word + parameters.word_to_done});
            // What ends with padding ends in the cycle after it.
            ended = left ? next_word + left + 1 : next_word;
        }
        instruction.done = ended + parameters.word_to_done - 1;
        turns.pop();
        if (!turns.empty()) begin();
    }

    // Words that have come of the transfer whose turn it is.
    std::int64_t words_come() const {
        return turns.front().instruction->transfer.words - turns.front().words_left;
    }

    // Steps of its padding before the next word can come.
    Time padding_steps() const {
        const Shape& shape = *turns.front().instruction->transfer.shape;
        const Kind& kind = parameters.kinds[shape.memory];
        const Time free = next_word - begun + 1 - words_come() * shape.word_cycles / kind.words_per_write;
        return std::min(shape.padding.cycles, free + shape.padding.idle(free));
    }

    const Parameters& parameters;
    Ring<Turn, PLACES> turns;
    Ring<End, PLACES> ends;
    Time begun = 0, ended = -1;
    Time next_word = 0, word_cycles = 1;
};

}  // namespace estimate
