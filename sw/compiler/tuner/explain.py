"""Why an operator is scheduled as it is."""

from __future__ import annotations

from typing import Any

from amaranth_vta.sw.compiler.environment import Environment, get_env
from amaranth_vta.sw.compiler.operators import dense
from amaranth_vta.sw.compiler.operators.conv2d import schedule as conv2d
from amaranth_vta.sw.compiler.operators.conv2d.sizes import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense

from .search import Choice


def explain(workload: Conv2d | Dense, env: Environment | None = None) -> Choice[Any]:
    """What is considered for ``workload`` on the machine of ``env``, the best first, which is
    what it is built with: knobs, with estimates of their cycles and of the parts of them."""
    config = (env or get_env()).config
    match workload:
        case Conv2d():
            return conv2d.choose(workload, config)
        case Dense():
            return dense.choose(workload, config)
