// The memory behind the machine, and the arbiter in front of it, a burst or a part of one at a time.

#pragma once

#include <deque>

#include "fetch.hpp"
#include "storer.hpp"

namespace estimate {

enum Reader { FETCH_READER, LOAD_READER, COMPUTE_READER };

class Bus {
  public:
    Bus(const Parameters& parameters, Fetch& fetch, Loader& load, Loader& compute, Storer& store)
        : parameters(parameters), fetch(fetch), loaders{&load, &compute}, store(store) {}

    // The next part of a burst, or of one read and one written in turn.
    struct Part {
        Time begin = NEVER, end = NEVER;  // of its first and its last word
        std::int64_t reads = 0, writes = 0;
        Time stride = 1;
    };

    // What moves next, as far as it is known now.
    Part plan() {
        Time read = NEVER, write = NEVER;
        if (!reads.empty()) read = moving(std::max({reads.front().earliest, read_free, takes_from()}));
        if (store.writes()) write = moving(std::max(store.writes_from(), write_free));
        planned_read = read_part(read);
        if (!parameters.shared) {
            const Part written = write_part(write, NEVER);
            return written.end < planned_read.end ? written : planned_read;
        }
        if (read == NEVER && write == NEVER) return planned_read;
        if (write < read) return planned_read = write_part(write, read);
        if (read < write) {
            const Time stride = planned_read.stride;
            planned_read.reads = std::min(planned_read.reads, (write - read + stride - 1) / stride);
            planned_read.end = read + (planned_read.reads - 1) * stride;
            return planned_read;
        }
        return planned_read = both(read);
    }

    // What `plan` said has happened; `done` gets what that ends. Whether anyone but the bus can go on.
    bool move(const Part& part, std::deque<Done> (&done)[MODULES]) {
        bool matters = part.writes;
        if (part.reads) {
            matters |= reads.front().reader == FETCH_READER || part.reads == reads.front().words_left;
            const Time begin = part.writes && write_turn ? part.begin + 1 : part.begin;
            move_reads(part.reads, begin, part.stride, done);
        }
        if (part.writes) {
            const Time begin = part.reads && !write_turn ? part.begin + 1 : part.begin;
            const Time last = begin + (part.writes - 1) * part.stride;
            store.written(part.writes, last, done[STORE_MODULE]);
            write_free = std::max(write_free, last + 1);
            if (parameters.shared) read_free = std::max(read_free, last + 1);
            words_written += part.writes;
        }
        if (part.reads != part.writes && part.stride == 2 && part.reads + part.writes == 1) write_turn = !write_turn;
        return matters;
    }

    // When the arbiter starts the next burst, by what is known and planned.
    Time grant_from() {
        Time asked = fetch.asks_from();
        for (const Loader* loader : loaders)
            if (loader->walker.asks()) asked = std::min(asked, loader->walker.asks_from());
        if (asked >= NEVER) return NEVER;
        return std::max({asked, granted_at + 1, open_from()});
    }

    // Starts that burst. Whether anyone but the bus can go on.
    bool grant(Time now) {
        const bool fetch_asks = fetch.asks_from() <= now;
        const bool load_asks = loaders[0]->walker.asks() && loaders[0]->walker.asks_from() <= now;
        const bool compute_asks = loaders[1]->walker.asks() && loaders[1]->walker.asks_from() <= now;
        Reader chosen = load_asks && (latest != LOAD_READER || !compute_asks) ? LOAD_READER : COMPUTE_READER;
        if (fetch_asks && (latest != FETCH_READER || !(load_asks || compute_asks))) chosen = FETCH_READER;
        latest = chosen;
        granted_at = now;
        std::int64_t words;
        bool matters = false;
        if (chosen == FETCH_READER) {
            words = fetch.words();
            fetch.granted(now);
        } else {
            BurstWalker& walker = loaders[chosen - LOAD_READER]->walker;
            words = walker.words();
            walker.taken(now);
            matters = walker.has_room();
        }
        const Time asked = now + parameters.grant_to_memory;
        granted_words += words;
        reads.push_back({chosen, words, asked + parameters.latency, asked, granted_words});
        ends[bursts++ % 16] = granted_words;
        return matters || reads.size() == 1;
    }

    std::int64_t bursts = 0;
    Time latency_sum = 0;  // from the requests of bursts read to their last words
    std::int64_t words_written = 0;
    std::int64_t words_of[3] = {};

