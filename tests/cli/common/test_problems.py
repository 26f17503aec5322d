from __future__ import annotations

from importlib import import_module

import click
import pytest

from amaranth_vta import VtaError
from amaranth_vta.cli.common.problems import MachineFault, describe
from amaranth_vta.sw.runtime.device import Fault, RuntimeFault
from amaranth_vta.sw.runtime.memory import OutOfMemory

INPUT_ERRORS = (
    "cli.common.outputs.OutputError",
    "explore.spec.SpecError",
    "explore.workers.WorkersError",
    "export.network.ExportError",
    "extras.MissingExtra",
    "fpga.usage.FitError",
    "hw.boards.clock.ClockError",
    "hw.config.ConfigError",
    "report.measured.MeasuredError",
    "session.batches.InputError",
    "sim.cache.ToolchainError",
    "sim.devices.DeviceError",
    "sim.machine.dram.DramError",
    "sim.programs.image.ImageError",
    "sw.board_drivers.link.LinkError",
    "sw.board_drivers.transport.BoardError",
    "sw.compiler.nest.ir.LoweringError",
    "sw.compiler.tuner.records.RecordsError",
    "sw.remote.client.RemoteError",
    "sw.remote.keys.KeyFileError",
    "sw.runtime.archive.ProgramError",
    "sw.runtime.array_file.FileLimitError",
    "sw.runtime.driver.MismatchError",
    "sw.runtime.memory.OutOfMemory",
    "sw.runtime.network.model_error.ModelError",
)


@pytest.mark.parametrize("name", INPUT_ERRORS)
def test_an_input_error_is_one_line_and_exit_code_2(name: str) -> None:
    module, _, error = name.rpartition(".")
    kind = getattr(import_module(f"amaranth_vta.{module}"), error)
    assert issubclass(kind, VtaError)
    assert describe(kind("a file:\n   damaged")) == ("a file: damaged", 2)


def test_a_fault_of_the_machine_is_exit_code_3() -> None:
    fault = Fault("compute", 4, "bad_opcode")
    assert describe(RuntimeFault(fault, None, "stopped")) == ("stopped", 3)
    assert describe(MachineFault("stopped")) == ("stopped", 3)


def test_memory_of_the_machine_is_not_taken_for_memory_of_the_host() -> None:
    assert describe(OutOfMemory("4 bytes are left")) == ("4 bytes are left", 2)
    assert describe(MemoryError())[0] == "there is not enough memory for this on the host"


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), KeyError("x")])
def test_any_other_exception_is_an_internal_error(error: Exception) -> None:
    line, code = describe(error)
    assert line.startswith(f"internal error: {type(error).__name__}: ")
    assert code == 70


def test_an_interrupted_command_says_so() -> None:
    assert describe(KeyboardInterrupt()) == describe(click.Abort()) == ("interrupted", 130)
