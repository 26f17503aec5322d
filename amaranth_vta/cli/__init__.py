"""The command ``vta``: a package per section of its help with a module per command, and the entry
point.

Commands return their exit code; an exception is printed as one line on standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import NoReturn

import click

from .common.problems import describe
from .common.streams import prepare_streams
from .installation.doctor import doctor
from .installation.examples import examples
from .machine.build import build
from .machine.config import config
from .machine.header import header
from .machine.program import program
from .machine.serve import serve
from .machine.verilog import verilog
from .measurements.bench import bench
from .measurements.compare import compare
from .measurements.estimate_area import estimate_area
from .measurements.explore import explore
from .networks.classify import classify
from .networks.compile import compile_model
from .networks.export import export
from .networks.generate import generate
from .networks.quantize import quantize
from .networks.run import run
from .networks.show import show
from .networks.tune import tune
from .programs.disasm import disasm
from .programs.fuzz import fuzz
from .programs.lower import lower
from .programs.replay import replay

_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Networks": (run, generate, compile_model, show, quantize, tune, export, classify),
    "Measurements": (bench, compare, explore, estimate_area),
    "The machine": (config, verilog, header, build, program, serve),
    "Programs of the machine": (lower, disasm, replay, fuzz),
    "This installation": (doctor, examples),
}


class _Sections(click.Group):
    """A group that lists its commands by section."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.commands)
        for heading, commands in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (str(command.name).ljust(width), command.get_short_help_str(80))
                        for command in commands
                    ]
                )


@click.group(
    cls=_Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(package_name="amaranth-vta")
@click.pass_context
def vta(context: click.Context) -> None:
    """A tensor accelerator: run networks and programs on it, look inside, take it away as Verilog.

    Exit codes: 0 done, 1 the result is wrong, 2 the input or the call is wrong, 3 the machine
    faulted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in chain.from_iterable(_SECTIONS.values()):
    vta.add_command(command)


def main() -> None:
    """Entry point of the command ``vta``."""
    prepare_streams()
    signal.signal(signal.SIGTERM, _end)
    if not sys.warnoptions:
        # Standard error is for messages to the user; PYTHONWARNINGS still enables warnings.
        warnings.simplefilter("ignore")
    sys.exit(invoke(sys.argv[1:]))


def _end(signal_number: int, _: object) -> NoReturn:
    """Exits through an exception, so that temporary files are cleaned up."""
    sys.exit(128 + signal_number)


def invoke(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code.

    With VTA_DEBUG set, exceptions propagate instead of being printed as one line.
    """
    try:
        with vta.make_context("vta", list(arguments), obj=tuple(arguments)) as context:
            code = vta.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except BrokenPipeError:
        # The reader of the pipe has exited; Python would flush standard output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("VTA_DEBUG"):
            raise
        line, code = describe(error)
        click.echo(f"vta: {line}", err=True)
    return code or 0