  private:
    struct Read {
        Reader reader;
        std::int64_t words_left;
        Time earliest, asked;
        std::int64_t end;  // words of this burst and all before it
    };

    // The first cycle from `time` on in which memory is not refreshed, and how long it goes on so.
    Time moving(Time time) const {
        if (!parameters.refresh_period) return time;
        const Time place = (time - 1) % parameters.refresh_period;
        const Time until = parameters.refresh_period - parameters.refresh_stall;
        return place < until ? time : time + parameters.refresh_period - place;
    }
    Time window(Time time) const {
        if (!parameters.refresh_period) return NEVER;
        return parameters.refresh_period - parameters.refresh_stall - (time - 1) % parameters.refresh_period;
    }

    Time takes_from() const {
        const Reader reader = reads.front().reader;
        return reader == FETCH_READER ? 0 : loaders[reader - LOAD_READER]->takes_from();
    }

    Part read_part(Time begin) const {
        if (begin >= NEVER) return {};
        const Read& read = reads.front();
        const Time stride = read.reader == FETCH_READER ? 1 : loaders[read.reader - LOAD_READER]->cycles_per_word();
        const std::int64_t count = std::min(read.words_left, (window(begin) + stride - 1) / stride);
        return {begin, begin + (count - 1) * stride, count, 0, stride};
    }

    Part write_part(Time begin, Time until) const {
        if (begin >= NEVER) return {};
        const std::int64_t count = std::min({store.words(), window(begin), until - begin});
        return {begin, begin + count - 1, 0, count, 1};
    }

    // A word read and a word written in turn.
    Part both(Time begin) {
        const std::int64_t pairs = std::min({reads.front().words_left, store.words(), window(begin) / 2});
        if (pairs) return {begin, begin + 2 * pairs - 1, pairs, pairs, 2};
        return {begin, begin, write_turn ? 0 : 1, write_turn ? 1 : 0, 2};
    }

    void move_reads(std::int64_t count, Time begin, Time stride, std::deque<Done> (&done)[MODULES]) {
        Read& read = reads.front();
        const Time last = begin + (count - 1) * stride;
        // As the arbiter sees it: the word that lets it go on may be among these.
        const std::int64_t awaited = awaited_word();
        if (awaited > delivered && awaited <= delivered + count)
            opened_at = begin + (awaited - delivered - 1) * stride;
        delivered += count;
        delivered_at = last;
        read_free = std::max(read_free, last + 1);
        if (parameters.shared) write_free = std::max(write_free, last + 1);
        words_of[read.reader] += count;
        if (read.reader == FETCH_READER)
            fetch.receive(count, begin, stride);
        else
            loaders[read.reader - LOAD_READER]->receive(count, last, done[read.reader == LOAD_READER ? LOAD_MODULE : COMPUTE_MODULE]);
        read.words_left -= count;
        if (read.words_left) return;
        latency_sum += last - read.asked;
        reads.pop_front();
    }

    // Of all words asked for, the one that has to come before the next burst is started.
    std::int64_t awaited_word() const {
        const std::int64_t by_words = granted_words - parameters.words_ahead + 1;
        const std::int64_t by_bursts =
            bursts >= parameters.bursts_in_flight ? ends[(bursts - parameters.bursts_in_flight) % 16] : 0;
        return std::max(by_words, by_bursts);
    }

    Time open_from() const {
        const std::int64_t awaited = awaited_word();
        if (awaited <= 0) return 0;
        if (awaited < delivered) return opened_at < delivered_at ? opened_at + 2 : 0;
        if (awaited == delivered) return delivered_at + 2;
        const std::int64_t ahead = awaited - delivered;
        if (ahead > planned_read.reads) return NEVER;
        return planned_read.begin + (ahead - 1) * planned_read.stride + 2;
    }

    const Parameters& parameters;
    Fetch& fetch;
    Loader* loaders[2];
    Storer& store;
    std::deque<Read> reads;
    Part planned_read;
    Time read_free = 0, write_free = 0;
    bool write_turn = false;
    Reader latest = COMPUTE_READER;
    Time granted_at = 0, opened_at = 0, delivered_at = 0;
    std::int64_t granted_words = 0, delivered = 0;
    std::int64_t ends[16] = {};  // of the latest bursts
};

}  // namespace estimate
