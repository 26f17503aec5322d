"""The base class of errors that the user can correct: `VtaError`."""

from __future__ import annotations

from typing import ClassVar

# Exit codes of the command line.
WRONG_INPUT, MACHINE_FAULT = 2, 3


class VtaError(Exception):
    """An error in an input, a call or the host's installation, or a fault of the machine; the
    message says what is wrong and where.

    The command line prints the message and exits with ``exit_code``. An exception of any other
    class is an internal error there.
    """

    exit_code: ClassVar[int] = WRONG_INPUT
