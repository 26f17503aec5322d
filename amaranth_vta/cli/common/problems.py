"""Converts errors of commands to one line and an exit code."""

from __future__ import annotations

import click

from amaranth_vta.errors import MACHINE_FAULT, WRONG_INPUT, VtaError
from amaranth_vta.extras import missing_extra

DONE, WRONG_RESULT = 0, 1
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h, distinct from the documented exit codes
INTERRUPTED = 128 + 2


class MachineFault(VtaError):
    """The machine stopped with a fault; the text names module, instruction and cause."""

    exit_code = MACHINE_FAULT


def describe(error: BaseException) -> tuple[str, int]:
    """One line about ``error``, and its exit code."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            line, code = "interrupted", INTERRUPTED
        case click.UsageError() if error.ctx is not None:
            command = error.ctx.command_path
            line = f"{error.format_message().rstrip('.')} (`{command} --help` says more)"
            code = WRONG_INPUT
        case click.ClickException():
            line, code = error.format_message(), WRONG_INPUT
        case VtaError():
            line, code = str(error), error.exit_code
        case ModuleNotFoundError() if missing := missing_extra(error):
            line, code = str(missing), WRONG_INPUT
        case OSError() if error.strerror:
            about = f"{error.filename}: " if error.filename else ""
            line, code = f"{about}{error.strerror}", WRONG_INPUT
        case MemoryError():
            line, code = "there is not enough memory for this on the host", WRONG_INPUT
        case _:
            line = (
                f"internal error: {type(error).__name__}: {error}; this is a bug in amaranth-vta; "
                f"VTA_DEBUG=1 in the environment prints the traceback"
            )
            code = INTERNAL_ERROR
    return " ".join(line.split()), code
