// The wave file of a model compiled by Verilator, as VCD or FST; without effect in a model that was
// compiled without waves.

#pragma once

#include <cstdint>
#include <memory>

#include "verilated.h"
#ifdef TRACED_FST
#include "verilated_fst_c.h"
using WaveFile = VerilatedFstC;
#elif defined(TRACED_VCD)
#include "verilated_vcd_c.h"
using WaveFile = VerilatedVcdC;
#endif

class Waves {
  public:
#ifdef TRACED
    // Opens the file at `path` for all signals of `model`.
    template <typename Model> void open(VerilatedContext& context, Model& model, const char* path) {
        context.traceEverOn(true);
        file = std::make_unique<WaveFile>();
        model.trace(file.get(), 99);
        file->open(path);
    }
    // Writes the signals half a clock cycle after the last ones.
    void dump(VerilatedContext& context) {
        file->dump(context.time());
        context.timeInc(5);
    }
    // Completes the file up to now.
    void flush() { file->flush(); }
    void close() { file->close(); }

  private:
    std::unique_ptr<WaveFile> file;
#else
    template <typename Model> void open(VerilatedContext&, Model&, const char*) {}
    void dump(VerilatedContext&) {}
    void flush() {}
    void close() {}
#endif
};
