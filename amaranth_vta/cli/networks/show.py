"""``vta show``: a network's graph after each step of its compilation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import (
    config_option,
    context_option,
    dim_option,
    images_option,
    rounding_option,
)
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import Config

if TYPE_CHECKING:
    from amaranth_vta.sw.compiler.graph.network import Network
    from amaranth_vta.sw.compiler.graph.nodes import Node
    from amaranth_vta.sw.compiler.graph.plan.placement import Placement
    from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

STEPS = ("loaded", "canonical", "placed", "planned")


@click.command()
@click.argument("model", type=click.Path(), metavar="MODEL")
@config_option
@images_option
@rounding_option
@dim_option
@context_option
@click.option(
    "--after",
    type=click.Choice(STEPS),
    multiple=True,
    help="Only the graph after this step; may be given more than once.",
)
def show(
    model: str,
    config: Config,
    images: int | None,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    context: int | None,
    after: tuple[str, ...],
) -> None:
    """Print the graph of MODEL after each step of compilation.

    MODEL is a file of ONNX or TensorFlow Lite.

    loaded: shapes fixed, constants folded. canonical: operators on integers wherever they compute
    the same. placed: on the machine or on the host, and why. planned: in the order in which they
    run, with the transfers from one side to the other. In a decoder with a --context, known marks
    operators whose results for the tokens of a generation are in a table.
    """
    from amaranth_vta.session.compilation import compile, prepared
    from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
    from amaranth_vta.sw.compiler.graph.load.opsets import conversion

    read = prepared(model, config, dict(dim), context)
    compiled = compile(read, config, images, allow_rounding=allow_rounding)
    texts = {
        "loaded": lambda: _nodes(load_network(read, images or config.batch)),
        "canonical": lambda: _nodes(compiled.network),
        "placed": lambda: _placed(compiled.placement),
        "planned": lambda: _planned(compiled.program),
    }
    with Outputs() as outputs:
        if note := conversion(read):
            outputs.say(note)
        for step in after or STEPS:
            outputs.say(f"{step}:")
            for line in texts[step]():
                outputs.say(f"  {line}")


def _nodes(network: Network) -> Iterator[str]:
    for node in network.nodes:
        yield _line(network, node)


def _placed(placement: Placement) -> Iterator[str]:
    from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer

    for item in placement.items:
        if isinstance(item, Layer):
            operators = " + ".join(node.operator for node in item.nodes)
            sources = ", ".join(f"{held.tensor} {list(held.image)}" for held in item.sources)
            results = ", ".join(f"{held.tensor} {list(held.image)}" for held in item.results)
            yield f"machine  {results} = {operators}({sources})"
        else:
            yield f"host     {_line(placement.network, item.node)}"
            yield f"         because {item.reason}"


def _planned(program: NetworkProgram) -> Iterator[str]:
    from amaranth_vta.sw.runtime.network.network_program import (
        MoveWindows,
        RunHost,
        RunLayer,
        ToHost,
        ToMachine,
    )

    for step in program.steps:
        match step:
            case RunHost():
                names = ", ".join(f"{item.name} ({item.operator})" for item in step.operators)
                yield f"{'known' if step.known else 'host':<13}{names}"
            case RunLayer():
                yield f"machine      {step.name} ({step.operator}), {step.macs:,} MACs"
            case ToMachine():
                how = f", {step.operand.packing}" if step.operand.packing else ""
                yield f"to machine   {step.operand.tensor}{how}, in {step.buffer}"
            case ToHost():
                yield f"to host      {step.tensor}, from {step.buffer}"
            case MoveWindows():
                yield f"to machine   {step.place}, in the addresses of instructions"
            case _:
                yield f"to machine   {step.rows}, as new rows in {step.buffer}"


def _line(network: Network, node: Node) -> str:
    results = ", ".join(_typed(network, name) for name in node.outputs if name)
    given = ", ".join(_constant(network, name) if name else "-" for name in node.inputs)
    attributes = {name: value for name, value in node.attributes.items() if _is_short(value)}
    options = "".join(f" {name}={value}" for name, value in sorted(attributes.items()))
    domain = f"{node.domain}." if node.domain else ""
    return f"{results} = {domain}{node.operator}({given}){options}"


def _typed(network: Network, name: str) -> str:
    return f"{name} {network.types[name]}"


def _constant(network: Network, name: str) -> str:
    """The value of a scalar constant, the type of a larger constant, or the name of a tensor."""
    value = network.constants.get(name)
    if value is None:
        return name
    return (
        f"{value.item():.6g}"
        if value.size == 1 and value.dtype.kind in "iuf"
        else str(network.types[name])
    )


def _is_short(value: object) -> bool:
    return isinstance(value, int | float | str | list | tuple)
