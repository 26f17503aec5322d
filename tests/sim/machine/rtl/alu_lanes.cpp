// Shows lanes written in two ways the same operations: instruction by instruction, each with its
// parameters or its table before it.

#include <cstdint>
#include <random>

#include "Vtop.h"
#include "verilated.h"

namespace {

enum { SHR = 3, REQUANTIZE = 5, LOOKUP = 6, MULTIPLY_ADD = 7, OPERATIONS };
constexpr unsigned LANES = sizeof(Vtop::a) / 4, LATENCY = 6, TO_INDEX = 4, INSTRUCTION = 40;

struct Bench {
    VerilatedContext context;
    Vtop top{&context};
    std::mt19937_64 dice;
    uint32_t biases[LANES];
    bool near_ties = false;
    uint32_t found = 0;  // bit n: results of operation n have differed
    int enabled[LATENCY + 1] = {-1, -1, -1, -1, -1, -1, -1};  // operations, the latest first

    explicit Bench(uint64_t seed) : dice(seed) {}

    // A number of random width.
    int32_t number() { return int32_t(uint32_t(dice())) >> dice() % 32; }

    void fill(uint32_t* words) {
        for (unsigned lane = 0; lane < LANES; lane++) words[lane] = number();
    }

    void tick(int operation) {
        for (unsigned age = LATENCY; age > 0; age--) enabled[age] = enabled[age - 1];
        enabled[0] = operation;
        top.enable = operation >= 0;
        if (operation >= 0) top.operation = operation;
        top.table_read = enabled[TO_INDEX] == LOOKUP;
        top.clk = 0;
        top.eval();
        top.clk = 1;
        top.eval();
        if (enabled[LATENCY - 1] >= 0 && top.differs) found |= 1 << enabled[LATENCY - 1];
    }

    void parameters(int operation, unsigned which) {
        top.operation = operation;
        top.parameters = which;
        tick(-1);
        top.parameters = 0;
    }

    // A scale with which a sum of 4 is at or next to n + 1/2, or to an end of the window around it in
    // which a float32 becomes n + 1/2.
    uint64_t tie() {
        const int64_t n = int64_t(dice() % 256) >> dice() % 9;
        const int binade = n ? 63 - __builtin_clzll(n) : -1 - int(dice() % 2);
        const int64_t end = dice() % 3 ? int64_t(1) << (19 + binade) : 0;
        const int64_t offset = (dice() % 2 ? end : -end) + 4 * (int64_t(dice() % 3) - 1);
        return uint64_t((2 * n + 1 << 42) + offset) >> 2;
    }

    void requantize() {
        fill(&top.b[0]);
        for (unsigned lane = 0; lane < LANES; lane++) biases[lane] = top.b[lane];
        parameters(REQUANTIZE, 1);
        const unsigned kind = dice() % 3;
        near_ties = dice() % 2;
        uint64_t scales[LANES];
        for (uint64_t& scale : scales)  // arbitrary, few significant bits, or a power of two
            scale = kind == 0 ? dice() >> dice() % 64 : (kind == 1 ? dice() % 4096 : 1) << dice() % 49;
        for (uint64_t& scale : scales)
            if (near_ties) scale = tie();
        for (unsigned lane = 0; lane < LANES; lane++) top.b[lane] = uint32_t(scales[lane]);
        parameters(REQUANTIZE, 2);
        for (unsigned lane = 0; lane < LANES; lane++) top.b[lane] = uint32_t(scales[lane] >> 32);
        parameters(REQUANTIZE, 4);
        for (unsigned lane = 0; lane < LANES; lane++)
            top.b[lane] = dice() % 2 ? uint32_t(dice()) : (uint32_t(dice()) & 0xff0000ff) | 0x7f8000;
        parameters(REQUANTIZE, 8);
    }

    void instruction() {
        const int operation = int(dice() % OPERATIONS);
        if (operation == REQUANTIZE) requantize();
        if (operation == MULTIPLY_ADD) {
            fill(&top.b[0]);
            parameters(MULTIPLY_ADD, 6);
        }
        if (operation == LOOKUP) {
            for (unsigned place = 0; place < 64; place++) {
                top.table_write = 1;
                top.table_place = place;
                top.table_word = uint32_t(dice());
                tick(-1);
            }
            top.table_write = 0;
        }
        for (unsigned i = 0; i < INSTRUCTION; i++) {
            fill(&top.a[0]);
            fill(&top.b[0]);
            if (operation == REQUANTIZE && near_ties)
                for (unsigned lane = 0; lane < LANES; lane++) top.a[lane] = (dice() % 2 ? 4u : -4u) - biases[lane];
            tick(dice() % 8 ? operation : -1);
        }
        for (unsigned i = 0; i < LATENCY; i++) tick(-1);
    }
};

}  // namespace

// The operations of which any result differed.
extern "C" __attribute__((visibility("default"))) uint32_t differences(uint64_t seed, uint32_t instructions) {
    Bench bench(seed);
    for (uint32_t i = 0; i < instructions; i++) bench.instruction();
    return bench.found;
}
