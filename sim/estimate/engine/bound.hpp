// An upper bound on the cycles of a stream for every memory that keeps a contract: docs/bounds.md has the
// argument, in whose terms this file is written.

#pragma once

#include "between.hpp"

namespace estimate {

// The policy of `Flow` that bounds times.
class Bound {
  public:
    using Value = Potential;

    Bound(const Parameters& parameters, const Contract& contract, const Program& program, const Costs& costs,
          const Windows& windows, Time* done)
        : parameters(parameters), contract(contract), program(program), costs(costs), windows(windows),
          done(done) {
        for (Lane& lane : lanes) lane.end = launch().less[ALL];
        for (Lane& lane : lanes) lane.turn.fill(-FAR);
        for (const std::size_t index : program.of_module[COMPUTE_MODULE]) {
            const Operation& operation = program.operations[index];
            if (operation.unit >= GEMM_UNIT) of_unit[operation.unit == ALU_UNIT].push_back(&operation);
        }
    }

    Value launch() const {
        Value value;
        value.time = 0;
        value.less.fill(contract.scale * contract.credit);
        value.scale = contract.scale;
        return value;
    }

    Value issued(const Operation& operation, Value value) {
        Words all;
        all.fill(UNKNOWN);
        const int module = operation.module;
        const std::int64_t asked = asked_of(module, value) + contract.scale * parameters.issue_to_request;
        work(value, windows.clock(module, operation.number));
        if (module != COMPUTE_MODULE) peak(module, asked);
        // Of its own stream at most all before it.
        all[module] = windows.moved[module][operation.number];
        tighten(value, windows.least(operation.module, operation.number), all);
        return value;
    }

    Value retired(const Operation& operation, const Value& value) {
        if (done) done[std::size_t(&operation - program.operations.data())] = value.time;
        return value;
    }

    void fetch(std::size_t burst, std::int64_t, const Value& asked) {
        Value from = asked;
        Words all;
        all.fill(UNKNOWN);
        const Words least = windows.least(FETCH_STREAM, burst);
        const std::int64_t first = asked_of(FETCH_STREAM, from);
        work(from, windows.clock(FETCH_STREAM, burst));
        peak(FETCH_STREAM, first);
        all[FETCH_STREAM] = windows.moved[FETCH_STREAM][burst];
        tighten(from, least, all);
        begin(FETCH_STREAM, asked_of(FETCH_STREAM, from));
        read(FETCH_STREAM, costs.of_fetch(burst));
        raise(FETCH_STREAM, lanes[FETCH_STREAM].end);
        fetch_ends.push_back(lanes[FETCH_STREAM].end);
        fetch_least = least;
        fetch_most = windows.most(FETCH_STREAM, burst);
        fetch_most[FETCH_STREAM] = windows.moved[FETCH_STREAM][burst];
        fetch_turns.less.fill(FAR);
        take_turns(FETCH_STREAM, burst, from, 1, fetch_turns);
    }

    // When so many words of the burst have come, the last of which holds the instruction `index`.
    Value fetched(std::size_t index, std::int64_t words) const {
        Words most = fetch_most;
        most[FETCH_STREAM] += words;
        // Neither this instruction nor those behind it have begun.
        for (int module = 0; module < MODULES; module++)
            most[module] = std::min(most[module], windows.moved[module][program.before(Module(module), index)]);
        Value value = expand(lanes[FETCH_STREAM].end, most);
        for (int set = 0; set < SETS; set++) value.less[set] = std::min(value.less[set], fetch_turns.less[set]);
        Words least = fetch_least;
        least[FETCH_STREAM] = std::max(least[FETCH_STREAM], most[FETCH_STREAM]);
        tighten(value, least, most);
        return value;
    }

    Value transfer(const Operation& operation, const Value& issued) {
        if (operation.shape->forwards) return forward(operation, issued);
        return operation.module == STORE_MODULE ? store(operation, issued) : load(operation, issued);
    }

    std::pair<Value, Value> loops(const Operation& operation, const Value& command) {
        auto found = operation.unit == GEMM_UNIT ? gemm(operation, command) : alu(operation, command);
        Words least = windows.least(COMPUTE_MODULE, operation.number);
        work(found.second, windows.clock(COMPUTE_MODULE, operation.number));
        tighten(found.second, least, windows.most(COMPUTE_MODULE, operation.number));
        return found;
    }

