"""Explains the choice of an operator's schedule."""

from __future__ import annotations

from typing import Any

from amaranth_vta.sw.compiler.environment import Environment, get_env

from .search import Choice
from .workload import Workload, choose


def explain(workload: Workload[Any], env: Environment | None = None) -> Choice[Any]:
    """The knobs considered for ``workload`` on the machine of ``env``, with their estimated cycles,
    best first: the operator is built with the first that fits. Prints as a table.
    """
    return choose(workload, (env or get_env()).config)
