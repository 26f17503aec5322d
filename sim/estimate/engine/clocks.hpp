// The order of events that holds for every memory: how many instructions of each module, and bursts of
// fetch, are known to have ended before an event.

#pragma once

#include "flow.hpp"

namespace estimate {

struct Clock {
    std::size_t ended[STREAMS] = {};

    void join(const Clock& other) {
        for (int stream = 0; stream < STREAMS; stream++) ended[stream] = std::max(ended[stream], other.ended[stream]);
    }
    Clock after(Time) const { return *this; }
};

// The policy of `Flow` that finds them.
class Clocks {
  public:
    using Value = Clock;

    Value launch() const { return {}; }
    Value issued(const Operation& operation, const Clock& value) {
        of_issue[operation.module].push_back(value);
        return value;
    }
    Value retired(const Operation& operation, Clock value) const {
        value.ended[operation.module] = operation.number + 1;
        return value;
    }
    void fetch(std::size_t burst, std::int64_t words, const Clock& asked) {
        of_issue[FETCH_STREAM].push_back(asked);
        fetch_words.push_back(words);
        latest = asked;
        latest.ended[FETCH_STREAM] = burst;
        // Words of a burst arrive one by one: all of it has arrived only with the next one.
    }
    Value fetched(std::size_t, std::int64_t words) const {
        Clock clock = latest;
        if (words >= fetch_words.back()) clock.ended[FETCH_STREAM]++;
        return clock;
    }
    Value transfer(const Operation& operation, const Clock& issued) {
        Clock value = issued;
        value.join(of_transfers[operation.module]);
        return of_transfers[operation.module] = value;
    }
    std::pair<Value, Value> loops(const Operation& operation, const Clock& command) {
        Clock& unit = of_unit[operation.unit == ALU_UNIT];
        unit.join(command);
        return {unit, unit};
    }

    // By stream and number: of the issue of an instruction, or of the request of a burst.
    std::vector<Clock> of_issue[STREAMS];
    std::vector<std::int64_t> fetch_words;

  private:
    Clock latest = {}, of_transfers[MODULES] = {}, of_unit[2] = {};
};

}  // namespace estimate
