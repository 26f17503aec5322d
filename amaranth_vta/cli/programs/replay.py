"""``vta replay``: run a program image on a fresh machine."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import (
    device_options,
    json_option,
    memory_bus_option,
    unchecked,
    waves_option,
)
from amaranth_vta.cli.common.outputs import WAVES, Outputs, reserve_trace, save_trace, save_waves
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT, MachineFault
from amaranth_vta.sim.devices import WITH_BASES, DeviceError, RunOptions, close_device

from .replay_report import fault_text, measured, set_registers, summary

if TYPE_CHECKING:
    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.runtime.device import Device


@click.command()
@click.argument("images", type=click.Path(), nargs=-1, required=True, metavar="IMAGE...")
@device_options()
@memory_bus_option
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(),
    metavar="FILE",
    help="Write `dram` after the run as .npz, also after a fault.",
)
@waves_option
@json_option
def replay(
    images: tuple[str, ...],
    options: RunOptions,
    memory_bus: int,
    trace: str | None,
    outputs_path: str | None,
    waves: str | None,
    json_path: str | None,
) -> int:
    """Run the program of IMAGE.npz on a fresh machine.

    The machine has the configuration of the image. If the image has `expected`, memory after the
    run is compared with it; a difference is exit code 1. One with `bases` needs a simulated
    machine: the models have no base registers. Several images, whose memories must not overlap, run
    at once on as many machines that share a memory.
    """
    import numpy as np

    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.runtime.array_file import write_arrays
    from amaranth_vta.sw.runtime.instruction_words import instruction_words
    from amaranth_vta.sw.runtime.work import work

    started = time.perf_counter()
    programs = [ProgramImage.load(image) for image in images]
    for image, program in zip(images, programs, strict=True):
        if any(program.bases.values()) and options.name not in WITH_BASES:
            raise DeviceError(
                f"{image} sets base registers, which the {options.name} device does not have: use "
                "--device rtl"
            )
    options = replace(options, machines=len(images), memory_bus=memory_bus)
    if len(images) > 1:
        from .replay_system import replay_system

        return replay_system(images, programs, options, trace, outputs_path, waves, json_path)
    (image,), (program,) = images, programs
    with Outputs() as outputs:
        # Scripts rely on exit code 2 for a folder that does not exist.
        outputs.reserve("--outputs", outputs_path, parents=False)
        outputs.reserve("--json", json_path)
        timeline = reserve_trace(outputs, trace)
        options = replace(options, waves=outputs.reserve(WAVES, waves), timeline=timeline)
        machine = _open(program, options)
        result = machine.run(program.insn_addr, program.insn_count)
        after = machine.read(program.origin, program.dram.size)
        close_device(machine)  # completes the waves
        mismatches = None
        if program.expected is not None and result.fault is None and options.has_results:
            mismatches = int(np.count_nonzero(after != program.expected))
        words = program.instruction_bits()
        asked = work(program.config, instruction_words(words))
        seconds = time.perf_counter() - started
        report = measured(result, asked, options.dram, mismatches, seconds, options.contract)
        report["skipped"] = options.skip
        outputs.save("--outputs", lambda file: write_arrays(file, {"dram": after}))
        save_waves(outputs, waves)
        save_trace(outputs, trace, timeline)
        outputs.save_json("--json", report)
    if result.fault is not None:
        raise MachineFault(f"{image}: {fault_text(program, words, result)}")
    outputs.say(f"{image} on {options.name}: {summary(result, report)}")
    if not options.has_results:
        outputs.say(unchecked(options))
    return WRONG_RESULT if mismatches else DONE


def _open(program: ProgramImage, options: RunOptions) -> Device:
    """Opens a device for the program, and sets its memory and registers."""
    machine = options.open(program.config, program.dram.size, origin=program.origin)
    machine.write(program.origin, program.dram)
    set_registers(machine, program)
    return machine
