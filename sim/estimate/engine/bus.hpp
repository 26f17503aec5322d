// The memory behind the machine, and the arbiter in front of it, a burst or a part of one at a time.

#pragma once

#include "fetch.hpp"
#include "loader.hpp"
#include "storer.hpp"
#include "window.hpp"

namespace estimate {

enum Reader { FETCH_READER, LOAD_READER, COMPUTE_READER, NO_READER };

class Bus {
  public:
    // `port` is that of a shared bus, or null.
    Bus(const Parameters& parameters, Fetch& fetch, Loader& load, Loader& compute, Storer& store, Port* port)
        : parameters(parameters), port(port), fetch(fetch), loaders{&load, &compute}, store(store),
          read_window(parameters), write_window(parameters) {}

    // The next part of a burst, or of one read and one written in turn.
    struct Part {
        Time begin = NEVER, end = NEVER;  // of its first and its last word
        std::int64_t reads = 0, writes = 0;
        Time stride = 1;
    };

    // What moves next, as far as it is known now; until the next call.
    const Part& plan() {
        if (stale || store.has_changed()) plan_anew();
        stale = false;
        return *next;
    }

    // Who has got words, and whether that ended a transfer, or a burst of a STORE.
    struct Moved {
        Reader reader = NO_READER;
        bool has_ended = false, has_stored = false;
    };

    // The part that `plan` gave has moved.
    Moved move() {
        const Part& part = *next;
        Moved moved;
        stale = true;
        if (part.reads && store.forwarder.works()) [[unlikely]] show_planned(store.forwarder, false);
        if (part.reads) {
            moved.reader = reads.front().reader;
            moved.has_ended = move_reads(part.reads, first_read(), part.stride);
        }
        if (part.writes) {
            const Time begin = part.reads && !write_turn ? part.begin + 1 : part.begin;
            const Time last = begin + (part.writes - 1) * part.stride;
            moved.has_stored = store.written(part.writes, begin, part.stride);
            write_free = std::max(write_free, last + 1);
            if (parameters.shared) read_free = std::max(read_free, last + 1);
            words_written += part.writes;
        }
        if (part.reads != part.writes && part.stride == 2 && part.reads + part.writes == 1) write_turn = !write_turn;
        return moved;
    }

    // The transfer to the inputs that is in progress, at its end: by what is known and planned.
    Forwarder forwarded() {
        loaders[0]->show_ends(store.forwarder);
        Forwarder found = store.forwarder;
        show_planned(found, true);
        found.finish();
        return found;
    }

    // When the arbiter starts the next burst, by what is known and planned.
    Time grant_from() {
        const Time asked =
            earliest(fetch.asks_from(), loaders[0]->walker.asks_from(), loaders[1]->walker.asks_from());
        if (asked >= NEVER) return NEVER;
        return latest(asked, granted_at + 1, open_from());
    }

    // Starts the burst of `now`, and those after it up to `until` while the same reader alone asks
    // and has no room for a transfer. Says whose they are; `now` becomes when the next one starts,
    // if nothing follows from these.
    Reader grant(Time& now, Time until) {
        const bool fetch_asks = fetch.asks_from() <= now;
        const bool load_asks = loaders[0]->walker.asks_from() <= now;
        const bool compute_asks = loaders[1]->walker.asks_from() <= now;
        Reader chosen = load_asks && (!after_load || !compute_asks) ? LOAD_READER : COMPUTE_READER;
        if (fetch_asks && (!after_fetch || !(load_asks || compute_asks))) chosen = FETCH_READER;
        after_fetch = chosen == FETCH_READER;
        if (!after_fetch) after_load = chosen == LOAD_READER;
        stale |= is_open;
        if (after_fetch) {
            start(chosen, fetch.place(), fetch.words(), now);
            fetch.granted(now);
            now = grant_from();
            return chosen;
        }
        BurstWalker& walker = loaders[chosen - LOAD_READER]->walker;
        const Time others = std::min(fetch.asks_from(), loaders[COMPUTE_READER - chosen]->walker.asks_from());
        while (true) {
            start(chosen, walker.place(), walker.words(), now);
            walker.taken(now);
            if (walker.has_room() || until >= NEVER) return chosen;
            now = latest(walker.asks_from(), now + 1, open_from());
            if (now >= others) now = grant_from();
            else if (now <= until) continue;
            return chosen;
        }
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
    };

    // A burst of `words` words is granted at `now`; its first word has this `place` in its page.
    void start(Reader reader, std::int64_t place, std::int64_t words, Time now) {
        granted_at = now;
        const Time asked = now + parameters.grant_to_memory;
        granted_words += words;
        const Time first = port ? port->read(asked, place, words) : asked + parameters.latency;
        reads.push({reader, words, first, asked});
        ends[bursts++ % PLACES] = granted_words;
        awaited = std::max(
            granted_words - parameters.words_ahead + 1,
            bursts >= parameters.bursts_in_flight ? ends[(bursts - parameters.bursts_in_flight) % PLACES] : 0);
    }

    void plan_anew() {
        Time read = NEVER, write = NEVER;
        if (!reads.empty()) read = read_window.from(latest(reads.front().earliest, read_free, takes_from()));
        if (store.writes()) write = write_window.from(std::max(store.writes_from(), write_free));
        is_open = read >= NEVER;
        if (!parameters.shared) {
            planned = read_part(read);
            planned_write = write_part(write, NEVER);
            next = planned_write.end < planned.end ? &planned_write : &planned;
        } else if (read < write) {
            planned = read_part(read);
            if (planned.end >= write) {
                planned.reads = planned.stride == 1 ? write - read : (write - read + planned.stride - 1) / planned.stride;
                planned.end = read + (planned.reads - 1) * planned.stride;
            }
        } else {
            planned = write < read ? write_part(write, read) : both(read);
        }
    }

