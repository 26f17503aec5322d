"""Options shared by several commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.hw.system.parameters import MOST_MACHINES
from amaranth_vta.sim.devices import DEVICES, PARTS, RunOptions
from amaranth_vta.sim.estimate.contract import ContractError, MemoryContract
from amaranth_vta.sim.machine.dram import DramError, memory_timing

if TYPE_CHECKING:
    from amaranth_vta.explore.workers import Workers


def command_line() -> str:
    """The command line as the user typed it, quoted for a shell."""
    return shlex.join(("vta", *(click.get_current_context().obj or ())))


Command = Callable[..., int]


class ConfigType(click.ParamType):
    """The name of a preset, or a JSON file with a configuration."""

    name = "NAME|FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> Config:
        return value if isinstance(value, Config) else Config.load(value)


class DramType(click.ParamType):
    """A memory model: ``ideal``, ``ddr`` or ``random:SEED``."""

    name = "ideal|ddr|random:SEED"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            memory_timing(value)
        except (ContractError, DramError) as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ContractType(click.ParamType):
    """The text of a `MemoryContract`."""

    name = "contract"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            MemoryContract.parse(value)
        except ContractError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class DimensionType(click.ParamType):
    """The size of an open dimension: ``NAME=SIZE``."""

    name = "NAME=SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, _, size = str(value).rpartition("=")
        if not name or not size.isdecimal():
            self.fail(f"{value!r} is not NAME=SIZE, such as sequence=64", param, ctx)
        return name, int(size)


def open_workers(jobs: int | None, scheduler: str | None) -> Workers:
    """Opens the workers that the two options select."""
    if jobs is not None and scheduler is not None:
        raise click.UsageError(
            "--jobs counts processes of this machine; with --scheduler, its workers do the work"
        )
    from amaranth_vta.explore.workers import Workers

    return Workers(jobs, scheduler)


def wrong_results(options: RunOptions) -> str:
    """The option with which runs compute no correct results; one of them is set."""
    return "--timing-only" if options.timing_only else "--skip"


def unchecked(options: RunOptions) -> str:
    """Why results are meaningless and not compared; empty if they should be correct."""
    if options.timing_only:
        return "nothing was computed (--timing-only): there are no results to compare"
    return SKIPPED.format(options.skip) if options.skip is not None else ""


def device_options(
    device: str = "functional", dram: str = "ideal"
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Options for `RunOptions`, passed to the command as ``options``, and --trace as ``trace``."""
    choices = (
        click.option(
            "--device",
            type=click.Choice(DEVICES),
            default=device,
            show_default=True,
            help="The device to run on. functional, a model, is fast and counts no cycles; rtl is "
            "the design in Verilator, cxxrtl in another simulator, pysim in Python; estimate adds "
            "estimated cycles to the functional model, bound an upper bound for every memory that "
            "keeps --memory-contract; board is an FPGA at the serial port "
            "VTA_PORT, or in this chip at a place such as VTA_PORT=uio:/dev/uio0, or with "
            "VTA_PORT=simulated[:BOARD] a simulated one; remote is a device that "
            "`vta serve` serves, with the credentials in the file that VTA_REMOTE names.",
        ),
        click.option(
            "--dram",
            type=DramType(),
            metavar="ideal|ddr|random:SEED",
            default=dram,
            show_default=True,
            help="The timing of the memory; the functional model ignores it. With a contract "
            "behind the seed, as in random:1,latency=48, latencies and pauses are limited.",
        ),
        click.option(
            "--memory-contract",
            type=ContractType(),
            metavar="latency=…[,response=…][,bandwidth=W/C][,refresh=S/P]",
            help="With --device bound: what the memory promises, in cycles. latency is from the "
            "offer of a read to its first word, response from the last word of a write to its "
            "response; of any C cycles with words to transfer at least W are used, save for at "
            "most S of any P.  [default: that of --dram]",
        ),
        click.option(
            "--trace",
            type=click.Path(),
            metavar="FILE",
            help="Write a timeline of the modules, which ui.perfetto.dev opens; compressed if FILE "
            "ends in .gz.",
        ),
        click.option(
            "--skip",
            type=click.Choice(PARTS),
            help="Let a part of the machine pass tokens without working, to measure what its work "
            "costs; results are then wrong.",
        ),
        click.option(
            "--timing-only",
            is_flag=True,
            help="With --device estimate or bound: only cycles, without results.",
        ),
    )

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def with_device(*args: Any, **kwargs: Any) -> int:
            names = ("device", "dram", "skip", "timing_only", "memory_contract")
            options = RunOptions(**{name: kwargs.pop(name) for name in names})
            return command(*args, options=options, **kwargs)

        decorated: Callable[..., int] = with_device
        for option in reversed(choices):
            decorated = option(decorated)
        return decorated

    return decorate


