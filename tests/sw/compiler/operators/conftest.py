"""Fixtures that run a function and check its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.pipeline import PASSES
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.device import Device
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack, unpack

Array = npt.NDArray[Any]


class Run:
    """Run a function and return its last output. The functional model must report no race and no
    uninitialized read. ``counters`` are the machine's counters of the last run, ``outputs`` all
    outputs.
    """

    counters: dict[str, int]
    outputs: list[Array]

    def __call__(
        self,
        function: Function,
        inputs: Sequence[Array],
        *,
        order: str = "reverse",
        device: str = "functional",
    ) -> Array:
        if device != "functional":
            return self._result(function, inputs, open_device(device, function.config, 1 << 20))
        observed = FunctionalDevice(
            function.config,
            1 << 22,
            order,
            report_uninitialized=True,
            report_races=True,
            report_false_claims=True,
        )
        got = self._result(function, inputs, observed)
        assert not observed.races, observed.races[0]
        assert not observed.false_claims, observed.false_claims[0]
        assert not observed.uninitialized_reads, observed.uninitialized_reads[0]
        return got

    def _result(self, function: Function, inputs: Sequence[Array], device: Device) -> Array:
        runtime = Runtime(device)
        sizes = [(function.nbytes(i), a.name) for i, a in enumerate(function.args)]
        buffers = [runtime.allocate(*size) for size in sizes]
        for buffer, array, arg in zip(buffers, inputs, function.args, strict=False):
            buffer.write(pack(array, arg.dtype))
        function.run_on(runtime, *buffers)
        result = runtime.synchronize()
        assert not any(result.tokens_left.values())
        self.counters = result.counters
        self.outputs = []
        for index in function.outputs:
            output, data = function.args[index], buffers[index].read(np.uint8, sizes[index][0])
            self.outputs.append(unpack(data, output.dtype).reshape(output.shape))
        return self.outputs[-1]


class Interpret(Protocol):
    def __call__(
        self,
        schedule: tuple[te.Schedule, Sequence[Tensor]],
        inputs: Sequence[Array],
        want: Array,
        env: Environment,
    ) -> None: ...


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def interpreted() -> Interpret:
    """Check that the loop nest computes the expression after every pass that changes it."""

    def check(
        schedule: tuple[te.Schedule, Sequence[Tensor]],
        inputs: Sequence[Array],
        want: Array,
        env: Environment,
    ) -> None:
        s, args = schedule
        given = dict(zip(args[:-1], inputs, strict=True))
        np.testing.assert_array_equal(te.evaluate(args[-1], given), want)
        seen = []
        interpreted = ""

        def observe(name: str) -> Callable[[LoopNest, Config], LoopNest]:
            def step(function: LoopNest, config: Config) -> LoopNest:
                nonlocal interpreted
                seen.append(name)
                # The text has everything that a nest does: it reads back as the same nest.
                if (text := to_text(function)) == interpreted:
                    return function
                arrays = [*inputs, np.zeros_like(want)]
                interpret(function, config, arrays)
                np.testing.assert_array_equal(arrays[-1], want, err_msg=f"after {name}")
                interpreted = text
                return function

            return step

        names = ["infer_bounds", *(step.__name__ for step in PASSES)]
        passes = [(f"after {name}", observe(name)) for name in names]
        assert lower(s, args, env=env, passes=passes).problem is None
        assert seen == names

    return check


@pytest.fixture
def some() -> Callable[[np.random.Generator, Tensor], Array]:
    """Random values over the whole range of a tensor's dtype."""

    def values(rng: np.random.Generator, tensor: Tensor) -> Array:
        bits = int(tensor.dtype.removeprefix("int"))
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        return rng.integers(low, high + 1, tensor.shape).astype(
            "int8" if bits == 4 else tensor.dtype
        )

    return values
