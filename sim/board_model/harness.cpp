// A whole board design with its clock and its serial line, whose other end is a file descriptor:
// in practice a pseudo-terminal. Bytes go through the pins rx and tx, bit by bit.

#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <poll.h>
#include <unistd.h>

#include "Vtop.h"
#ifdef FALLS_UNSEEN
#include "Vtop___024root.h"
#endif
#include "../machine/rtl/waves.hpp"
#include "verilated.h"

namespace {

constexpr unsigned BITS = 10;            // of a byte on the line: start, eight, stop
constexpr unsigned CHUNK_CYCLES = 1000;  // cycles between two polls of the descriptor
constexpr int IDLE_MS = 1;               // how long to wait for the host when the line is quiet

// Drives a pin with bytes, each bit for `divisor` cycles.
class Sender {
  public:
    explicit Sender(unsigned divisor) : divisor(divisor) {}
    void push(uint8_t byte) { bytes.push_back(byte); }
    bool idle() const { return !left && bytes.empty(); }
    bool step() {
        if (!left && !bytes.empty()) {
            frame = 1u << (BITS - 1) | unsigned(bytes.front()) << 1;
            bytes.pop_front();
            left = BITS * divisor;
        }
        if (!left) return true;
        const unsigned bit = (BITS * divisor - left--) / divisor;
        return frame >> bit & 1;
    }

  private:
    const unsigned divisor;
    std::deque<uint8_t> bytes;
    unsigned frame = 0, left = 0;
};

// Receives bytes from a pin, which is sampled in the middle of each bit.
class Receiver {
  public:
    explicit Receiver(unsigned divisor) : divisor(divisor) {}
    bool idle() const { return !busy; }
    // Whether a byte is complete; it is in `byte` then.
    bool step(bool line) {
        if (!busy) {
            busy = !line;
            cycle = bits = 0;
            return false;
        }
        if (++cycle != divisor / 2 + bits * divisor) return false;
        if (bits == BITS - 1) {
            busy = false;
            return line;
        }
        if (bits) byte = uint8_t(byte >> 1 | (line ? 0x80 : 0));
        bits++;
        return false;
    }
    uint8_t byte = 0;

  private:
    const unsigned divisor;
    bool busy = false;
    unsigned cycle = 0, bits = 0;
};

class Board {
  public:
    // The `count` `arguments` are handed to the design; `path` is the file of a board with waves.
    Board(unsigned divisor, int count, const char** arguments, const char* path)
        : to_board(divisor), from_board(divisor) {
        context.commandArgsAdd(count, arguments);
        context.randReset(2);  // memories are undefined after power-up
        top = std::make_unique<Vtop>(&context);
        top->rst = 0;
        top->rx = 1;
        waves.open(context, *top, path);
        top->eval();
    }
    ~Board() {
        enter();
        top->final();
        waves.close();
    }

    // Runs the clock until the other end of `line` is closed, or `*stop` is set. With nothing to do
    // on the line it waits for the host now and then, so that it leaves the processor to others;
    // the clock goes on all the same.
    void serve(int line, const volatile int* stop) {
        enter();
        while (!*stop) {
            const bool quiet = to_board.idle() && from_board.idle() && out.empty();
            pollfd ready{line, short(POLLIN | (out.empty() ? 0 : POLLOUT)), 0};
            poll(&ready, 1, quiet ? IDLE_MS : 0);
            if (ready.revents & POLLIN && !take(line)) return;
            if (ready.revents & POLLOUT && !give(line)) return;
            for (unsigned i = 0; i < CHUNK_CYCLES; i++) tick();
        }
    }

    uint64_t cycle = 0;

  private:
    // Verilator's runtime works in a context per thread: by default the last one that was created,
    // which belongs to another board if there are several, and may have been destroyed.
    void enter() { Verilated::threadContextp(&context); }

    bool take(int line) {
        uint8_t bytes[4096];
        const ssize_t count = read(line, bytes, sizeof bytes);
        for (ssize_t i = 0; i < count; i++) to_board.push(bytes[i]);
        return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR || errno == EIO));
    }

    bool give(int line) {
        uint8_t bytes[4096];
        size_t count = 0;
        for (; count < sizeof bytes && count < out.size(); count++) bytes[count] = out[count];
        const ssize_t written = write(line, bytes, count);
        if (written < 0) return errno == EAGAIN || errno == EINTR || errno == EIO;
        out.erase(out.begin(), out.begin() + written);
        return true;
    }

    void tick() {
        top->rx = to_board.step();
        top->clk = 1;
        top->eval();
        waves.dump(context);
        top->clk = 0;
#ifdef FALLS_UNSEEN
        // Nothing happens at a falling edge: it is hidden from the model and not evaluated.
        top->rootp->__Vtrigprevexpr___TOP__clk__0 = 0;
#else
        top->eval();
#endif
        waves.dump(context);
        cycle++;
        if (from_board.step(top->tx)) out.push_back(from_board.byte);
    }

    VerilatedContext context;
    std::unique_ptr<Vtop> top;
    Waves waves;
    Sender to_board;
    Receiver from_board;
    std::deque<uint8_t> out;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Board* board_open(unsigned divisor, int count, const char** arguments, const char* waves) {
    return new Board(divisor, count, arguments, waves);
}
EXPORT void board_close(Board* board) { delete board; }
EXPORT void board_serve(Board* board, int line, const volatile int* stop) { board->serve(line, stop); }
EXPORT uint64_t board_cycle(const Board* board) { return board->cycle; }
