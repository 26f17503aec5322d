"""Groups host operators by reason, with advice: `host_groups`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .layer_report import LayerReport

_QUANTIZE = "quantize the float model with `vta quantize`"
_EXTENDED = "--config pynq-extended has REQUANTIZE, which takes any scale"
# A regular expression for reasons, the group of matching reasons, and advice to the user.
_GROUPS: tuple[tuple[str, str, str], ...] = (
    (r"^float tensors are the host's$", "conversions between floats and integers", ""),
    (r"pixels as channels of one", "packing of pixels into channels, which saves cycles", ""),
    (r"second factors as ", "packing of second factors as weights", ""),
    (
        r"--allow-rounding",
        "biases whose rounding could move results by more than half a step",
        "--allow-rounding rounds them nevertheless",
    ),
    (
        r"is in float: (its .* in float$|.*nothing quantizes)",
        "products in float, not between quantizations",
        _QUANTIZE,
    ),
    (
        r"accuracy_level \d keeps it so",
        "products of floats and packed weights",
        "written with accuracy_level=4, MatMulNBits runs on the machine",
    ),
    (
        r"product's result, which nothing quantizes",
        "operators on results of products that nothing quantizes",
        "`vta quantize` of the float model puts a QuantizeLinear between them",
    ),
    (
        r"^its operand .* in float$",
        "operators with an operand in float",
        "of a float model, `vta quantize` quantizes all that the machine can run",
    ),
    (
        r"power of two|is not within 2|zero point -?\d+ is odd|has no REQUANTIZE",
        "scales that the base instruction set cannot represent",
        _EXTENDED,
    ),
    (
        r"^it pads with|and the machine with zeros$",
        "padding that is not 0",
        "--config pynq-extended",
    ),
    (
        r"no factors, addend and shift|differs from float32",
        "scales for which fixed point does not give every result",
        "calibrate with other data, or quantize with --power-of-two",
    ),
    (
        r"not a straight line between two bounds",
        "functions that are not a straight line between two bounds",
        "Relu, Clip or HardSigmoid in their place run on the machine",
    ),
    (
        r"zero points are known only at run time|^the machine has no Dynamic",
        "dynamic quantization, whose scales are known only at run time",
        _QUANTIZE,
    ),
    (r"is held as an image of|have different shapes", "operands of different layouts", ""),
    (r"^it follows an operator on the host$", "operators between others on the host", ""),
)


@dataclass
class HostGroup:
    """Operators on the host for the same ``reason``: their number by kind in ``operators``, their
    ``macs`` per run, and ``advice`` to the user.
    """

    reason: str
    advice: str
    operators: Counter[str] = field(default_factory=Counter)
    macs: int = 0

    @property
    def count(self) -> int:
        return self.operators.total()


def host_groups(layers: Iterable[LayerReport]) -> list[HostGroup]:
    """The host's operators grouped by reason, sorted by MACs, then by number, both descending."""
    groups: dict[str, HostGroup] = {}
    for layer in layers:
        if layer.placed_on == "host":
            reason, advice = _group(layer.reason)
            group = groups.setdefault(reason, HostGroup(reason, advice))
            group.operators[layer.operator] += 1
            group.macs += layer.host_macs
    return sorted(groups.values(), key=lambda group: (-group.macs, -group.count))


def share_on_machine(layers: Sequence[LayerReport]) -> float | None:
    """The machine's share of the network's MACs; None for a network without MACs."""
    machine = sum(layer.macs_per_run for layer in layers)
    total = machine + sum(layer.host_macs for layer in layers)
    return machine / total if total else None


def summary(layers: Sequence[LayerReport]) -> dict[str, Any]:
    """Counts of operators and MACs on machine and host, for JSON."""
    machine = [layer for layer in layers if layer.placed_on == "machine"]
    return {
        "layers_on_machine": len(machine),
        "operators_on_host": sum(layer.placed_on == "host" for layer in layers),
        "macs_on_machine": sum(layer.macs_per_run for layer in machine),
        "macs_on_host": sum(layer.host_macs for layer in layers),
        "share_on_machine": share_on_machine(layers),
        "host": [
            {
                "reason": group.reason,
                "count": group.count,
                "operators": dict(group.operators.most_common()),
                "macs": group.macs,
                "advice": group.advice,
            }
            for group in host_groups(layers)
        ],
    }


def _group(reason: str) -> tuple[str, str]:
    for pattern, summary, advice in _GROUPS:
        if re.search(pattern, reason):
            return summary, advice
    return reason, ""