  private:
    static constexpr std::int64_t UNKNOWN = -1, FAR = std::int64_t(1) << 60;

    // The bursts of a stream, one after the other.
    struct Lane {
        std::int64_t end;           // of the latest one, less all words
        std::int64_t grant = -FAR;  // of the latest one, less all words with those of its own before
        std::int64_t sum = 0;       // of its own words so far
        // Of the latest transfer, and of each of a loader: by set of streams less their words, as `take_turns` finds.
        std::array<std::int64_t, SETS> turn;
        std::vector<std::array<std::int64_t, SETS>> turns;
        // By transfer of reads, and by burst written: `end`, and `sum`.
        std::vector<std::int64_t> ends, sums;
    };
    // Bursts written, in time: each of their words waits for at most one word read.
    struct Turns {
        std::int64_t announced = -FAR, end = -FAR;
        std::vector<std::int64_t> ends;
    };

    // While a transfer waits for nothing but memory, memory works: for it, for those before it, or for fetch, which
    // has not got so far. Or the words of all of them have come. That holds for each set of such streams.
    void work(Value& value, const Clock& clock) const {
        std::size_t counts[STREAMS];
        for (const int stream : {int(LOAD_MODULE), int(STORE_MODULE), FETCH_STREAM})
            counts[stream] = released(stream, clock);
        for (int set = 1; set <= ALL; set++) {
            if (set >> COMPUTE_MODULE & 1) continue;
            std::int64_t working = -FAR;
            Words words = windows.least(clock);
            for (int stream = 0; stream < STREAMS; stream++) {
                if (!(set >> stream & 1) || !counts[stream]) continue;
                working = std::max(working, peak_of(stream, counts[stream]));
                words[stream] = std::max(words[stream], windows.moved[stream][counts[stream]]);
            }
            std::int64_t come = FAR;
            for (int moved = 0; moved < SETS; moved++) {
                std::int64_t less = value.less[moved];
                for (int stream = 0; stream < STREAMS; stream++)
                    if (!(moved >> stream & 1)) less -= contract.scale * words[stream];
                come = std::min(come, less);
            }
            value.less[ALL] = std::min(value.less[ALL], std::max(working, come));
        }
    }

    std::size_t released(int stream, const Clock& clock) const {
        return std::min(windows.released(stream, clock), peaks[stream].size());
    }

    // A transfer's being asked for: its time less all words, with those of its own before.
    std::int64_t asked_of(int stream, const Value& from) const {
        return from.less[ALL & ~(1 << stream)] - contract.scale * lanes[stream].sum;
    }

    // The same, less all words of the first bursts of fetch too.
    std::int64_t asked_behind_fetch(int stream, std::size_t bursts, const Value& from) const {
        const std::int64_t words = lanes[stream].sum + windows.moved[FETCH_STREAM][bursts];
        const std::int64_t less = from.less[ALL & ~(1 << stream) & ~(1 << FETCH_STREAM)];
        return std::min(asked_of(stream, from), less - contract.scale * words);
    }

    // The time less all words, while one of the first `count` transfers waits for memory or for fetch.
    std::int64_t peak_of(int stream, std::size_t count) const {
        return std::max(peaks[stream][count - 1], peaks[FETCH_STREAM][windows.fetch_burst(stream, count - 1)]);
    }
    // Bounds that while the next transfer is the first that has not ended.
    void peak(int stream, std::int64_t asked) {
        auto& all = peaks[stream];
        all.push_back(all.empty() ? asked : std::max(all.back(), asked));
    }
    void raise(int stream, std::int64_t less) { peaks[stream].back() = std::max(peaks[stream].back(), less); }

