// Refreshes of the memory.

#pragma once

#include "parameters.hpp"

namespace estimate {

// The cycles between two refreshes of the memory, for queries whose times never decrease.
class Window {
  public:
    explicit Window(const Parameters& parameters)
        : period(parameters.refresh_period),
          until(period ? period - parameters.refresh_stall + 1 : NEVER) {}

    // The first cycle from `time` on in which a word can move.
    Time from(Time time) {
        while (time >= until) {
            begin += period;
            until += period;
        }
        return std::max(time, begin);
    }

    // How many cycles are left from then to the next refresh.
    Time left(Time time) const { return until - time; }

  private:
    const Time period;
    Time begin = 1, until;
};

}  // namespace estimate
