"""``vta lower``: print the steps from a schedule to instructions."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import config_option, rounding_option
from amaranth_vta.hw.config import Config

if TYPE_CHECKING:
    from amaranth_vta.sw.compiler.environment import Environment
    from amaranth_vta.sw.compiler.lower import Lowered
    from amaranth_vta.sw.compiler.te.schedule import Schedule
    from amaranth_vta.sw.compiler.te.tensor import Tensor

    # A name, a schedule, and the arguments of its function.
    Scheduled = tuple[str, Schedule, list[Tensor]]

# Suffixes of files with networks.
_NETWORKS = (".onnx", ".tflite")


@click.command()
@click.argument("source", metavar="FILE.py:FUNCTION|MODEL|NEST.txt")
@config_option
@rounding_option
@click.option("--layer", metavar="NAME", help="Only this layer of the network.")
@click.option(
    "--after",
    metavar="PASS",
    help="Print only the loop nest after this pass. For NEST.txt, the pass after which it was "
    "printed: lowering continues from there.",
)
@click.option("--trace", is_flag=True, help="Print the loop nest after every pass that changes it.")
@click.option(
    "--origins", is_flag=True, help="Add to each line the tensor, axis and source line it is from."
)
def lower(
    source: str,
    config: Config,
    allow_rounding: bool,
    layer: str | None,
    after: str | None,
    trace: bool,
    origins: bool,
) -> None:
    """Print what a schedule becomes: nest, instructions, micro-ops.

    FILE.py is executed with your rights: read a file from others before. FUNCTION takes no
    arguments and returns a schedule and the list of its arguments, as `vta.build` takes them; in it
    `vta.get_env()` is the machine of --config. Of MODEL, a file of ONNX (.onnx) or TensorFlow Lite
    (.tflite), the layers that the machine runs are printed, with the schedules that the compiler
    chooses. NEST.txt is a loop nest as --after prints it, which may have been edited.
    """
    from amaranth_vta.sw.compiler.environment import Environment
    from amaranth_vta.sw.compiler.passes.pipeline import FORMER_NAMES, PASS_NAMES

    if after in FORMER_NAMES:
        click.echo(
            f"vta: warning: --after {after}: the pass is now {FORMER_NAMES[after]}", err=True
        )
        after = FORMER_NAMES[after]
    if after is not None and after not in PASS_NAMES:
        raise click.ClickException(f"--after {after}: the passes are {', '.join(PASS_NAMES)}")
    if layer is not None and not source.endswith(_NETWORKS):
        raise click.ClickException("--layer is for networks in ONNX and TensorFlow Lite files")
    if source.endswith(".txt"):
        if after is None:
            names = ", ".join(PASS_NAMES)
            raise click.ClickException(
                f"give --after, the pass after which {source} was printed: one of {names}"
            )
        if origins:
            raise click.ClickException(f"--origins is for schedules: {source} has no source lines")
        click.echo(_of_nest(source, config, after, trace))
        return
    with Environment(config) as env:
        found = (
            _of_network(source, config, layer, allow_rounding)
            if source.endswith(_NETWORKS)
            else [_of_file(source)]
        )
        for number, (name, schedule, args) in enumerate(found):
            click.echo(
                "\n" * (number > 0) + _text(name, schedule, args, env, after, trace, origins)
            )


def _text(
    name: str,
    schedule: Schedule,
    args: list[Tensor],
    env: Environment,
    after: str | None,
    trace: bool,
    origins: bool,
) -> str:
    from amaranth_vta.sw.compiler.lower import lower

    lowered = lower(schedule, args, trace=True, name=name, env=env, labels=origins)
    steps = dict(lowered.steps)
    if after is not None and after in steps:
        return steps[after]
    if after is not None:
        raise click.ClickException(f"{name} cannot be lowered up to {after}: {lowered.problem}")
    return _shown(lowered, trace)


def _shown(lowered: Lowered, trace: bool) -> str:
    """The last loop nest, or with ``trace`` the loop nest after each pass; then the instructions,
    or the reason why there are none.
    """
    parts = list(_changes(lowered.steps)) if trace else [lowered.steps[-1][1]]
    if lowered.problem:
        parts.append(f"# not for the machine: {lowered.problem}")
    else:
        parts.append(f"# instructions\n{lowered.instructions()}")
    return "\n\n".join(parts)


def _of_nest(path: str, config: Config, after: str, trace: bool) -> str:
    """Lowers a loop nest from a file, starting after the pass ``after``."""
    from amaranth_vta.sw.compiler.lower import lower_further
    from amaranth_vta.sw.compiler.nest.parse import ParseError, parse
    from amaranth_vta.sw.runtime.kernels import CommandError

    try:
        nest = parse(Path(path).read_text(encoding="utf-8", errors="replace"))
        return _shown(lower_further(nest, after, config, trace=True), trace)
    except (ParseError, CommandError) as error:
        raise click.ClickException(f"{path}: {error}") from None


def _changes(steps: list[tuple[str, str]]) -> Iterator[str]:
    """Each pass with the resulting text, or one line if it changed nothing."""
    before = ""
    for name, text in steps:
        yield f"# {name}: changes nothing" if text == before else f"# {name}\n{text}"
        before = text


def _of_network(
    path: str, config: Config, layer: str | None, allow_rounding: bool
) -> list[Scheduled]:
    from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
    from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
    from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
    from amaranth_vta.sw.compiler.graph.plan.placement import place

    network = canonical(load_network(read_model(path), config.batch), allow_rounding)
    items = place(network, config).items
    layers = {item.name: item.function for item in items if isinstance(item, Layer)}
    if not layers:
        raise click.ClickException(f"{path} has no layer that the machine runs")
    if layer is not None and layer not in layers:
        raise click.ClickException(
            f"--layer {layer}: the layers on the machine are {', '.join(layers)}"
        )
    chosen = layers if layer is None else {layer: layers[layer]}
    return [(function.name, function.schedule, function.args) for function in chosen.values()]


def _of_file(source: str) -> Scheduled:
    """The schedule returned by a function of a Python file; an error in the file is reported with
    its line.
    """
    path, _, name = source.rpartition(".py:")
    path = f"{path}.py" if path else source
    if not path.endswith(".py"):
        raise click.ClickException(f"{source} is not FILE.py:FUNCTION, MODEL or NEST.txt")
    if not Path(path).is_file():
        raise click.ClickException(f"{path} is not a file")
    try:
        functions = _functions(path)
        if path == source or name not in functions:
            choice = ", ".join(functions) or "none"
            raise click.ClickException(f"name a function as {path}:FUNCTION; there is {choice}")
        schedule, args = functions[name]()
    except click.ClickException:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = f":{frames[-1].lineno}" if frames else ""
        raise click.ClickException(f"{path}{line}: {type(error).__name__}: {error}") from None
    return name, schedule, list(args)


def _functions(path: str) -> dict[str, Any]:
    """The functions of a file that can be called without arguments."""
    name = Path(path).stem
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # as `import` does, so that classes can find their module
    spec.loader.exec_module(module)
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and all(p.default is not p.empty for p in inspect.signature(value).parameters.values())
    }