    // Uses what may have moved before an event.
    void tighten(Value& value, const Words& least, const Words& most) const {
        const std::int64_t scale = contract.scale;
        for (int stream = 0; stream < STREAMS; stream++)
            for (int set = ALL; set >= 0; set--)
                if (const int more = set | 1 << stream; more != set && most[stream] != UNKNOWN)
                    value.less[set] = std::min(value.less[set], value.less[more] + scale * most[stream]);
        value.time = std::min(value.time, value.less[0] / contract.rate);
        value.less[0] = std::min(value.less[0], contract.rate * value.time + scale * contract.credit);
        for (int stream = 0; stream < STREAMS; stream++)
            for (int set = 0; set < SETS; set++)
                if (const int more = set | 1 << stream; more != set)
                    value.less[more] = std::min(value.less[more], value.less[set] - scale * least[stream]);
    }

    // An event from its time less all words.
    Value expand(std::int64_t all, const Words& most) const {
        Value value;
        value.scale = contract.scale;
        for (int set = 0; set < SETS; set++) {
            value.less[set] = all;
            for (int stream = 0; stream < STREAMS; stream++)
                if (!(set >> stream & 1)) value.less[set] += contract.scale * most[stream];
        }
        value.time = value.less[0] / contract.rate;
        return value;
    }

    // A transfer of a stream whose first burst is asked for at `asked`.
    void begin(int stream, std::int64_t asked) {
        Lane& lane = lanes[stream];
        const std::int64_t scale = contract.scale;
        lane.grant = std::max(asked, lane.grant + scale * ROOM_TO_GRANT);
        if (lane.ends.size() >= TURNS) {
            const std::size_t before = lane.ends.size() - TURNS;
            const std::int64_t own = lane.sum - lane.sums[before];
            lane.grant = std::max(lane.grant, lane.ends[before] + scale * (ROOM_TO_GRANT - own));
        }
        is_first = true;
    }

    // The next burst read, which counts as so many words.
    void read(int stream, std::int64_t words) {
        Lane& lane = lanes[stream];
        const std::int64_t scale = contract.scale;
        if (!is_first) lane.grant += scale;
        is_first = false;
        lane.end = std::max(lane.end, lane.grant + scale * (parameters.grant_to_memory + contract.latency - 1));
        lane.sum += words;
        lane.grant -= scale * words;
    }

    Value load(const Operation& operation, const Value& issued) {
        const Module module = operation.module;
        const std::size_t number = operation.number;
        Lane& lane = lanes[module];
        const std::int64_t scale = contract.scale;
        const Words least = windows.least(module, number);
        Words most = windows.most(module, number);
        Value end;
        if (operation.shape->accumulators) forget(operation.base, operation.shape->accumulators);
        if (!operation.words) {
            // Padding alone.
            end = issued.after(parameters.issue_to_request + operation.padded - 2);
            end.join(expand(lane.end, most));
            lane.end = std::max(lane.end, end.less[ALL]);
            if (module == LOAD_MODULE) raise(module, peaks[module].back() + scale * operation.padded);
        } else {
            const std::size_t fetched = windows.fetched_before(operation);
            begin(module, asked_behind_fetch(module, fetched, issued.after(parameters.issue_to_request)));
            lane.end = std::max(lane.end, fetch_ends[std::min(fetched, fetch_ends.size()) - 1]);
            for (std::size_t burst = 0; burst < operation.bursts; burst++)
                read(module, costs.of(operation, burst));
            if (module == LOAD_MODULE) raise(module, lane.end + scale * operation.padded);
            most[module] -= operation.padded;
            end = expand(lane.end, most);
            const std::int64_t bursts = std::int64_t(operation.bursts);
            take_turns(module, number, issued.after(parameters.issue_to_request), bursts, end);
            for (int set = 0; set < SETS; set++)
                if (!(set >> module & 1)) end.less[set] += scale * operation.padded;
            end.time += operation.padded;
            most[module] += operation.padded;
        }
        lane.sum += operation.padded;
        lane.grant -= scale * operation.padded;
        Words known = least;
        known[module] = most[module];
        tighten(end, known, most);
        // Bursts in flight may have left no word: they count as more than they have.
        lane.end = std::min(lane.end, end.less[ALL] + scale * costs.latency);
        for (int set = 0; set < SETS; set++)
            lane.turn[set] = std::min(lane.turn[set], end.less[set] + scale * costs.latency);
        lane.turns.push_back(lane.turn);
        lane.ends.push_back(end.less[ALL]);
        lane.sums.push_back(lane.sum);
        return end.after(parameters.word_to_done);
    }

