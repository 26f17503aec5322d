"""Checks a schedule's results after each pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.pipeline import PASSES
from amaranth_vta.sw.compiler.te.tensor import Tensor


def check_all_passes(
    s: te.Schedule, args: list[Tensor], data: Sequence[Any], want: Any, env: Environment
) -> None:
    """Check that the loop nest computes ``want`` from ``data`` after each pass, also once printed
    and parsed.
    """
    seen: list[str] = []

    def check(nest: LoopNest, _: Any) -> LoopNest:
        for form in (nest, parse(to_text(nest))):
            got = np.zeros(want.shape, np.int8)
            interpret(form, env.config, [*data, got])
            np.testing.assert_array_equal(got, want)
        seen.append("")
        return nest

    places = [("after " + step.__name__, check) for step in PASSES]
    assert lower(s, args, env=env, passes=[("after infer_bounds", check), *places]).problem is None
    assert len(seen) == len(PASSES) + 1
