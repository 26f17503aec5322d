// Everything around the machine, in one process with it: the clock, the memory behind its AXI4
// master port, and a host that reads and writes its AXI4-Lite registers. Nothing else of the
// machine is touched; a machine built with WATCHED has outputs that show what its modules are doing,
// which are recorded. engine.py calls the functions at the end of this file.
//
// The memory is the model of ../axi_memory.py step for step, random draws included, so that both
// engines count the same cycles.

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#ifdef CXXRTL
#include "cxxrtl.hpp"
#else
#include "verilator.hpp"
#endif

namespace {

using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr unsigned BUS_BYTES = sizeof(std::remove_reference_t<decltype(std::declval<Pins>().m_axi_wdata)>);
constexpr unsigned LOG_BUS_BYTES = __builtin_ctz(BUS_BYTES);
constexpr unsigned PAGE_BYTES = 4096;
constexpr unsigned OKAY = 0, SLVERR = 2, DECERR = 3;
constexpr unsigned INCR = 1;
constexpr unsigned WORDS_WAITING = 2;     // write data taken ahead of its turn
constexpr unsigned WRITTEN_AFTER_ERROR = 2;  // words that the machine may still have in registers
constexpr unsigned DENSITY_CYCLES = 128;  // how long a channel keeps its density of gaps
enum Channel { R, W, B, AR, AW, WREADY, CHANNELS };  // each with its own random gaps
constexpr unsigned REGISTER_CYCLES = 1000;
constexpr unsigned RESET_CYCLES = 4;
// Machines on the bus; the ID of a burst is the number of its machine.
#ifdef MACHINES
constexpr unsigned COUNT = MACHINES;
#else
constexpr unsigned COUNT = 1;
#endif

// MemoryTiming of ../dram.py.
struct Timing {
    uint64_t latency, shared, reads_outstanding, writes_outstanding, refresh_period, refresh_stall;
    uint64_t random, seed;
};

class Dice {
  public:
    explicit Dice(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du) {
        if (!state) state = 1;
    }
    unsigned draw(unsigned sides) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return unsigned((state * 0x2545F4914F6CDD1Du) >> 33) % sides;
    }

  private:
    uint64_t state;
};

struct Word {
    uint8_t data[BUS_BYTES];
    uint64_t strobes;
    bool last;
    bool after_error;

    bool operator==(const Word& other) const {
        return strobes == other.strobes && last == other.last && !std::memcmp(data, other.data, BUS_BYTES);
    }
};

// An address channel's payload.
struct Address {
    uint64_t address;
    unsigned length, size, burst, id;

    bool operator==(const Address& other) const {
        return address == other.address && length == other.length && size == other.size &&
               burst == other.burst && id == other.id;
    }
    uint64_t first() const { return address & ~uint64_t(BUS_BYTES - 1); }
    unsigned beats() const { return length + 1; }
};

// What a channel's sender showed in the last cycle, to check that it is held until it is taken.
template <typename Payload>
struct Held {
    bool waiting = false;
    Payload payload{};
};

struct Read {
    uint64_t address;
    unsigned beats;
    uint64_t earliest;
    unsigned id;
};

struct Write {
    Address burst;
    unsigned beats;  // still to come
    uint64_t earliest = 0;
    std::deque<Word> words{};
};

// MOMENT of sim/trace/timeline.py.
struct Moment {
    uint64_t cycle;
    uint32_t index[4];
    uint16_t flags[4];
};
constexpr unsigned LACKS_PREV = 8, LACKS_NEXT = 9, UNIT = 10, ENDS = 4, BEGINS = 12;  // bits of the flags
constexpr unsigned LACKS = 1 << LACKS_PREV | 1 << LACKS_NEXT, PULSES = ((1 << LACKS_PREV) - 1) | 15 << BEGINS;

class Machine {
  public:
    Machine(const Timing& timing, uint8_t* memory, uint64_t bytes, uint64_t origin, const char* waves)
        : timing(timing), memory(memory), bytes(bytes), origin(origin), dice(timing.seed), simulator(timing.seed, waves),
          top(simulator.pins.get()) {
        reset();
    }

    // Back to the state after power-up, except for what memories hold.
    void reset() {
        problem.clear();
        reads.clear();
        writes.clear();
        words.clear();
        filling = 0;
        write_turn = false;
        for (unsigned i = 0; i < CHANNELS; i++) densities[i] = 8, open[i] = true;
        held_ar = held_aw = {};
        held_w = {};
        refuse(false);
        held_lite_b = {};
        held_lite_r = {};
        answer = {};
        show();
        resetting = true;
        for (unsigned i = 0; i < RESET_CYCLES; i++) {
            top->next_rst = i < RESET_CYCLES - 1;
            tick({});
        }
        resetting = false;
        tick();
    }

