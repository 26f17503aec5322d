// From rows to bursts, as `BurstWalker` of hw/dma/rows.py cuts them.

#pragma once

#include <algorithm>
#include <bit>

#include "instruction.hpp"

namespace estimate {

class BurstWalker {
  public:
    explicit BurstWalker(const Parameters& parameters)
        : issue_to_row(parameters.issue_to_request - 1), log_bus(std::countr_zero(std::uint64_t(parameters.bus_bytes))),
          log_chunk(std::countr_zero(std::uint64_t(
              std::min(parameters.burst_words * parameters.bus_bytes, parameters.burst_bytes)))),
          full((std::int64_t(1) << (log_chunk - log_bus)) - 1) {}

    // Whether it can take a command, and from when on.
    bool has_room() const { return !rows.count; }
    Time room_from() const { return row_taken + 1; }

    // Takes the rows of a transfer at `now`.
    void command(Time now, const Transfer& transfer) {
        rows = transfer.shape->rows;
        address = transfer.address;
        row_from = now + issue_to_row;
        if (!asks()) take_row();
    }

    // Whether there is a burst to ask for; from when on, NEVER if not; and how long it is.
    bool asks() const { return cut_from < NEVER; }
    Time asks_from() const { return cut_from; }
    std::int64_t words() const { return (chunks_after ? full : last) - first + 1; }
    // Of its first word in a page.
    std::int64_t place() const { return first; }
    bool is_last() const { return !chunks_after && last_row; }

    // Its burst is taken at `now`.
    void taken(Time now) {
        if (chunks_after) {
            chunks_after--;
            first = 0;
            cut_from = now + 1;
            return;
        }
        cut_until = now;
        if (rows.count) take_row();
        else cut_from = NEVER;
    }

  private:
    void take_row() {
        const Time now = std::max(row_from, cut_until);
        const std::int64_t mask = (std::int64_t(1) << log_chunk) - 1;
        const std::int64_t begin = std::int64_t(address) & mask, end = begin + rows.last_byte;
        cut_from = now + 1;
        first = begin >> log_bus;
        last = (end & mask) >> log_bus;
        chunks_after = end >> log_chunk;
        last_row = rows.count == 1;
        address += rows.stride;
        rows.count--;
        row_from = now + 1;
        if (last_row) row_taken = now;
    }

    const Time issue_to_row;
    const int log_bus, log_chunk;
    const std::int64_t full;  // places in a chunk, less one
    Rows rows = {};           // that come next
    std::uint64_t address = 0;  // of the first of them
    Time row_from = 0;        // when the first of them can be taken
    Time row_taken = 0;       // when the last row of the latest transfer was
    Time cut_from = NEVER, cut_until = 0;
    std::int64_t first = 0, last = 0, chunks_after = 0;
    bool last_row = false;
};

}  // namespace estimate
