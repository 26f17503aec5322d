"""``vta fuzz``: compare devices on random programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import (
    ConfigType,
    json_option,
    machines_option,
    memory_bus_option,
    open_workers,
    scheduler_option,
)
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.cli.common.progress import progress_bar
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.report.text_table import counted
from amaranth_vta.sim.devices import DEVICES

if TYPE_CHECKING:
    from amaranth_vta.sim.fuzz.campaign import Failure, Findings, Workforce

_COMPARED = ("functional", "rtl", "cxxrtl", "pysim")


class DeviceList(click.ParamType):
    """Names of devices, separated by commas."""

    name = "DEVICE,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        names = value if isinstance(value, tuple) else tuple(value.split(","))
        for name in names:
            if name not in _COMPARED:
                known = "no such device" if name not in DEVICES else "not one that is compared"
                self.fail(f"{name!r} is {known}; there are {', '.join(_COMPARED)}", param, ctx)
        return tuple(dict.fromkeys(names))


@click.command()
@click.option("--programs", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--only",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Run only the program, or with --machines the programs, with this number.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes on this machine; the results do not depend on it.  [default: 1]",
)
@scheduler_option
@click.option(
    "--devices",
    type=DeviceList(),
    default="functional,rtl",
    show_default=True,
    help="Devices to compare with the clear model, the reference in NumPy. The device functional "
    "is the compiled model, if there is a C++ compiler.",
)
@click.option(
    "--config",
    "configs",
    type=ConfigType(),
    multiple=True,
    help="A machine to run programs on, a preset or a file; may be repeated.  [default: four small "
    "presets]",
)
@click.option(
    "--random-configs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also N small machines with random parameters and extensions, by the seed. Each takes "
    "half a minute to build.",
)
@machines_option
@memory_bus_option
@click.option(
    "--keep",
    type=click.Path(file_okay=False),
    default=".",
    metavar="DIR",
    help="The folder for programs that show a difference.  [default: here]",
)
@json_option
def fuzz(
    programs: int,
    seed: int,
    only: int | None,
    jobs: int | None,
    scheduler: str | None,
    devices: tuple[str, ...],
    configs: tuple[Config, ...],
    random_configs: int,
    machines: int,
    memory_bus: int,
    keep: str,
    json_path: str | None,
) -> int:
    """Run random programs on several devices and compare results.

    Two of three programs are legal, the others have faults: illegal instructions, indices and
    addresses out of range, missing and superfluous tokens, flipped bits. Memory, scratchpads,
    counters, tokens and the report of a fault are compared with those of the clear model, in NumPy;
    the timing of memory is random. Each program follows from the seed and its number.

    With --machines, as many programs at a time run on a system of machines that share a memory,
    and each is compared as if it ran alone. On the RTL, every second system first has a reset,
    or a stop of one machine, while the programs run.

    A program that shows a difference is shortened and written to fuzz-SEED-NUMBER.npz, programs of
    a system to fuzz-SEED-NUMBER-MACHINE.npz, for `vta replay`; the exit code is then 1.
    """
    from amaranth_vta.report.coverage_table import coverage_tables
    from amaranth_vta.sim.fuzz.campaign import fuzz as run
    from amaranth_vta.sim.fuzz.cases import CONFIGS
    from amaranth_vta.sim.fuzz.cases import random_configs as drawn
    from amaranth_vta.sim.fuzz.system_cases import Systems

    names = {config: name for name, config in PRESETS.items()}
    given = {names.get(config, f"config-{at}"): config for at, config in enumerate(configs)}
    chosen = (given or {name: PRESETS[name] for name in CONFIGS}) | drawn(seed, random_configs)
    if machines == 1 and memory_bus:
        raise click.UsageError("--memory-bus is the bus of several machines: give --machines, too")
    systems = None if machines == 1 else Systems(machines, memory_bus)
    numbers = range(programs) if only is None else range(only, only + 1)
    with Outputs() as outputs, ExitStack() as stack:
        outputs.reserve("--json", json_path)
        folder = outputs.keep_folder("--keep", keep)
        progress = _progress(stack, len(numbers) * machines)
        work = stack.enter_context(_work(jobs, scheduler))
        findings = run(seed, numbers, chosen, devices, work, progress, systems)
        stack.close()
        for failure in findings.failures:
            for image, path in zip(failure.images, _paths(folder, seed, failure), strict=True):
                image.save(path)
        outputs.save_json("--json", _report(findings, seed, chosen, machines, devices, folder))
        for table in coverage_tables(findings.covered, outputs.text_width):
            outputs.say(f"{table}\n")
        outputs.say(_summary(findings, devices, len(chosen), machines))
        for failure in findings.failures:
            outputs.say(_description(failure, _paths(folder, seed, failure)))
    return WRONG_RESULT if findings.failures else DONE


@contextmanager
def _work(jobs: int | None, scheduler: str | None) -> Iterator[Workforce]:
    """Opens the workforce that the two options select."""
    if scheduler is None:
        from amaranth_vta.sim.fuzz.campaign import processes

        with processes(jobs or 1) as work:
            yield work
    else:
        with open_workers(jobs, scheduler) as workers:
            yield workers.map


def _progress(stack: ExitStack, programs: int) -> Callable[[Findings], None]:
    update = progress_bar(stack, "programs", programs)

    def show(findings: Findings) -> None:
        found = f", {len(findings.failures)} differ" if findings.failures else ""
        text = f"{findings.instructions:,} instructions{found}"
        update(completed=findings.programs, description=text)

    return show


def _summary(findings: Findings, devices: tuple[str, ...], configs: int, machines: int) -> str:
    faulty = findings.programs - findings.legal
    on = counted(configs, "configuration") if machines > 1 else f"{configs} machines"
    at_once = f", {machines} machines at once" if machines > 1 else ""
    return (
        f"{findings.programs:,} programs of {findings.instructions:,} instructions "
        f"({findings.working:,} do more than pass tokens on), {faulty:,} with faults, on "
        f"{on}{at_once}, in {findings.cycles:,} cycles and {findings.seconds:.0f} s: "
        f"{', '.join(devices)} and the clear model "
        + (f"differ in {len(findings.failures)}" if findings.failures else "agree in all of them")
    )


def _paths(folder: Path, seed: int, failure: Failure) -> list[Path]:
    """The files of the programs of a failure."""
    name = f"fuzz-{seed}-{failure.case.number}"
    if len(failure.images) == 1:
        return [folder / f"{name}.npz"]
    return [folder / f"{name}-{machine}.npz" for machine in range(len(failure.images))]


def _description(failure: Failure, paths: list[Path]) -> str:
    case, what = failure.case, "program" if len(paths) == 1 else "programs"
    files = " ".join(map(str, paths))
    lines = [f"{what} {case.number}, {case.config_name}, --dram {case.dram}: {files}"]
    if failure.disturbance is not None:
        lines.append(f"  with {failure.disturbance}, which only --only {case.number} repeats")
    return "\n".join([*lines, *(f"  {difference}" for difference in failure.differences)])


def _found(failure: Failure, paths: list[Path]) -> dict[str, Any]:
    """The files of a failure and, on a system, what happens while they run."""
    if len(paths) == 1:
        return {"image": str(paths[0])}
    disturbance = failure.disturbance and str(failure.disturbance)
    return {"images": [str(path) for path in paths], "disturbance": disturbance}


def _report(
    findings: Findings,
    seed: int,
    configs: dict[str, Config],
    machines: int,
    devices: tuple[str, ...],
    folder: Path,
) -> dict[str, Any]:
    covered: dict[str, dict[str, int]] = {}
    for point in sorted(findings.covered):
        covered.setdefault(point.kind, {})[point.aspect] = findings.covered[point]
    return {
        "seed": seed,
        "devices": devices,
        "configs": {name: config.to_dict() for name, config in configs.items()},
        "machines": machines,
        "programs": findings.programs,
        "faulty": findings.programs - findings.legal,
        "unordered": findings.unordered,
        "instructions": findings.instructions,
        "working_instructions": findings.working,
        "cycles": findings.cycles,
        "seconds": findings.seconds,
        "coverage": covered,
        "differences": [
            {
                "program": failure.case.number,
                "config": failure.case.config_name,
                "dram": failure.case.dram,
                **_found(failure, _paths(folder, seed, failure)),
                "differences": [str(difference) for difference in failure.differences],
            }
            for failure in findings.failures
        ],
    }