    bool write_register(uint32_t address, uint32_t value) {
        if (failed()) return false;
        // A host may show address and data in either order, and be slow to take the response.
        const unsigned address_delay = delay(), data_delay = delay(), response_delay = delay();
        bool address_done = false, data_done = false;
        for (unsigned i = 0; i < REGISTER_CYCLES && !failed(); i++) {
            Host next{};
            next.awaddr = address;
            next.wdata = value;
            next.awvalid = !address_done && i >= address_delay;
            next.wvalid = !data_done && i >= data_delay;
            next.bready = address_done && data_done && i >= response_delay;
            tick(next);
            const bool aw = host.awvalid && top->s_axil_awready;
            const bool w = host.wvalid && top->s_axil_wready;
            if ((aw || w) && (aw || address_done) && (w || data_done)) {
                start = cycle;
                refuse(false);
            }
            address_done |= aw;
            data_done |= w;
            if (host.bready && top->s_axil_bvalid) {
                const unsigned response = top->s_axil_bresp;
                tick({});
                if (response != OKAY) fail("AXI-Lite B", "register %#x refuses a write (response %u)", address, response);
                return !failed();
            }
        }
        fail("AXI-Lite B", "register %#x does not answer a write in %u cycles", address, REGISTER_CYCLES);
        return false;
    }

    bool read_register(uint32_t address, uint32_t& value) {
        if (failed()) return false;
        const unsigned response_delay = delay();
        bool address_done = false;
        for (unsigned i = 0; i < REGISTER_CYCLES && !failed(); i++) {
            Host next{};
            next.araddr = address;
            next.arvalid = !address_done;
            next.rready = address_done && i >= response_delay;
            tick(next);
            address_done |= host.arvalid && top->s_axil_arready;
            if (host.rready && top->s_axil_rvalid) {
                const unsigned response = top->s_axil_rresp;
                value = top->s_axil_rdata;
                tick({});
                if (response != OKAY) fail("AXI-Lite R", "register %#x refuses a read (response %u)", address, response);
                return !failed();
            }
        }
        fail("AXI-Lite R", "register %#x does not answer a read in %u cycles", address, REGISTER_CYCLES);
        return false;
    }

    // Lets the clock run until the interrupt line is high, at most `most` cycles.
    bool advance(uint64_t most) {
        bool seen = false;
        for (uint64_t i = 0; i < most && !seen && !failed(); i++) {
            seen = top->irq;
            tick();
        }
        simulator.flush();
        return seen && !failed();
    }

    bool quiet() const { return reads.empty() && writes.empty() && words.empty(); }
    bool failed() const { return !problem.empty(); }

    uint64_t cycle = 0;
    uint64_t start = 0;       // when the last register write was taken
    uint64_t rose = 0;        // when the interrupt line last rose
    uint64_t last_moved = 0;  // when anything last moved on the memory bus
    uint64_t gap_first = 0, gap_end = 0;  // addresses without memory, whole words
    uint64_t errors = 0;  // read words, and writes, that were answered with an error
    std::string problem;
    std::vector<uint64_t> awaited;  // addresses of bytes
    std::vector<uint64_t> reached;  // the cycles in which they were written, in this order
    std::vector<Moment> moments;  // of a watched machine: cycles in which something begins or ends

  private:
    // What the memory shows the machine in a cycle, besides the data.
    struct Answer {
        bool arready, awready, wready, rvalid, rlast, bvalid;
    };

    // What the host shows in a cycle.
    struct Host {
        uint32_t awaddr, wdata, araddr;
        bool awvalid, wvalid, bready, arvalid, rready;
    };

    // Ends a clock cycle; in the next one the host shows `next`.
    void tick(const Host& next) {
        top->next_s_axil_awaddr = next.awaddr;
        top->next_s_axil_awvalid = next.awvalid;
        top->next_s_axil_wdata = next.wdata;
        top->next_s_axil_wvalid = next.wvalid;
        top->next_s_axil_bready = next.bready;
        top->next_s_axil_araddr = next.araddr;
        top->next_s_axil_arvalid = next.arvalid;
        top->next_s_axil_rready = next.rready;
        tick();
        host = next;
    }

    void tick() {
        if (!resetting) {
            observe();
            step();
            show();
        }
        simulator.tick();
        cycle++;
        if (top->irq && !interrupted) rose = cycle;
        interrupted = top->irq;
    }

