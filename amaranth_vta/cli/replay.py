"""``vta replay``: a program image on a fresh machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from .cycles import SKIPPED
from .options import device_option, dram_option, json_option, skip_option, trace_option
from .outputs import Outputs
from .problems import DONE, WRONG_RESULT, MachineFault
from .progress import building

if TYPE_CHECKING:
    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.runtime.device import RunResult
    from amaranth_vta.sw.runtime.work import Work


@click.command()
@click.argument("image", type=click.Path())
@device_option
@dram_option
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(),
    metavar="FILE",
    help="Write `dram` after the run as .npz, also after a fault.",
)
@trace_option
@skip_option
@json_option
def replay(
    image: str,
    device: str,
    dram: str,
    outputs_path: str | None,
    trace_path: str | None,
    skip: str | None,
    json_path: str | None,
) -> int:
    """Run the program of IMAGE.npz on a fresh machine of its configuration.

    If the image has `expected`, memory after the run is compared with it; a difference is exit
    code 1.
    """
    import numpy as np

    from amaranth_vta.sim.devices import open_device
    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sim.trace.perfetto import Timeline
    from amaranth_vta.sw.runtime.work import work

    started = time.perf_counter()
    program = ProgramImage.load(image)
    timeline = None if trace_path is None else Timeline()
    with Outputs() as outputs:
        outputs.reserve("--outputs", outputs_path)
        outputs.reserve("--trace", trace_path)
        outputs.reserve("--json", json_path)
        with building() as progress:
            machine = open_device(
                device,
                program.config,
                program.dram.size,
                dram=dram,
                timeline=timeline,
                skip=skip,
                progress=progress,
            )
        machine.write(0, program.dram)
        result = machine.run(program.insn_addr, program.insn_count)
        after = machine.read(0, program.dram.size)
        mismatches = None
        if program.expected is not None and result.fault is None and skip is None:
            mismatches = int(np.count_nonzero(after != program.expected))
        words = program.instruction_bits()
        report = measured(
            result, work(program.config, words), mismatches, time.perf_counter() - started
        )
        report["skipped"] = skip
        outputs.save("--outputs", lambda file: np.savez(file, dram=after))
        if timeline is not None:
            outputs.save("--trace", timeline.write)
        outputs.save_json("--json", report)
    if result.fault is not None:
        raise MachineFault(f"{image}: {_fault_text(program, words, result)}")
    click.echo(f"{image} on {device}: {_summary(result, report)}")
    if skip is not None:
        click.echo(SKIPPED.format(skip))
    return WRONG_RESULT if mismatches else DONE


def measured(
    result: RunResult, asked: Work, mismatches: int | None, wall_seconds: float
) -> dict[str, Any]:
    """The JSON of a run."""
    cycles, peak = result.cycles, asked.config.macs_per_cycle
    fault = result.fault
    return {
        "cycles": cycles,
        "macs": asked.macs,
        "peak_macs_per_cycle": peak,
        "utilization": asked.macs / cycles / peak if cycles else None,
        "bound_cycles": asked.bound_cycles,
        "wall_seconds": wall_seconds,
        "device_seconds": result.seconds,
        "simulated_cycles_per_second": cycles / result.seconds
        if cycles and result.seconds
        else None,
        "mismatches": mismatches,
        "fault": fault
        and {"module": fault.module, "instruction": fault.instruction, "cause": fault.cause},
        "counters": result.counters,
    }


def _summary(result: RunResult, report: dict[str, Any]) -> str:
    parts = []
    if result.cycles is not None:
        parts.append(f"{result.cycles:,} cycles")
    match report["mismatches"]:
        case None:
            parts.append("done, with nothing to compare")
        case 0:
            parts.append("memory is as expected in every byte")
        case count:
            parts.append(f"{count:,} bytes of memory differ from what is expected")
    left = {name.replace("_", " "): count for name, count in result.tokens_left.items() if count}
    parts += [f"tokens left from {name}: {count}" for name, count in left.items()]
    return ", ".join(parts)


def _fault_text(program: ProgramImage, words: list[int], result: RunResult) -> str:
    from amaranth_vta.hw import isa
    from amaranth_vta.sw.disassembly import instruction_text

    fault = result.fault
    assert fault is not None
    text = f"the machine stopped with {fault}"
    if fault.instruction < len(words):
        instructions = isa.instruction_set(program.config)
        bits = words[fault.instruction]
        text += f": {instruction_text(instructions.decode(bits))}"
        if fault.cause == "illegal_instruction":
            text += f" ({instructions.problem(bits)})"
    return text
