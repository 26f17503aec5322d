"""Explains how the compiler handles each operator of a network, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amaranth_vta.session import Session
    from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
    from amaranth_vta.sw.runtime.network.network_program import RunLayer

# Smallest rounding effect that `_rounding` reports, in steps of a result.
_WORTH_A_LINE = 1e-3


def explanation(session: Session) -> Iterator[str]:
    """One paragraph per step, in order: the reason why it runs on the host, or the loop nest on the
    machine.

    The indices of the loop nest count tiles.
    """
    from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
    from amaranth_vta.sw.runtime.network.network_program import (
        MoveWindows,
        RunHost,
        RunLayer,
        ToHost,
        ToMachine,
    )

    items = session.compiled.placement.items
    layers = {item.name: item for item in items if isinstance(item, Layer)}
    for step in session.program.steps:
        match step:
            case RunHost():
                for item in step.operators:
                    yield f"{item.name} ({item.operator}): on the host: {item.reason}"
            case RunLayer():
                layer = layers[step.name]
                yield _layer(step, layer, session) + _rounding(session, layer)
            case ToMachine():
                packing = f"{step.operand.packing}, " if step.operand.packing else ""
                yield f"{step.operand.tensor}: {packing}cut into tiles, to the machine"
            case ToHost():
                yield f"{step.tensor}: joined from tiles, to the host"
            case MoveWindows():
                yield f"{step.place}: in the addresses of instructions that access rows"
            case _:
                yield f"{step.rows}: new rows of {step.operand.tensor}, in weight tiles"


def _rounding(session: Session, layer: Layer) -> str:
    """A line on how far rounding the constants of a layer can shift its results; empty if
    negligible.
    """
    bounds = session.network.rounding.bounds
    most = max((bounds.get(node.name, 0.0) for node in layer.nodes), default=0.0)
    if most < _WORTH_A_LINE:
        return ""
    return (
        f"\nrounding of its bias moves results by at most {most:.2g} steps before they are rounded"
    )


def _layer(step: RunLayer, layer: Layer, session: Session) -> str:
    from amaranth_vta.report.layer_report import bound_cycles

    work, bus = step.work, session.system.bus_bytes
    bound = bound_cycles(work, session.dram, len(step.streams), step.machines, bus)
    nodes = " + ".join(f"{node.name} ({node.operator})" for node in layer.nodes)
    sources = " and ".join(f"{item.tensor} {list(item.image)}" for item in layer.sources)
    results = " and ".join(f"{item.tensor} {list(item.image)}" for item in layer.results)
    return (
        f"{nodes}: on the machine, {sources} to {results}\n"
        f"by itself at least {bound:,} cycles: {work.gemm_uops:,} micro-ops of GEMM and "
        f"{work.alu_uops:,} of ALU, {work.bytes_loaded:,} bytes loaded and "
        f"{work.bytes_stored:,} stored\n"
        f"{str(layer.function.lowered).rstrip()}"
    )