    Time takes_from() const {
        const Reader reader = reads.front().reader;
        return reader == FETCH_READER ? 0 : loaders[reader - LOAD_READER]->takes_from();
    }

    // Words that come without a pause from `begin` on.
    Part read_part(Time begin) {
        if (begin >= NEVER) return {};
        const Read& read = reads.front();
        const Loader* loader = read.reader == FETCH_READER ? nullptr : loaders[read.reader - LOAD_READER];
        const Time stride = loader ? loader->cycles_per_word() : 1;
        std::int64_t most = read_window.left(begin);
        if (stride > 1) most = (most + stride - 1) / stride;
        std::int64_t count = std::min(read.words_left, most);
        if (count == read.words_left && loader) {
            most = std::min(most, loader->words_left());
            const std::size_t bursts = follow(begin, stride, count, most);
            is_open = count < most && bursts == reads.size();
        }
        return {begin, begin + (count - 1) * stride, count, 0, stride};
    }

    // Adds to `count` words of the first burst those of the bursts behind it for the same reader that
    // follow without a pause, up to `most`, one in every `stride` cycles. Returns how many bursts.
    std::size_t follow(Time begin, Time stride, std::int64_t& count, std::int64_t most) const {
        const Reader reader = reads.front().reader;
        std::size_t place = 1;
        for (; count < most && place < reads.size(); place++) {
            const Read& next = reads[place];
            if (next.reader != reader || next.earliest > begin + count * stride) break;
            count = std::min(count + next.words_left, most);
        }
        return place;
    }

    Part write_part(Time begin, Time until) const {
        if (begin >= NEVER) return {};
        const std::int64_t count = earliest(store.words(begin, 1), write_window.left(begin), until - begin);
        return {begin, begin + count - 1, 0, count, 1};
    }

    // A word read and a word written in turn.
    Part both(Time begin) const {
        if (begin >= NEVER) return {};
        const Read& read = reads.front();
        const std::int64_t most = std::min(store.words(begin, 2), read_window.left(begin) / 2);
        std::int64_t pairs = std::min(read.words_left, most);
        if (pairs < most && read.reader != FETCH_READER) {
            const Loader& loader = *loaders[read.reader - LOAD_READER];
            if (loader.cycles_per_word() == 1) follow(begin, 2, pairs, std::min(most, loader.words_left()));
        }
        if (pairs) return {begin, begin + 2 * pairs - 1, pairs, pairs, 2};
        return {begin, begin, write_turn ? 0 : 1, write_turn ? 1 : 0, 2};
    }

    // Says whether a transfer has ended.
    bool move_reads(std::int64_t count, Time begin, Time stride) {
        const Read& read = reads.front();
        const Time last = begin + (count - 1) * stride;
        // As the arbiter sees it: the word that lets it go on may be among these.
        if (awaited > delivered && awaited <= delivered + count)
            opened_at = begin + (awaited - delivered - 1) * stride;
        delivered += count;
        delivered_at = last;
        read_free = std::max(read_free, last + 1);
        if (parameters.shared) write_free = std::max(write_free, last + 1);
        words_of[read.reader] += count;
        bool has_ended = false;
        if (read.reader == FETCH_READER) fetch.receive(count, begin, stride);
        else has_ended = loaders[read.reader - LOAD_READER]->receive(count, last);
        for (Time at = begin - stride; count;) {
            Read& first = reads.front();
            const std::int64_t moved = std::min(count, first.words_left);
            count -= moved;
            at += moved * stride;
            first.words_left -= moved;
            if (first.words_left) break;
            latency_sum += at - first.asked;
            reads.pop();
        }
        return has_ended;
    }

    // `forwarder` meets what LOADs write to the inputs with the words that come next; with `all` also
    // the padding behind them.
    [[gnu::noinline]] void show_planned(Forwarder& forwarder, bool all) const {
        const bool loads = planned.reads && reads.front().reader == LOAD_READER;
        loaders[0]->show(forwarder, loads ? planned.reads : 0, first_read(), planned.stride, all);
    }

    // When the first word comes that is read next.
    Time first_read() const { return planned.begin + (planned.writes && write_turn); }

    Time open_from() const {
        if (awaited <= 0) return 0;
        const std::int64_t ahead = awaited - delivered;
        Time open = ahead > planned.reads ? NEVER : first_read() + (ahead - 1) * planned.stride + 2;
        open = ahead == 0 ? delivered_at + 2 : open;
        return ahead < 0 ? (opened_at < delivered_at ? opened_at + 2 : 0) : open;
    }

    const Parameters& parameters;
    Port* const port;
    Fetch& fetch;
    Loader* loaders[2];
    Storer& store;
    Queue<Read> reads;  // as many as are granted while a part moves
    Part planned;        // all that moves next, or only what is read
    Part planned_write;  // on a bus of its own
    const Part* next = &planned;
    bool stale = true;     // something has changed since then
    bool is_open = true;   // a further burst can change what is planned
    Window read_window, write_window;
    Time read_free = 0, write_free = 0;
    bool write_turn = false;
    bool after_fetch = false, after_load = false;  // the latest burst; the latest one not of fetch
    Time granted_at = 0, opened_at = 0, delivered_at = 0;
    std::int64_t granted_words = 0, delivered = 0;
    // The number, among all requested words, of the one that must arrive before the next burst starts.
    std::int64_t awaited = 0;
    std::int64_t ends[PLACES];  // of the latest bursts
};

}  // namespace estimate