    void show() {
        top->next_m_axi_arready = answer.arready;
        top->next_m_axi_awready = answer.awready;
        top->next_m_axi_wready = answer.wready;
        top->next_m_axi_rvalid = answer.rvalid;
        top->next_m_axi_rlast = answer.rlast;
        top->next_m_axi_bvalid = answer.bvalid;
    }

    // Records what moves in this cycle and checks that the machine keeps to the protocol.
    void observe() {
        ar.taken = aw.taken = w_taken = r_taken = b_taken = false;
        if (top->m_axi_arvalid || held_ar.waiting) {
            ar.payload = {top->m_axi_araddr, top->m_axi_arlen, top->m_axi_arsize, top->m_axi_arburst, top->m_axi_arid};
            ar.taken = hold(held_ar, top->m_axi_arvalid, answer.arready, ar.payload, "AR");
            if (ar.taken) check_burst(ar.payload, "AR");
        }
        if (top->m_axi_awvalid || held_aw.waiting) {
            aw.payload = {top->m_axi_awaddr, top->m_axi_awlen, top->m_axi_awsize, top->m_axi_awburst, top->m_axi_awid};
            aw.taken = hold(held_aw, top->m_axi_awvalid, answer.awready, aw.payload, "AW");
            if (aw.taken) check_burst(aw.payload, "AW");
        }
        if (top->m_axi_wvalid || held_w.waiting) {
            std::memcpy(word.data, &top->m_axi_wdata, BUS_BYTES);
            word.strobes = top->m_axi_wstrb;
            word.last = top->m_axi_wlast;
            word.after_error = refused;
            w_taken = hold(held_w, top->m_axi_wvalid, answer.wready, word, "W");
        }
        r_taken = answer.rvalid && top->m_axi_rready;
        b_taken = answer.bvalid && top->m_axi_bready;
        hold(held_lite_b, top->s_axil_bvalid, host.bready, unsigned(top->s_axil_bresp), "AXI-Lite B");
        hold(held_lite_r, top->s_axil_rvalid, host.rready, uint64_t(top->s_axil_rdata) << 2 | top->s_axil_rresp,
             "AXI-Lite R");
        if (ar.taken || aw.taken || w_taken || r_taken || b_taken) last_moved = cycle;
#ifdef WATCHED
        watch();
#endif
    }

#ifdef WATCHED
#define FLAGS(module)                                                                                  \
    uint16_t(top->activity_##module##_starts | top->activity_##module##_ends << ENDS |                 \
             top->activity_##module##_begins << BEGINS |                                               \
             top->activity_##module##_lacks_prev << LACKS_PREV | top->activity_##module##_lacks_next << LACKS_NEXT | \
             top->activity_##module##_unit << UNIT)

    void watch() {
        const Moment now{
            cycle,
            {top->activity_fetch_index, top->activity_load_index, top->activity_compute_index, top->activity_store_index},
            {uint16_t(top->activity_fetch_hands_over), FLAGS(load), FLAGS(compute), FLAGS(store)}};
        bool matters = false;
        for (unsigned i = 0; i < 4; i++) matters |= now.flags[i] & PULSES || (now.flags[i] ^ lacking[i]) & LACKS;
        if (!matters) return;
        moments.push_back(now);
        std::memcpy(lacking, now.flags, sizeof lacking);
    }

    uint16_t lacking[4]{};
#endif

    template <typename Payload>
    bool hold(Held<Payload>& held, bool valid, bool ready, const Payload& payload, const char* channel) {
        if (held.waiting && !valid) fail(channel, "valid fell before ready");
        if (held.waiting && valid && !(held.payload == payload)) fail(channel, "the payload changed before ready");
        held.waiting = valid && !ready;
        if (held.waiting) held.payload = payload;
        return valid && ready;
    }

    void check_burst(const Address& burst, const char* channel) {
        if (burst.burst != INCR) fail(channel, "burst type %u is not INCR", burst.burst);
        if (burst.size != LOG_BUS_BYTES) fail(channel, "beats of %u bytes on a bus of %u", 1 << burst.size, BUS_BYTES);
        if (burst.first() % PAGE_BYTES + burst.beats() * BUS_BYTES > PAGE_BYTES)
            fail(channel, "the burst of %u beats at %#llx crosses 4 KiB", burst.beats(), (unsigned long long)burst.address);
        if (burst.id >= COUNT) fail(channel, "id %u is not below %u", burst.id, COUNT);
    }

    // The memory's answer to this cycle, shown in the next one.
    void step() {
        const uint64_t next = cycle + 1;
        if (ar.taken) reads.push_back({ar.payload.first(), ar.payload.beats(), cycle + latency(), ar.payload.id});
        if (aw.taken) writes.push_back({aw.payload, aw.payload.beats()});
        if (w_taken) words.push_back(word);
        if (r_taken) {
            answer.rvalid = 0;
            errors += is_error;
            if (answer.rlast) reads.pop_front();
        }
        if (b_taken) {
            answer.bvalid = 0;
            errors += response != OKAY;
            if (response != OKAY) refuse(true);
            writes.pop_front();
            filling--;
        }
        const bool random = timing.random;
        if (random) {
            if (next % DENSITY_CYCLES == 0)
                for (unsigned& density : densities) density = DENSITIES[dice.draw(4)];
            for (unsigned i = 0; i < CHANNELS; i++) open[i] = dice.draw(8) < densities[i];
        }
        if (is_limited()) {
            const bool paused = pauses(next);
            for (unsigned i = 0; i < CHANNELS; i++) open[i] = !paused || i >= B;
        }
        const bool moving = !timing.refresh_period || is_limited() ||
            (next - start - 1) % timing.refresh_period < timing.refresh_period - timing.refresh_stall;
        bool can_read = moving && !answer.rvalid && !reads.empty() && reads.front().earliest <= next && open[R];
        bool can_write = moving && !words.empty() && filling < writes.size() && open[W];
        if (can_read && can_write && timing.shared) {
            (write_turn ? can_read : can_write) = false;
            write_turn = !write_turn;
        }
        if (can_read) show_word(reads.front());
        if (can_write) take_word(writes[filling]);
        if (!answer.bvalid && filling > 0 && writes.front().earliest <= next && open[B]) respond(writes.front());
        answer.arready = (!timing.reads_outstanding || reads.size() < COUNT * timing.reads_outstanding) && open[AR];
        answer.awready = (!timing.writes_outstanding || writes.size() < COUNT * timing.writes_outstanding) && open[AW];
        answer.wready = words.size() < WORDS_WAITING && open[WREADY];
    }

    void show_word(Read& read) {
        const uint8_t* const word = find(read.address);
        if (word)
            std::memcpy(&top->next_m_axi_rdata, word, BUS_BYTES);
        else
            std::memset(&top->next_m_axi_rdata, 0, BUS_BYTES);
        is_error = !word;
        top->next_m_axi_rresp = is_error ? error(read.address) : OKAY;
#ifdef MACHINES
        top->next_m_axi_rid = read.id;
#endif
        answer.rlast = --read.beats == 0;
        answer.rvalid = 1;
        read.address += BUS_BYTES;
    }

    void take_word(Write& write) {
        Word& word = words.front();
        if (write.words.empty() && word.strobes & ((uint64_t(1) << write.burst.address % BUS_BYTES) - 1))
            fail("W", "strobes %#llx are below the address", (unsigned long long)word.strobes);
        const uint64_t address = write.burst.first() + write.words.size() * BUS_BYTES;
        // The words of several machines wait in the buffers of their arbiter.
        if (COUNT == 1 && word.after_error && word.strobes && find(address) && ++written_after_error > WRITTEN_AFTER_ERROR)
            fail("W", "the word at %#llx is written after an error", (unsigned long long)address);
        write.words.push_back(word);
        words.pop_front();
        write.beats--;
        if (write.words.back().last != (write.beats == 0))
            fail("W", "last is %d with %u beats to come", write.words.back().last, write.beats);
        if (write.beats == 0) {
            write.earliest = cycle + latency();
            filling++;
        }
    }

    // A write takes effect no earlier than its response: a read that does not wait gets old data.
    void respond(const Write& write) {
        uint64_t address = write.burst.first();
        response = OKAY;
        for (const Word& word : write.words) {
            uint8_t* const place = find(address);
            for (unsigned i = 0; place && i < BUS_BYTES; i++)
                if (word.strobes >> i & 1) place[i] = word.data[i];
            if (!place && response == OKAY) response = error(address);
            address += BUS_BYTES;
        }
        top->next_m_axi_bresp = response;
#ifdef MACHINES
        top->next_m_axi_bid = write.burst.id;
#endif
        answer.bvalid = 1;
        if (reached.size() < awaited.size()) {
            const uint64_t next = awaited[reached.size()];
            if (write.burst.first() <= next && next < address) reached.push_back(cycle + 1);
        }
    }

    // Whether a write has been answered with an error since the host last wrote a register: then the
    // machine writes nothing more.
    void refuse(bool now) {
        refused = now;
        if (!now) written_after_error = 0;
    }

    // The word at an address; null if there is no memory.
    uint8_t* find(uint64_t address) const {
        if (gap_first <= address && address < gap_end) return nullptr;
        const uint64_t place = address - origin;
        return address >= origin && place < bytes && bytes - place >= BUS_BYTES ? memory + place : nullptr;
    }

    // The answer where there is no memory: one of two errors, which alternate from word to word.
    static unsigned error(uint64_t address) { return address / BUS_BYTES % 2 ? SLVERR : DECERR; }

    // Whether latencies and pauses are random up to limits.
    bool is_limited() const { return timing.random && timing.refresh_period; }

    // Whether no word is transferred in cycle `at`: at random, within the limits.
    bool pauses(uint64_t at) {
        if (open[R] || !timing.refresh_stall) return false;
        if (paused.size() == timing.refresh_stall) {
            if (at - paused.front() < timing.refresh_period) return false;
            paused.pop_front();
        }
        paused.push_back(at);
        return true;
    }

    uint64_t latency() {
        if (!timing.random) return timing.latency;
        if (is_limited()) return dice.draw(2) ? timing.latency : dice.draw(unsigned(timing.latency) + 1);
        return dice.draw(4) ? 1 + dice.draw(8) : 1 + dice.draw(80);
    }

    unsigned delay() { return timing.random ? dice.draw(4) : 0; }

    __attribute__((format(printf, 3, 4))) void fail(const char* channel, const char* format, ...) {
        if (failed()) return;
        char text[200];
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        problem = std::string(channel) + " in cycle " + std::to_string(cycle) + ": " + text;
    }

    static constexpr unsigned DENSITIES[4] = {1, 4, 7, 8};  // of 8 cycles

    const Timing timing;
    uint8_t* const memory;
    const uint64_t bytes, origin;
    Dice dice;
    Simulator simulator;
    Pins* const top;

    std::deque<Read> reads;
    std::deque<Write> writes;
    std::deque<Word> words;
    std::deque<uint64_t> paused;  // the latest cycles of random pauses
    size_t filling = 0;  // writes that have all their words
    unsigned response = OKAY;
    bool is_error = false;  // the word that is shown
    bool refused = false;
    unsigned written_after_error = 0;
    bool write_turn = false;
    bool interrupted = false;
    bool resetting = false;
    Answer answer{};
    Host host{};
    unsigned densities[CHANNELS];
    bool open[CHANNELS];

    // What moves in the present cycle.
    struct { Address payload; bool taken; } ar{}, aw{};
    Word word{};
    bool w_taken = false, r_taken = false, b_taken = false;
    Held<Address> held_ar, held_aw;
    Held<Word> held_w;
    Held<unsigned> held_lite_b;
    Held<uint64_t> held_lite_r;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Machine* vta_open(const Timing* timing, uint8_t* memory, uint64_t bytes, uint64_t origin, const char* waves) {
    return new Machine(*timing, memory, bytes, origin, waves);
}
EXPORT void vta_close(Machine* machine) { delete machine; }
EXPORT void vta_reset(Machine* machine) { machine->reset(); }
EXPORT bool vta_write_register(Machine* machine, uint32_t address, uint32_t value) {
    return machine->write_register(address, value);
}
EXPORT bool vta_read_register(Machine* machine, uint32_t address, uint32_t* value) {
    return machine->read_register(address, *value);
}
EXPORT bool vta_advance(Machine* machine, uint64_t most) { return machine->advance(most); }
EXPORT uint64_t vta_cycle(const Machine* machine) { return machine->cycle; }
EXPORT uint64_t vta_start(const Machine* machine) { return machine->start; }
EXPORT uint64_t vta_rose(const Machine* machine) { return machine->rose; }
EXPORT uint64_t vta_last_moved(const Machine* machine) { return machine->last_moved; }
EXPORT bool vta_quiet(const Machine* machine) { return machine->quiet(); }
EXPORT void vta_await_writes(Machine* machine, const uint64_t* addresses, uint64_t count) {
    machine->awaited.assign(addresses, addresses + count);
    machine->reached.clear();
}
EXPORT uint64_t vta_writes_reached(const Machine* machine, const uint64_t** cycles) {
    *cycles = machine->reached.data();
    return machine->reached.size();
}
EXPORT uint64_t vta_moments(const Machine* machine, const Moment** moments) {
    *moments = machine->moments.data();
    return machine->moments.size();
}
EXPORT void vta_forget_moments(Machine* machine) { machine->moments.clear(); }
EXPORT void vta_leave_out(Machine* machine, uint64_t first, uint64_t end) {
    machine->gap_first = first;
    machine->gap_end = end;
}
EXPORT uint64_t vta_errors(const Machine* machine) { return machine->errors; }
EXPORT const char* vta_problem(const Machine* machine) { return machine->problem.c_str(); }