    // Bounds the end of a transfer by the turns that readers take, less the words of its own stream, of STOREs and of
    // any others. Memory answers in order, so only bursts in front of it count of the rest: those in flight when it
    // asks, or a turn of each reader since the previous transfer, and one more turn before each further burst.
    void take_turns(int stream, std::size_t number, const Value& from, std::int64_t bursts, Value& end) {
        Lane& lane = lanes[stream];
        const std::int64_t scale = contract.scale;
        const Windows::Opening* const opening = windows.opening(stream, number);
        // Words in front of it that have not come when it asks, and behind the previous transfer.
        std::int64_t since_asked[STREAMS] = {}, since_previous[STREAMS] = {};
        for (const int other : {int(LOAD_MODULE), int(COMPUTE_MODULE), FETCH_STREAM}) {
            if (other == stream) continue;
            const auto& [words, excess, run] = windows.largest_meanwhile(stream, number, other);
            if (other == FETCH_STREAM) {
                since_asked[other] = since_previous[other] = (2 + 2 * bursts) * words;
            } else {
                const std::int64_t turns = (bursts - 1) * words + windows.blocked_meanwhile(stream, number, other);
                const std::int64_t flight = parameters.words_ahead + words + parameters.bursts_in_flight * excess;
                since_asked[other] = flight + turns;
                since_previous[other] = run + turns;
            }
            const std::int64_t all = windows.moved_meanwhile(stream, number, other);
            since_asked[other] = std::min(since_asked[other], all);
            since_previous[other] = std::min(since_previous[other], all);
        }
        for (int set = 0; set < ALL; set++) {
            if (!(set >> STORE_MODULE & 1) || !(set >> stream & 1)) continue;
            std::int64_t first = costs.latency, next = 0;
            for (int other = 0; other < STREAMS; other++) {
                if (set >> other & 1) continue;
                first += since_asked[other];
                next += since_previous[other];
            }
            std::int64_t asked = from.less[set];
            if (const std::size_t count = lane.turns.size(); count >= TURNS)
                asked = std::max(asked, lane.turns[count - TURNS][set] + scale * ROOM_TO_GRANT);
            asked += scale * first;
            lane.turn[set] = opening ? asked + scale * opening->late : std::max(asked, lane.turn[set] + scale * next);
            end.less[set] = std::min(end.less[set], lane.turn[set]);
        }
    }

    Value store(const Operation& operation, const Value& at) {
        Lane& lane = lanes[STORE_MODULE];
        const std::int64_t scale = contract.scale;
        const std::size_t number = operation.number;
        Value issued = at;
        if (has_forwarded) issued.join(forwarded.after(1));
        Value end;
        if (!operation.words) {
            end = issued.after(parameters.response_to_done);
        } else {
            const Words most = windows.most(STORE_MODULE, number);
            const Value from = issued.after(parameters.issue_to_request);
            lane.grant = std::max(asked_of(STORE_MODULE, from), lane.grant + scale * ROOM_TO_GRANT);
            turns.announced = std::max(from.less[0], turns.announced + scale * ROOM_TO_GRANT);
            for (std::size_t burst = 0; burst < operation.bursts; burst++)
                write(program.burst_words[operation.first_burst + burst], !burst);
            raise(STORE_MODULE, asked_of(STORE_MODULE, from) + scale * operation.words);
            raise(STORE_MODULE, lane.end + scale * (response() + parameters.response_to_done));
            end = expand(lane.end, most);
            end.less[0] = std::min(end.less[0], turns.end);
            Words known = windows.least(STORE_MODULE, number);
            known[STORE_MODULE] = most[STORE_MODULE];
            tighten(end, known, most);
            lane.end = end.less[ALL];
            turns.end = end.less[0];
            end = end.after(response() + parameters.response_to_done);
        }
        if (has_stored) end.join(stored.after(1));
        stored = end;
        has_stored = true;
        return end;
    }

