"""Tokens: every order that they allow has the same result, and each of them is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Module
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.compiler.operators.depthwise_chain import (
    DepthwiseChain,
    DepthwiseChainKnobs,
    depthwise_chain,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.runtime.runtime import Runtime

ORDERS = ["program", "reverse", "random:1", "random:2", "last:load", "last:compute", "last:store"]
QUEUES = [
    (Module.LOAD, Module.COMPUTE),
    (Module.COMPUTE, Module.LOAD),
    (Module.COMPUTE, Module.STORE),
    (Module.STORE, Module.COMPUTE),
]
SHIFT = RoundingShift(4, -128, 127)
SQUARE = Conv2d(1, 2, 3, 6, 5, (3, 3), SHIFT, pads=(1, 1, 1, 1))
RESCALED = Conv2d(1, 2, 3, 6, 5, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1))


def vector_add(env: Environment) -> Function:
    a, b = (te.placeholder((24, env.BATCH, env.BLOCK_OUT), name, env.acc_dtype) for name in "ab")
    a_buf, b_buf = (te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (a, b))
    total = te.compute(a.shape, lambda *i: a_buf(*i) + b_buf(*i), "total")
    y = te.compute(a.shape, lambda *i: total(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    outer, inner = s[y].split(s[y].op.axis[0], 6)
    for tensor in (a_buf, b_buf, total):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], outer)
        mark = env.alu if tensor is total else env.dma_copy
        s[tensor].pragma(s[tensor].op.axis[0], mark)
        s[tensor].double_buffer()
    s[y].pragma(inner, env.dma_copy)
    return build(s, [a, b, y], env=env)


def matrix_product(env: Environment, threads: bool) -> Function:
    """The matrix product of the tutorials, with or without two virtual threads."""
    x = te.placeholder((2, 3, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((4, 3, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    x_buf, w_buf = (te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (x, w))
    ko, ki = te.reduce_axis((0, 3), "ko"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    acc = env.acc_dtype
    product = te.compute(
        (2, 4, env.BATCH, env.BLOCK_OUT),
        lambda n, o, b, k: te.sum(
            x_buf[n, ko, b, ki].astype(acc) * w_buf[o, ko, k, ki].astype(acc), axis=[ko, ki]
        ),
        "product",
    )
    y = te.compute(product.shape, lambda *i: product(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    n, o, b, k = s[y].op.axis
    o_out, o_in = s[y].split(o, 2)
    s[y].reorder(n, o_out, o_in, b, k)
    if threads:
        s[y].bind(o_out, te.thread_axis("cthread"))
    s[y].pragma(o_in, env.dma_copy)
    s[product].set_scope(env.acc_scope)
    s[product].compute_at(s[y], o_out)
    n, o, b, k = s[product].op.axis
    s[product].reorder(ko, n, o, b, k, ki)
    s[product].tensorize(b, env.gemm)
    for tensor, scope in ((x_buf, env.inp_scope), (w_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[product], ko)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    return build(s, [x, w, y], env=env)


BLOCK = DepthwiseChain(
    Conv2d(1, 2, 3, 6, 5, (1, 1), PerChannelScale()),
    GroupedConv2d(3, Conv2d(1, 1, 1, 6, 5, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1)), 2),
)
RESIDUAL = replace(
    BLOCK,
    projection=Conv2d(
        1,
        3,
        1,
        6,
        5,
        (1, 1),
        PerChannelScale(then=(Addition(FixedPoint((5, 3), 7, 4, 0, -99, 99)),)),
    ),
)
PROGRAMS: dict[str, tuple[str, Callable[[Environment], Function]]] = {
    "vector add": ("tiny", vector_add),
    "matrix product": ("tiny", lambda env: matrix_product(env, threads=False)),
    "matrix product, two threads": ("tiny", lambda env: matrix_product(env, threads=True)),
    "dense": (
        "batch2",
        lambda env: dense(Dense(2, 6, 5, SHIFT), env, Tiling(2, 1, inputs=3, ahead=True)),
    ),
    "dense, rescaled": ("tiny-extended", lambda env: dense(Dense(3, 8, 4, PerChannelScale()), env)),
    "pool": (
        "tiny",
        lambda env: max_pool2d(MaxPool2d(1, 2, 7, 6, (3, 3), (2, 2)), env, OutputTile((1, 2, 2))),
    ),
    "convolution": ("tiny", lambda env: conv2d(SQUARE, env)),
    "convolution, image kept": (
        "tiny",
        lambda env: conv2d(SQUARE, env, Tiling(1, 2, 5, 2, 3, weights_outside=False)),
    ),
    "convolution, rests": (
        "tiny",
        lambda env: conv2d(SQUARE, env, Tiling(2, 4, 3, 1, 3, ahead=True)),
    ),
    "convolution, rescaled": ("tiny-extended", lambda env: conv2d(RESCALED, env)),
    "convolution, rescaled in turn": (
        "tiny-extended",
        lambda env: conv2d(RESCALED, env, Tiling(1, 2, 5, 1, 3, True, True, True)),
    ),
    "expansion and depthwise": (
        "tiny-extended",
        lambda env: depthwise_chain(BLOCK, env, DepthwiseChainKnobs(2, 3, 1, whole_weights=False)),
    ),
    "inverted residual": (
        "tiny-extended",
        lambda env: depthwise_chain(RESIDUAL, env, DepthwiseChainKnobs(2, 2, 1)),
    ),
    "convolution, many copies": (
        "tiny-extended",
        lambda env: conv2d(RESCALED, env, Tiling(1, 1, 5, 2, 3, True, True, True, 3)),
    ),
}


class Forgetful(Runtime):
    """Omits one token: the ``nth`` of ``queue``."""

    def __init__(self, device: FunctionalDevice, queue: tuple[Module, Module], nth: int) -> None:
        super().__init__(device)
        self.queue, self.nth = queue, nth
        self.seen = {"push": 0, "pop": 0}

    def dep_push(self, producer: Module, consumer: Module) -> None:
        if self._keeps("push", producer, consumer):
            super().dep_push(producer, consumer)

    def dep_pop(self, producer: Module, consumer: Module) -> None:
        if self._keeps("pop", producer, consumer):
            super().dep_pop(producer, consumer)

    def _keeps(self, action: str, producer: Module, consumer: Module) -> bool:
        if (producer, consumer) != self.queue:
            return True
        self.seen[action] += 1
        return self.seen[action] - 1 != self.nth


def run(function: Function, runtime: Runtime) -> npt.NDArray[np.uint8]:
    """The bytes of the output, for random bytes as inputs."""
    rng = np.random.default_rng(0)
    buffers = [runtime.allocate(function.nbytes(i), a.name) for i, a in enumerate(function.args)]
    for index, buffer in enumerate(buffers[:-1]):
        buffer.write(rng.integers(0, 256, function.nbytes(index), np.uint8))
    function.run_on(runtime, *buffers)
    runtime.synchronize()
    return buffers[-1].read(np.uint8, function.nbytes(len(buffers) - 1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_order_that_tokens_allow_gives_the_same_result(name: str) -> None:
    machine, made = PROGRAMS[name]
    config = PRESETS[machine]
    function = made(Environment(config))
    results = []
    for order in ORDERS:
        device = FunctionalDevice(config, 1 << 20, order, report_races=True)
        results.append(run(function, Runtime(device)))
        assert not device.races
    assert len({result.tobytes() for result in results}) == 1


# Without `nightly`, every twelfth token of these; their loops repeat.
MANY_TOKENS = {"inverted residual", "expansion and depthwise", "convolution, many copies"}
STEPS = [(name, 12 if name in MANY_TOKENS else 1) for name in PROGRAMS]


@pytest.mark.parametrize(
    ("name", "step"),
    [*STEPS, *(pytest.param(name, 1, marks=pytest.mark.nightly) for name in sorted(MANY_TOKENS))],
)
def test_without_any_one_token_two_instructions_meet_that_nothing_orders(
    name: str, step: int
) -> None:
    machine, made = PROGRAMS[name]
    config = PRESETS[machine]
    function = made(Environment(config))
    dropped = 0
    for queue in QUEUES:
        nth = 0
        while True:
            observed = FunctionalDevice(config, 1 << 20, report_races=True)
            runtime = Forgetful(observed, queue, nth)
            run(function, runtime)
            if runtime.seen["push"] <= nth:
                break
            assert observed.races, f"token {nth} of {queue} is redundant"
            nth, dropped = nth + step, dropped + 1
    assert dropped > 1
