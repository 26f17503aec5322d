"""``vta replay`` of several images: programs on machines that share a memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from amaranth_vta.cli.common.options import unchecked
from amaranth_vta.cli.common.outputs import WAVES, Outputs, reserve_trace
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT, MachineFault
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.report.systems import system_report
from amaranth_vta.sim.devices import RunOptions, close_device
from amaranth_vta.sim.machine.shared_memory import SystemBacked
from amaranth_vta.sim.programs.image import ImageError, ProgramImage
from amaranth_vta.sw.runtime.array_file import write_arrays
from amaranth_vta.sw.runtime.device import total
from amaranth_vta.sw.runtime.instruction_words import instruction_words
from amaranth_vta.sw.runtime.work import work

from .replay_report import fault_text, measured, set_registers, summary

# From the first byte of all memories to the last; what lies between them is allocated, too.
_MOST_BYTES = 1 << 30


def replay_system(
    paths: Sequence[str],
    programs: Sequence[ProgramImage],
    options: RunOptions,
    trace: str | None,
    outputs_path: str | None,
    waves: str | None,
    json_path: str | None,
) -> int:
    """Run each of ``programs``, from the files ``paths``, on a machine, all at once. The other
    arguments are the options of the command.
    """
    started = time.perf_counter()
    memory = _memory_of(paths, programs)
    system = SystemConfig(programs[0].config, len(programs), options.memory_bus)
    with Outputs() as outputs:
        outputs.reserve("--outputs", outputs_path, parents=False)
        outputs.reserve("--json", json_path)
        timeline = reserve_trace(outputs, trace)
        options = replace(options, waves=outputs.reserve(WAVES, waves), timeline=timeline)
        device = options.open(system.config, len(memory), origin=memory.start)
        assert isinstance(device, SystemBacked)
        for program, part in zip(programs, device.parts, strict=True):
            device.write(program.origin, program.dram)
            set_registers(part, program)
        result = device.run_all([(item.insn_addr, item.insn_count) for item in programs])
        after = [device.read(item.origin, item.dram.size) for item in programs]
        close_device(device)
        asked = [work(item.config, instruction_words(item.instruction_bits())) for item in programs]
        reports: list[dict[str, Any]] = []
        for program, run, found, of_one in zip(programs, result.runs, after, asked, strict=True):
            mismatches = None
            if program.expected is not None and run.fault is None and options.has_results:
                mismatches = int(np.count_nonzero(found != program.expected))
            reports.append(measured(run, of_one, options.dram, mismatches, run.seconds))
        seconds = time.perf_counter() - started
        all_runs = replace(total(result.runs), cycles=result.cycles)
        compared = [item["mismatches"] for item in reports if item["mismatches"] is not None]
        report = {
            **system_report(system, split=False),
            **measured(
                all_runs,
                reduce(add, asked),
                options.dram,
                sum(compared) if compared else None,
                seconds,
                system=system,
            ),
            "skipped": None,
            "programs": [
                {"image": path, **item} for path, item in zip(paths, reports, strict=True)
            ],
        }
        arrays = {f"dram_{number}": found for number, found in enumerate(after)}
        outputs.save("--outputs", lambda file: write_arrays(file, arrays))
        outputs.save_json("--json", report)
    faults = []
    for path, program, run, item in zip(paths, programs, result.runs, reports, strict=True):
        if run.fault is not None:
            faults.append(f"{path}: {fault_text(program, program.instruction_bits(), run)}")
        else:
            outputs.say(f"{path} on {options.name}: {summary(run, item)}")
    if faults:
        raise MachineFault("; ".join(faults))
    if result.cycles is not None:
        outputs.say(f"{len(programs)} machines at once: {result.cycles:,} cycles")
    if not options.has_results:
        outputs.say(unchecked(options))
    return WRONG_RESULT if report["mismatches"] else DONE


def _memory_of(paths: Sequence[str], programs: Sequence[ProgramImage]) -> range:
    """The addresses of the memory that holds all images. Raises `ImageError` if they overlap, are
    far from each other or are for different machines.
    """
    for path, program in zip(paths, programs, strict=True):
        if program.config != programs[0].config:
            raise ImageError(f"{path} and {paths[0]} are for different machines")
    ordered = sorted(range(len(programs)), key=lambda number: programs[number].origin)
    for first, second in pairwise(ordered):
        if _end(programs[first]) > programs[second].origin:
            raise ImageError(f"the memories of {paths[first]} and {paths[second]} overlap")
    memory = range(programs[ordered[0]].origin, _end(programs[ordered[-1]]))
    if len(memory) > _MOST_BYTES:
        raise ImageError(
            f"the memories of {paths[ordered[0]]} and {paths[ordered[-1]]} are more than "
            f"{_MOST_BYTES:,} bytes apart"
        )
    return memory


def _end(program: ProgramImage) -> int:
    return program.origin + program.dram.size
