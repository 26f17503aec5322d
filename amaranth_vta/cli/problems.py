"""Converts errors of commands to one line and an exit code."""

from __future__ import annotations

import click

from amaranth_vta.extras import missing_extra

DONE, WRONG_RESULT, WRONG_INPUT, MACHINE_FAULT = 0, 1, 2, 3
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h, distinct from the documented exit codes
INTERRUPTED = 128 + 2

# Exceptions caused by the user's input, by name, so that their modules need not be imported.
INPUT_ERRORS = frozenset(
    {
        "amaranth_vta.explore.spec.SpecError",
        "amaranth_vta.explore.workers.WorkersError",
        "amaranth_vta.export.network.ExportError",
        "amaranth_vta.extras.MissingExtra",
        "amaranth_vta.fpga.usage.FitError",
        "amaranth_vta.hw.boards.clock.ClockError",
        "amaranth_vta.hw.config.ConfigError",
        "amaranth_vta.report.measured.MeasuredError",
        "amaranth_vta.session.batches.InputError",
        "amaranth_vta.sim.devices.DeviceError",
        "amaranth_vta.sim.machine.dram.DramError",
        "amaranth_vta.sim.programs.image.ImageError",
        "amaranth_vta.sim.cache.ToolchainError",
        "amaranth_vta.sw.board_drivers.link.LinkError",
        "amaranth_vta.sw.board_drivers.transport.BoardError",
        "amaranth_vta.sw.remote.client.RemoteError",
        "amaranth_vta.sw.remote.keys.KeyFileError",
        "amaranth_vta.sw.runtime.driver.MismatchError",
        "amaranth_vta.sw.runtime.network.model_error.ModelError",
        "amaranth_vta.sw.compiler.nest.ir.LoweringError",
        "amaranth_vta.sw.compiler.tuner.records.RecordsError",
        "amaranth_vta.sw.runtime.memory.OutOfMemory",
        "amaranth_vta.sw.runtime.archive.ProgramError",
        "amaranth_vta.sw.runtime.array_file.FileLimitError",
    }
)
FAULTS = frozenset({"amaranth_vta.sw.runtime.device.RuntimeFault"})


class MachineFault(Exception):
    """The machine stopped with a fault; the text names module, instruction and cause."""


def describe(error: BaseException) -> tuple[str, int]:
    """One line about ``error``, and its exit code."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    match error:
        case KeyboardInterrupt() | click.Abort():
            line, code = "interrupted", INTERRUPTED
        case click.UsageError() if error.ctx is not None:
            command = error.ctx.command_path
            line = f"{error.format_message().rstrip('.')} (`{command} --help` says more)"
            code = WRONG_INPUT
        case click.ClickException():
            line, code = error.format_message(), WRONG_INPUT
        case MachineFault():
            line, code = str(error), MACHINE_FAULT
        case _ if names & FAULTS:
            line, code = str(error), MACHINE_FAULT
        case _ if names & INPUT_ERRORS:
            line, code = str(error), WRONG_INPUT
        case ModuleNotFoundError() if missing := missing_extra(error):
            line, code = str(missing), WRONG_INPUT
        case OSError() if error.strerror:
            about = f"{error.filename}: " if error.filename else ""
            line, code = f"{about}{error.strerror}", WRONG_INPUT
        case MemoryError():
            line, code = "there is not enough memory for this on the host", WRONG_INPUT
        case _:
            line = (
                f"internal error: {type(error).__name__}: {error}; this is a mistake in "
                "amaranth-vta, and VTA_DEBUG=1 in the environment shows where"
            )
            code = INTERNAL_ERROR
    return " ".join(line.split()), code