    // The next burst written.
    void write(std::int64_t words, bool is_first) {
        Lane& lane = lanes[STORE_MODULE];
        const std::int64_t scale = contract.scale;
        if (!is_first) lane.grant += scale, turns.announced += scale;
        if (const std::size_t flight = std::size_t(parameters.bursts_in_flight); lane.ends.size() >= flight) {
            const std::size_t before = lane.ends.size() - flight;
            const std::int64_t wait = scale * (response() + FREED_TO_GRANT + ROOM_TO_GRANT);
            lane.grant = std::max(lane.grant, lane.ends[before] + wait - scale * (lane.sum - lane.sums[before]));
            turns.announced = std::max(turns.announced, turns.ends[before] + wait);
        }
        const std::int64_t offered = scale * (parameters.announce_to_word - 1);
        lane.end = std::max(lane.end, lane.grant + offered);
        turns.end = std::max(turns.end, turns.announced + offered) + scale * (2 * words + 1);
        lane.sum += words;
        lane.grant -= scale * words;
        lane.ends.push_back(lane.end);
        lane.sums.push_back(lane.sum);
        turns.ends.push_back(turns.end);
    }

    // From the last word of a burst to its response.
    Time response() const { return std::max<Time>(0, contract.response - 1) + 1; }

    Value forward(const Operation& operation, const Value& at) {
        Value issued = at;
        if (has_stored) issued.join(stored.after(2));
        if (has_forwarded) issued.join(forwarded.after(1));
        const std::size_t number = operation.number;
        const Words least = windows.least(STORE_MODULE, number), most = windows.most(STORE_MODULE, number);
        // LOADs write to the inputs first. Either those that wait for nothing but memory have ended, or memory works.
        const std::size_t count = released(LOAD_MODULE, windows.clock(STORE_MODULE, number));
        Value end = written(operation, issued, count);
        if (count) {
            Value works = issued;
            works.less[ALL] = std::min(works.less[ALL], peak_of(LOAD_MODULE, count));
            tighten(works, least, most);
            end.join(written(operation, works, 0));
        }
        raise(STORE_MODULE, asked_of(STORE_MODULE, end));
        tighten(end, least, most);
        forwarded = end;
        has_forwarded = true;
        return end;
    }

    // The end of a STORE to the inputs that begins at `begun`, when the first `ended` LOADs have ended.
    Value written(const Operation& operation, const Value& begun, std::size_t ended) const {
        // Padding, and words that are counted as those of LOADs. They come at one per cycle, but several make a write.
        auto [words, padding] = windows.input_writes_meanwhile(operation.number, ended);
        const Time cycles = FORWARD_LATENCY + operation.shape->forwarded + padding;
        const Time each = parameters.kinds[INP].words_per_write;
        if (each > 1) words = std::min(words, (cycles + 2 * each) / (each - 1));
        Value end = begun.after(cycles);
        end.time += words;
        for (int set = 0; set < SETS; set++)
            if (!(set >> LOAD_MODULE & 1)) end.less[set] += contract.scale * words;
        return end;
    }

    // The half of the accumulators in which an instruction writes, both if it may be either.
    unsigned banks(const Operation& operation) const {
        const Loops& loops = *operation.loops;
        if (!loops.works || !parameters.overlap) return 0;
        const std::int64_t half = parameters.acc_depth / 2;
        return (loops.first_dst < half) | (loops.first_dst + loops.dsts > half) << 1;
    }

    // Instructions of the other unit that may be in progress at the same time: from `begin` to `end`; `own`
    // is the first one behind this one.
    struct Meanwhile {
        std::size_t begin, own, end;
    };
    Meanwhile meanwhile(const Operation& operation, std::size_t& place) const {
        const auto& others = of_unit[operation.unit == GEMM_UNIT];
        while (place < others.size() && others[place]->number < operation.number) place++;
        Meanwhile found = {place, place, place};
        if (!parameters.overlap) return found;
        const std::size_t ended = windows.clock(COMPUTE_MODULE, operation.number).ended[COMPUTE_MODULE];
        if (operation.independent)
            while (found.begin && others[found.begin - 1]->number >= ended) found.begin--;
        while (found.end < others.size() && others[found.end]->independent &&
               windows.clock(COMPUTE_MODULE, others[found.end]->number).ended[COMPUTE_MODULE] <= operation.number)
            found.end++;
        return found;
    }

