"""Why an operator is scheduled the way it is."""

from __future__ import annotations

from typing import Any

from amaranth_vta.sw.compiler.environment import Environment, get_env

from .search import Choice
from .workload import Workload, choose


def explain(workload: Workload[Any], env: Environment | None = None) -> Choice[Any]:
    """What is considered for ``workload`` on the machine of ``env``, the best first, which is
    what it is built with: knobs, with their estimated cycles. As text it is a table."""
    return choose(workload, (env or get_env()).config)
