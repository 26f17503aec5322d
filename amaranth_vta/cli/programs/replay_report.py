"""Settings of ``vta replay`` before a run, and its report of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.report.text_table import counted

if TYPE_CHECKING:
    from amaranth_vta.sim.estimate.contract import MemoryContract
    from amaranth_vta.sim.machine.shared_memory import HasLimits
    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.runtime.device import Device, RunResult
    from amaranth_vta.sw.runtime.driver import RegisterDriver
    from amaranth_vta.sw.runtime.work import Work


def set_registers(machine: Device | HasLimits, program: ProgramImage) -> None:
    """Sets the limit and base registers of a machine."""
    machine.set_limits(program.limits)
    if any(program.bases.values()):
        cast("RegisterDriver", machine).set_bases(program.bases)


def measured(
    result: RunResult,
    asked: Work,
    dram: str,
    mismatches: int | None,
    wall_seconds: float,
    contract: MemoryContract | None = None,
    system: SystemConfig | None = None,
) -> dict[str, Any]:
    """The JSON of a run, or of runs on all machines of a ``system`` at once."""
    from amaranth_vta.report.layer_report import bound_cycles

    system = system or SystemConfig(asked.config, 1)
    cycles, peak = result.cycles, system.macs_per_cycle
    fault = result.fault
    return {
        "cycles": cycles,
        "estimated": result.estimated,
        "memory_contract": contract and str(contract),
        "macs": asked.macs,
        "peak_macs_per_cycle": peak,
        "utilization": asked.macs / cycles / peak if cycles else None,
        "bound_cycles": bound_cycles(asked, dram, 1, system.machines, system.bus_bytes),
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


def summary(result: RunResult, report: dict[str, Any]) -> str:
    parts = []
    if result.cycles is not None:
        most = "at most " if report["memory_contract"] else ""
        parts.append(f"{most}{result.cycles:,} cycles{', estimated' if result.estimated else ''}")
    match report["mismatches"]:
        case None:
            parts.append("done, with nothing to compare")
        case 0:
            parts.append("memory is as expected in every byte")
        case count:
            differ = "differs" if count == 1 else "differ"
            parts.append(f"{counted(count, 'byte')} of memory {differ} from what is expected")
    left = {name.replace("_", " "): count for name, count in result.tokens_left.items() if count}
    parts += [f"tokens left from {name}: {count}" for name, count in left.items()]
    return ", ".join(parts)


def fault_text(program: ProgramImage, words: list[int], result: RunResult) -> str:
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