config_option = click.option(
    "--config",
    type=ConfigType(),
    default=DEFAULT,
    show_default=True,
    help="The machine: a preset, or a file in the form of vta_config.json.",
)
waves_option = click.option(
    "--waves",
    type=click.Path(),
    metavar="FILE",
    help="Write all signals of the run, as FST if the name ends with .fst, else as VCD, and views "
    "for GTKWave and Surfer to the folder FILE.views.",
)
images_option = click.option(
    "--images",
    type=click.IntRange(min=1),
    metavar="N",
    help="Images per run, for a model with an open first dimension: weights are loaded once for "
    "all images of a run.  [default: BATCH]",
)
tuned_option = click.option(
    "--tuned",
    type=click.Path(),
    metavar="FILE",
    help="Tuned schedules of the network's layers, written by `vta tune`.",
)
rounding_option = click.option(
    "--allow-rounding",
    is_flag=True,
    help="Run products on the machine even if rounding their biases to steps of the sums can "
    "change results by more than half a step.",
)
dim_option = click.option(
    "--dim",
    type=DimensionType(),
    metavar="NAME=SIZE",
    multiple=True,
    help="The size of an open dimension, such as sequence=64; may be given several times.",
)
bucket_option = click.option(
    "--bucket",
    type=DimensionType(),
    metavar="NAME=SIZE",
    multiple=True,
    help="Round an open dimension of --inputs up to a multiple of SIZE, such as sequence=32: pad "
    "inputs and crop outputs, so that fewer shapes are compiled; for networks with a mask that "
    "hides padding, or that keep positions apart.",
)
context_option = click.option(
    "--context",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of tokens of a decoder, including the prompt; it sets the size of the "
    "caches, which then stay in the machine's memory.",
)
launch_option = click.option(
    "--launch",
    type=click.Choice(("network", "layer")),
    default=None,
    help="What one launch of the machine runs: `network`, consecutive layers, each of which "
    "starts while its predecessor drains; `layer`, a single layer, so that its counters say "
    "where its cycles went.  "
    "[default: network; layer with --report]",
)
json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(),
    metavar="FILE|-",
    help="Write what was measured as JSON, also after a fault; - is standard output, and the text "
    "then goes to standard error.",
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes on this machine.  [default: one per core]",
)
scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="A Dask scheduler whose workers do the work, such as tcp://big:8786; they need this "
    "package and nothing else.",
)
# Message after a run with --skip.
SKIPPED = "{} passed tokens without working (--skip): the results are wrong and were not compared"

machines_option = click.option(
    "--machines",
    type=click.IntRange(1, MOST_MACHINES),
    default=1,
    show_default=True,
    help="Several machines behind one memory bus, with their registers 4 KiB apart; they run "
    "images of a batch at once, or share the layers of one image or token.",
)


def split_option(default: bool | None, which: str) -> Callable[[Command], Command]:
    """The option --split with its ``default``, which the text ``which`` describes."""
    return click.option(
        "--split/--no-split",
        default=default,
        help="Divide the layers of each image between the machines, for less latency, or run an "
        f"image on each. {which}",
    )


memory_bus_option = click.option(
    "--memory-bus",
    type=int,
    default=0,
    metavar="BITS",
    help="Width of the memory bus of several machines: 64, 128, 256 or 512; by default as wide as "
    "the buses of all machines together, at most 512.",
)


def require_machines(options: RunOptions, split: bool | None) -> None:
    """Refuses --split for a single machine."""
    if split and options.machines == 1:
        raise click.UsageError("--split divides layers between machines: give --machines, too")