    std::pair<Value, Value> gemm(const Operation& operation, const Value& command) {
        const Loops& loops = *operation.loops;
        const Meanwhile others = meanwhile(operation, gemm_place);
        Value begun = command;
        Value valid = command.after(parameters.issue_to_item);
        Time drains = 0, all = 0, more = 0;
        for (std::size_t place = others.begin; place < others.end; place++) {
            const Operation& other = *of_unit[1][place];
            if (banks(other) & banks(operation)) drains = (parameters.alu_latency + 3) * (banks(operation) == 3 ? 2 : 1);
            // The ALU has priority in reading micro-ops.
            Time lost = 0;
            if (loops.many_uops && other.loops->works) lost = other.loops->many_uops ? other.loops->items : 3;
            all += lost;
            if (place >= stolen) more += lost;
        }
        valid = valid.after(drains + all);
        if (has_gemm) {
            begun.join(gemm_last.after(1 - parameters.issue_to_item));
            // The ALU does not enter a half between two instructions of GEMM that follow one another there.
            const bool stays = banks(operation) == gemm_banks && gemm_banks != 3;
            valid.join(gemm_last.after(1 + (stays ? 0 : drains) + more));
        }
        stolen = std::max(stolen, others.end);
        gemm_last = valid.after(loops.items - 1);
        has_gemm = true;
        gemm_banks = banks(operation);
        for (int bank = 0; bank < 2; bank++)
            if (banks(operation) >> bank & 1) in_bank[bank] = gemm_last, has_been[bank] = true;
        forget(loops.first_dst, loops.dsts);
        // An instruction that waits for all of the ALU has begun: the ALU rests.
        if (!operation.independent) since_barrier = 0, gemm_since_barrier = false;
        gemm_since_barrier |= loops.works;
        return {begun, gemm_last.after(parameters.gemm_latency - parameters.early_end)};
    }

    std::pair<Value, Value> alu(const Operation& operation, const Value& command) {
        const Loops& loops = *operation.loops;
        const Meanwhile others = meanwhile(operation, alu_place);
        const Time head = parameters.issue_to_item + parameters.item_to_alu, written = parameters.alu_latency + 2;
        Value begun = command, begin = command.after(head);
        Time after = parameters.alu_cycles;
        if (has_alu) {
            begun.join(alu_last.after(1 - head));
            for (const Edge& mine : loops.first)
                for (const Edge& other : *alu_tail)
                    if (other.dst == mine.dst || other.dst == mine.src)
                        after = std::max(after, parameters.alu_latency + 1 - other.distance - mine.distance);
            for (const Edge& other : *alu_tail)
                if (loops.has_parameter(parameters, other.dst)) after = std::max(after, written - other.distance);
            begin.join(alu_last.after(after));
        }
        bool rereads = loops.table != table;
        for (std::size_t place = others.begin; place < others.end; place++)
            rereads |= overlaps(loops.table, of_unit[0][place]->loops->first_dst, of_unit[0][place]->loops->dsts);
        // What is read before the first item, when all earlier results are written.
        Time reads = 0;
        if (loops.has_factor) reads += parameters.alu_cycles + 1;
        if (loops.table >= 0 && rereads) reads += parameters.table_words + 1;
        if (has_alu && reads) begin.join(alu_last.after(written));
        // Parameters are read while earlier results are computed.
        if (loops.parameters >= 0) reads += parameters_read(parameters, 0, loops.parameters, [](auto) { return Time(0); });
        if (loops.table >= 0) table = loops.last_table;
        forget(loops.first_dst, loops.dsts);
        // What GEMM has begun, or will have begun before this one ends, in the same half.
        if (parameters.overlap && operation.independent)
            for (int bank = 0; bank < 2; bank++)
                if (has_been[bank] && (banks(operation) | loops.sources) >> bank & 1)
                    begin.join(in_bank[bank].after(parameters.gemm_latency + 1));
        const Time work = std::max(written, after) + reads + loops.items + loops.stalls;
        since_barrier += work + 1;
        alu_last = begin.after(reads + loops.items + loops.stalls - 1 + paused(operation, others));
        alu_tail = &loops.last;
        has_alu = true;
        return {begun, alu_last.after(written - parameters.early_end)};
    }

