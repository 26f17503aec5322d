// The store module's units: the `Storer` of hw/dma, which announces bursts ahead of their words and
// gets a response for each, and the `Forwarder`.

#pragma once

#include <utility>

#include "bursts.hpp"
#include "forwarder.hpp"
#include "queue.hpp"
#include "shared.hpp"

namespace estimate {

class Storer {
  public:
    // `port` is that of a shared bus, or null.
    Storer(const Parameters& parameters, Port* port) : walker(parameters), parameters(parameters), port(port) {}

    // Transfers to memory and to the inputs take turns.
    bool has_room(const Transfer& transfer) const {
        if (forwarder.works()) return false;
        return transfer.shape->forwards ? turns.empty() : !transfer.words || walker.has_room();
    }
    Time room_from(const Transfer& transfer) const {
        // That the storer rests is known a cycle late.
        if (transfer.shape->forwards) return ended + 2;
        return std::max(forwarder.idle_from(), transfer.words ? walker.room_from() : 0);
    }
    // When one is issued that could be at `time`.
    Time issued_at(const Transfer& transfer, Time time) const {
        return transfer.shape->forwards ? forwarder.takes(time) : time;
    }

    // A transfer is issued at `now`. It may end at once.
    void issue(Time now, Instruction& instruction) {
        if (instruction.transfer.shape->forwards) {
            forwarded = &instruction;
            return forwarder.begin(now, instruction.transfer.shape->forwarded);
        }
        const bool has_data = instruction.transfer.words;
        if (has_data) walker.command(now, instruction.transfer);
        turns.push({&instruction, now, has_data});
        if (turns.size() == 1) end_empty();
        announce();
        changed = true;
    }

    // Whether a word is to be written, and from when on.
    bool writes() const { return filling < bursts.size(); }
    Time writes_from() const { return std::max(bursts[filling].from, next_word); }
    // How many words can be written in sequence, the first at `begin` and another one every `stride`
    // cycles: bursts that follow without a pause, up to when memory may have confirmed a transfer.
    std::int64_t words(Time begin, Time stride) const {
        std::int64_t count = 0;
        Time until = NEVER;
        for (std::size_t place = filling; place < bursts.size(); place++) {
            const Burst& burst = bursts[place];
            const Time last = begin + (count + burst.words_left - 1) * stride;
            if (count && (burst.from > begin + count * stride || last > until)) break;
            count += burst.words_left;
            if (burst.is_last) until = std::min(until, answered_at(last));
        }
        return count;
    }

    // `count` words have been written, the first at `begin` and another one every `stride` cycles.
    // Says whether a burst has ended, and a transfer with it perhaps.
    bool written(std::int64_t count, Time begin, Time stride) {
        Time last = begin - stride;
        bool has_ended = false;
        while (count) {
            Burst& burst = bursts[filling];
            const std::int64_t some = std::min(count, burst.words_left);
            count -= some;
            last += some * stride;
            burst.words_left -= some;
            if (burst.words_left) break;
            const Time answer = port ? port->write(last, burst.shared_words) : answered_at(last);
            burst.answered = response = std::max(answer, response + 1);
            filling++;
            has_ended = true;
        }
        next_word = last + 1;
        if (!has_ended) return false;
        while (!bursts.empty() && bursts.front().answered) retire();
        announce();
        return true;
    }

    bool has_changed() { return std::exchange(changed, false); }

    // The transfer to the inputs has ended.
    void end_forward() {
        forwarder.end();
        forwarded->done = forwarder.ends_at();
    }

    BurstWalker walker;
    Forwarder forwarder;
    Time latency_sum = 0;  // from the announcements of bursts to their responses
    std::int64_t burst_count = 0;

  private:
    struct Burst {
        Time from, announced;
        std::int64_t words_left;
        bool is_last;  // of its transfer
        Time answered;
        std::int64_t shared_words;  // of the shared bus
    };
    struct Turn {
        Instruction* instruction;
        Time issued;
        bool has_data;
    };

    // When memory confirms a burst whose last word it counts as moved at `last`, at the earliest: it
    // takes it in the cycle before.
    Time answered_at(Time last) const {
        if (port) return port->memory.answered_at(last);
        return std::max(last, last - 1 + parameters.latency);
    }

    void announce() {
        while (walker.asks() && announced - answered < parameters.bursts_in_flight) {
            Time now = std::max(walker.asks_from(), announced_at + 1);
            if (announced >= parameters.bursts_in_flight)
                now = std::max(now, answers[announced % PLACES] + 2);
            const std::int64_t shared_words = port ? port->memory.widened(walker.place(), walker.words()) : 0;
            bursts.push({now + parameters.announce_to_word, now, walker.words(), walker.is_last(), 0, shared_words});
            announced_at = now;
            announced++;
            walker.taken(now);
        }
    }

    void retire() {
        const Burst burst = bursts.front();
        bursts.pop();
        filling--;
        // Its place in flight goes to the burst that is `bursts_in_flight` later.
        answers[(answered + parameters.bursts_in_flight) % PLACES] = burst.answered;
        answered++;
        burst_count++;
        latency_sum += burst.answered - burst.announced - 1;
        if (!burst.is_last) return;
        end(burst.answered);
        end_empty();
    }

    // The transfer whose turn it is ends with what happened `at` a time.
    void end(Time at) {
        ended = std::max(at + parameters.response_to_done, ended + 1);
        turns.front().instruction->done = ended;
        turns.pop();
    }

    // Transfers without data end when it is their turn.
    void end_empty() {
        while (!turns.empty() && !turns.front().has_data) end(turns.front().issued);
    }

    const Parameters& parameters;
    Port* const port;
    Ring<Turn, PLACES> turns;
    Ring<Burst, PLACES> bursts;  // without a response
    std::size_t filling = 0;   // of these, those that have all their words
    std::int64_t announced = 0, answered = 0;
    Time announced_at = 0, next_word = 0, response = 0, ended = 0;
    Instruction* forwarded = nullptr;  // the latest transfer to the inputs
    Time answers[PLACES];
    bool changed = false;
};

}  // namespace estimate