    // Cycles that an ALU instruction loses to the GEMM instructions behind it, which go first in its half of
    // the accumulators, and where it reads sources.
    Time paused(const Operation& operation, const Meanwhile& others) {
        Time lost = 0, before = 0;
        for (std::size_t place = others.begin; place < others.end; place++) {
            const Operation& other = *of_unit[0][place];
            const Loops& loops = *other.loops;
            if (loops.many_uops) lost = std::max<Time>(lost, 1);
            if (place < others.own) continue;
            const bool meets = banks(other) & banks(operation);
            const bool takes_port = loops.adds && (banks(other) & operation.loops->sources);
            // It has ended before that one begins if GEMM did nothing else since both units rested.
            const bool is_first = !gemm_since_barrier && since_barrier + BARRIER_TO_ALU < before;
            if ((meets || takes_port) && !is_first)
                lost += loops.items + 2 * parameters.gemm_latency + parameters.alu_latency + 6;
            before += loops.items;
        }
        since_barrier += lost;
        return lost;
    }

    bool overlaps(std::int64_t table, std::int64_t first, std::int64_t count) const {
        return table >= 0 && count && first < table + parameters.table_elements && table < first + count;
    }
    // Accumulators are written: a table among them has to be read again.
    void forget(std::int64_t first, std::int64_t count) {
        if (overlaps(table, first, count)) table = -1;
    }

    // Cycles of a STORE to the inputs besides its elements.
    static constexpr Time FORWARD_LATENCY = 6;
    // Cycles from the barrier to the first item of the ALU, besides its work, with a margin.
    static constexpr Time BARRIER_TO_ALU = 16;
    // Transfers whose turn is to come, with the one in progress.
    static constexpr std::size_t TURNS = 9;

    const Parameters& parameters;
    const Contract& contract;
    const Program& program;
    const Costs& costs;
    const Windows& windows;
    Time* const done;
    Lane lanes[STREAMS];
    std::vector<std::int64_t> peaks[STREAMS];
    Turns turns;
    bool is_first = false;
    Words fetch_least = {}, fetch_most = {};
    Value fetch_turns = {};
    std::vector<std::int64_t> fetch_ends;  // by burst, less all words
    Value stored = {}, forwarded = {};
    bool has_stored = false, has_forwarded = false;
    std::vector<const Operation*> of_unit[2];
    std::size_t gemm_place = 0, alu_place = 0, stolen = 0;
    Value gemm_last = {}, alu_last = {}, in_bank[2] = {};
    unsigned gemm_banks = 0;  // of the latest instruction
    bool has_gemm = false, has_alu = false, has_been[2] = {};
    const Edges* alu_tail = nullptr;
    std::int64_t table = -1;
    // Since a GEMM instruction waited for all of the ALU: work of the ALU, and whether GEMM has worked.
    Time since_barrier = 0;
    bool gemm_since_barrier = true;
};

// Cycles to the end of a stream, at most; -1 if it would not come to it. `done` has those to the retirement of each
// instruction, if not null.
inline Time bound(const Parameters& parameters, const Contract& contract, Stream& stream, std::uint64_t address,
                  std::uint64_t count, Time* done) {
    const Program program(parameters, stream, address, count);
    if (!program.is_legal) return -1;
    Clocks clocks;
    if (!Flow<Clocks>(parameters, program, clocks).run()) return -1;
    const Costs costs(parameters, contract, program, clocks.fetch_words);
    const Windows windows(parameters, program, clocks, costs);
    const auto evaluate = [&](const Contract& promised, Time* retired) {
        Bound policy(parameters, promised, program, costs, windows, retired);
        Flow<Bound> flow(parameters, program, policy);
        flow.run();
        return flow.finished.time;
    };
    const Time found = evaluate(contract, done);
    if (!contract.has_pauses()) return found;
    // Also all cycles but the pauses, with as many pauses as can be from the launch to the event.
    std::vector<Time> others(done ? count : 0);
    const Time end = contract.with_pauses(evaluate(contract.without_pauses(), done ? others.data() : nullptr));
    for (std::size_t index = 0; index < others.size(); index++)
        done[index] = std::min(done[index], contract.with_pauses(others[index]));
    return std::min(found, end);
}

}  // namespace estimate
