"""Whole programs: the machine computes the expression, in every order that tokens allow."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import BuildError, Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.ir import LoopNest, LoweringError, Seq
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.passes.pipeline import PASSES
from amaranth_vta.sw.compiler.te.dtypes import dtype_interval
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.schedule import ScheduleError
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack, unpack
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq", "tiny-extended"]
# The micro-op buffer is so small that most kernels become several instructions.
UOPS64 = replace(PRESETS["tiny"], log_uop_buff_size=8)


@dataclass
class Program:
    """A schedule with its arguments: the inputs first, then the output."""

    schedule: te.Schedule
    args: list[Tensor]
    env: Environment

    def build(self) -> Function:
        return build(self.schedule, self.args, name="program", env=self.env)


def some(tensor: Tensor, rng: np.random.Generator, limit: int = 1 << 20) -> Array:
    low, high = dtype_interval(tensor.dtype)
    values = rng.integers(max(low, -limit), min(high, limit) + 1, tensor.shape)
    return values.astype("int8" if tensor.dtype == "int4" else tensor.dtype)


def run(function: Function, inputs: Mapping[Tensor, Array], runtime: Runtime) -> npt.NDArray[Any]:
    """The output of one call on ``runtime``."""
    buffers = []
    for index, arg in enumerate(function.args):
        buffers.append(runtime.allocate(function.nbytes(index), arg.name))
        if arg in inputs:
            buffers[-1].write(pack(inputs[arg], arg.dtype))
    function.run_on(runtime, *buffers)
    result = runtime.synchronize()
    assert not any(result.tokens_left.values())
    output = function.args[-1]
    data = buffers[-1].read(np.uint8, (function.nbytes(len(function.args) - 1),))
    return unpack(data, output.dtype).reshape(output.shape)


def check(program: Program, seed: int = 0, order: str = "reverse") -> Function:
    """Build the program and run it in an order that its tokens allow; assert that there is no race
    and no uninitialized read.
    """
    function = program.build()
    rng = np.random.default_rng(seed)
    inputs = {tensor: some(tensor, rng) for tensor in program.args[:-1]}
    device = FunctionalDevice(
        program.env.config,
        1 << 22,
        order,
        report_uninitialized=True,
        report_races=True,
        report_false_claims=True,
    )
    got = run(function, inputs, Runtime(device))
    assert not device.races, device.races[0]
    assert not device.false_claims, device.false_claims[0]
    assert not device.uninitialized_reads, device.uninitialized_reads[0]
    np.testing.assert_array_equal(got, te.evaluate(program.args[-1], inputs))
    return function


# Matrix product.


def matrix_product(env: Environment, shape: tuple[int, int, int]) -> tuple[list[Tensor], Tensor]:
    """A matrix product tiled over rows, inputs and outputs."""
    n, k, m = shape
    x = te.placeholder((n, k, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((m, k, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ko = te.reduce_axis((0, k), "ko")
    ki = te.reduce_axis((0, env.BLOCK_IN), "ki")
    product = te.compute(
        (n, m, env.BATCH, env.BLOCK_OUT),
        lambda bo, co, bi, ci: te.sum(
            x_buf[bo, ko, bi, ki].astype(env.acc_dtype)
            * w_buf[co, ko, ci, ki].astype(env.acc_dtype),
            axis=[ko, ki],
        ),
        "product",
    )
    y = te.compute(product.shape, lambda *i: product(*i).astype(env.out_dtype), "y")
    return [x, w, y], product


def random_matrix_product(env: Environment, seed: int) -> Program:
    """A legal schedule: tiles of any size, loops in any order, each input at any loop."""
    pick = random.Random(seed)
    shape = (pick.randint(1, 3), pick.randint(1, 5), pick.randint(1, 5))
    args, product = matrix_product(env, shape)
    s = te.create_schedule(args[-1].op)
    stage, out = s[product], s[args[-1]]
    bo, co, bi, ci = out.op.axis
    outer = []
    inner = []
    for axis in (bo, co):
        a, b = out.split(axis, pick.randint(1, 4))
        outer.append(a)
        inner.append(b)
    pick.shuffle(outer)
    out.reorder(*outer, *inner, bi, ci)
    at = pick.choice([None, *outer])
    if at is not None:
        stage.compute_at(out, at)
    if at is outer[-1] and pick.random() < 0.4:
        out.bind(outer[-1], te.thread_axis("cthread"))
    stage.set_scope(env.acc_scope)
    out.pragma(inner[0] if at is not None else outer[0], env.dma_copy)

    bo, co, bi, ci = stage.op.axis
    ko, ki = stage.reduce_axis
    loops: list[te.IterVar] = []
    for axis in (bo, co, ko):
        if pick.random() < 0.5:
            loops += stage.split(axis, nparts=pick.randint(1, 3))
        else:
            loops.append(axis)
    if pick.random() < 0.3:
        loops[:2] = [stage.fuse(*loops[:2])] if loops[0].kind == loops[1].kind else loops[:2]
    pick.shuffle(loops)
    stage.reorder(*loops, bi, ci, ki)
    stage.tensorize(bi, env.gemm)
    for tensor, scope in zip(product_inputs(product), (env.inp_scope, env.wgt_scope), strict=True):
        s[tensor].set_scope(scope)
        s[tensor].pragma(s[tensor].op.axis[pick.randint(0, 2)], env.dma_copy)
        if (place := pick.choice([None, *loops])) is not None:
            s[tensor].compute_at(stage, place)
            if pick.random() < 0.5:
                s[tensor].double_buffer()
    if pick.random() < 0.3:
        stage.double_buffer()
    return Program(s, args, env)


def product_inputs(product: Tensor) -> list[Tensor]:
    assert product.op.body is not None
    return [access.source for access in accesses(product.op.body)]


@each_seed(range(200), daily=60)
def test_any_schedule_of_a_matrix_product_gives_the_same_result(seed: int) -> None:
    config = PRESETS[CONFIGS[seed % len(CONFIGS)]] if seed % 6 else UOPS64
    program = random_matrix_product(Environment(config), seed)
    order = random.Random(seed).choice(["program", "reverse", f"random:{seed}", "last:compute"])
    check(program, seed, order)


# Convolution.


@dataclass
class Convolution:
    """Sizes in tiles; ``pads`` are top, left, bottom and right."""

    n: int
    inputs: int
    outputs: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    pads: tuple[int, int, int, int]
    tile: tuple[int, int, int, int]
    threads: bool = False
    double: bool = False
    # Order of the accumulating loops; None for the order of the definition.
    order: int | None = None


def convolution(env: Environment, c: Convolution) -> Program:
    """A convolution with bias, shift and clip, whose loop order and axis names no library operator
    uses.
    """
    top, left, bottom, right = c.pads
    height = (c.size[0] + top + bottom - c.kernel[0]) // c.stride + 1
    width = (c.size[1] + left + right - c.kernel[1]) // c.stride + 1
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((c.n, c.inputs, *c.size, env.BATCH, env.BLOCK_IN), "picture", env.inp_dtype)
    w = te.placeholder(
        (c.outputs, c.inputs, *c.kernel, env.BLOCK_OUT, env.BLOCK_IN), "filter", env.wgt_dtype
    )
    bias = te.placeholder((c.outputs, *tail), "offset", env.acc_dtype)
    x_buf = te.pad(x, (0, 0, top, left, 0, 0), (0, 0, bottom, right, 0, 0), name="x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    bias_buf = te.compute(bias.shape, lambda *i: bias(*i), "bias_buf")
    p, q, r, t = (
        te.reduce_axis((0, extent), name)
        for extent, name in (
            (c.inputs, "p"),
            (c.kernel[0], "q"),
            (c.kernel[1], "r"),
            (env.BLOCK_IN, "t"),
        )
    )
    summed = te.compute(
        (c.n, c.outputs, height, width, *tail),
        lambda a, b, d, e, f, g: te.sum(
            w_buf[b, p, q, r, g, t].astype(env.acc_dtype)
            * x_buf[a, p, d * c.stride + q, e * c.stride + r, f, t].astype(env.acc_dtype),
            axis=[r, p, q, t],
        ),
        "summed",
    )
    low, high = dtype_interval(env.out_dtype)
    clipped = te.compute(
        summed.shape,
        lambda a, b, d, e, f, g: te.min(
            te.max((bias_buf(b, f, g) + summed(a, b, d, e, f, g) + 8) >> 4, low), high
        ),
        "clipped",
    )
    y = te.compute(summed.shape, lambda *i: clipped(*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    a, b, d, e, f, g = s[y].op.axis
    (bo, bi), (do, di), (eo, ei) = (
        s[y].split(axis, size) for axis, size in zip((b, d, e), c.tile, strict=False)
    )
    s[y].reorder(a, bo, eo, do, bi, di, ei, f, g)
    if c.threads:
        s[y].bind(do, te.thread_axis("cthread"))
    for tensor in (summed, clipped, bias_buf):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], do)
    a, b, d, e, f, g = s[summed].op.axis
    po, pi = s[summed].split(p, c.tile[3])
    loops = [a, b, d, pi, q, r, e]
    if c.order is not None:
        random.Random(c.order).shuffle(loops)
    s[summed].reorder(po, *loops, f, g, t)
    s[summed].tensorize(f, env.gemm)
    for tensor, scope in ((x_buf, env.inp_scope), (w_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[summed], po)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
        if c.double:
            s[tensor].double_buffer()
    if c.double:
        s[summed].double_buffer()
    s[bias_buf].pragma(s[bias_buf].op.axis[0], env.dma_copy)
    s[clipped].pragma(s[clipped].op.axis[0], env.alu)
    s[y].pragma(bi, env.dma_copy)
    return Program(s, [x, w, bias, y], env)


def random_convolution(seed: int) -> Convolution:
    pick = random.Random(seed)
    kernel = (pick.randint(1, 5), pick.randint(1, 5))
    return Convolution(
        n=pick.randint(1, 2),
        inputs=pick.randint(1, 4),
        outputs=pick.randint(1, 3),
        size=(pick.randint(kernel[0], 13), pick.randint(kernel[1], 9)),
        kernel=kernel,
        stride=pick.randint(1, 3),
        pads=(pick.randint(0, 3), pick.randint(0, 3), pick.randint(0, 3), pick.randint(0, 3)),
        tile=(pick.randint(1, 2), pick.randint(1, 3), pick.randint(1, 4), pick.randint(1, 3)),
        threads=pick.random() < 0.3,
        double=pick.random() < 0.5,
        order=seed,
    )


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(20), daily=8)
def test_convolutions_of_all_shapes_are_exact(config: str, seed: int) -> None:
    env = Environment(PRESETS[config])
    shape = random_convolution(seed * 4 + CONFIGS.index(config))
    program = convolution(env, shape)
    problem = str(lower(program.schedule, program.args, env=env).problem)
    if "at most" in problem:
        # Tiles of this size do not fit.
        tile = (1, 1, 2, 1)
        program = convolution(env, replace(shape, tile=tile, threads=False, double=False))
    check(program, seed, random.Random(seed).choice(["reverse", f"random:{seed}"]))


def disturb(program: Program, pick: random.Random) -> None:
    """Apply one more random schedule step to a random axis, possible or not."""
    s, env = program.schedule, program.env
    stages = [stage for stage in s.stages if stage.body is not None]
    stage, other = pick.choice(stages), pick.choice(stages)
    axis, axis_of_other = pick.choice(stage.leaves), pick.choice(other.leaves)
    steps: list[Callable[[], object]] = [
        lambda: stage.set_scope(pick.choice([env.inp_scope, env.wgt_scope, env.acc_scope])),
        lambda: stage.pragma(axis, pick.choice([env.dma_copy, env.alu])),
        lambda: stage.tensorize(axis, env.gemm),
        lambda: stage.compute_at(other, axis_of_other),
        lambda: stage.bind(axis, te.thread_axis("cthread")),
        lambda: stage.reorder(axis, pick.choice(stage.leaves)),
        lambda: stage.fuse(axis, pick.choice(stage.leaves)),
        lambda: stage.split(axis, factor=pick.randint(1, 3)),
        lambda: stage.unroll(axis),
        lambda: stage.double_buffer(pick.randint(1, 3)),
        stage.compute_inline,
    ]
    pick.choice(steps)()


@each_seed(range(100), daily=40)
def test_a_schedule_is_refused_or_right(seed: int) -> None:
    pick = random.Random(seed)
    env = Environment(PRESETS[pick.choice(CONFIGS)])
    if pick.random() < 0.5:
        program = random_matrix_product(env, seed)
    else:
        program = convolution(env, random_convolution(seed))
    try:
        for _ in range(pick.randint(1, 2)):
            disturb(program, pick)
        program.build()
    except (ScheduleError, LoweringError, BuildError):
        return
    check(program, seed, pick.choice(["reverse", f"random:{seed}"]))


def interpreted(program: Program) -> list[str]:
    """Check that the loop nest computes the expression after every pass; return the passes."""
    rng = np.random.default_rng(3)
    inputs = {tensor: some(tensor, rng) for tensor in program.args[:-1]}
    want = te.evaluate(program.args[-1], inputs)
    seen: list[str] = []

    def observe(name: str) -> Callable[[LoopNest, Config], LoopNest]:
        def step(function: LoopNest, config: Config) -> LoopNest:
            arrays = [*inputs.values(), np.zeros_like(want)]
            interpret(function, config, arrays)
            np.testing.assert_array_equal(arrays[-1], want, err_msg=f"after {name}")
            seen.append(name)
            return function

        return step

    names = ["infer_bounds", *(step.__name__ for step in PASSES)]
    passes = [(f"after {name}", observe(name)) for name in names]
    assert lower(program.schedule, program.args, env=program.env, passes=passes).problem is None
    return seen


@each_seed(range(4))
def test_no_pass_changes_what_a_convolution_does(seed: int) -> None:
    env = Environment(PRESETS[["tiny", "batch2"][seed % 2]])
    shape = Convolution(
        n=1,
        inputs=2,
        outputs=1 + seed % 2,
        size=(3, 4),
        kernel=(2, 2),
        stride=1 + seed // 2,
        pads=(1, 0, seed % 2, 1),
        tile=(1, 2, 3, 1),
        threads=seed == 2,
        double=seed > 1,
    )
    assert len(interpreted(convolution(env, shape))) == len(PASSES) + 1


@each_seed(range(21), daily=9)
def test_no_pass_changes_what_a_matrix_product_does(seed: int) -> None:
    env = Environment(PRESETS[["tiny", "batch2", "tiny-extended"][seed % 3]])
    interpreted(random_matrix_product(env, seed))


def test_additional_passes_run_in_their_places() -> None:
    seen: list[str] = []

    def note(function: LoopNest, _: Config) -> LoopNest:
        seen.append(to_text(function))
        return function

    program = random_matrix_product(Environment(PRESETS["tiny"]), 0)
    built = build(
        program.schedule,
        program.args,
        env=program.env,
        passes=[("after fold_loops", note), ("before fold_loops", note)],
    )
    before, after = seen
    assert "push_gemm" not in before
    assert "push_gemm" in after
    assert to_text(built.lowered.nest) == to_text(program.build().lowered.nest).replace(
        "program", "function"
    )


def test_an_additional_pass_may_change_the_program() -> None:
    program = random_matrix_product(Environment(PRESETS["tiny"]), 0)

    def empty(function: LoopNest, _: Config) -> LoopNest:
        return replace(function, body=Seq([]))

    passes = [("before fold_loops", empty)]
    lowered = lower(program.schedule, program.args, env=program.env, passes=passes)
    assert lowered.problem is None
    assert str(lowered).endswith("pass")


@pytest.mark.parametrize("phase", ["after fuse_loops", "fold_loops", "before infer_bounds", ""])
def test_an_additional_pass_needs_a_place_that_exists(phase: str) -> None:
    program = random_matrix_product(Environment(PRESETS["tiny"]), 0)
    with pytest.raises(LoweringError, match=f"{phase!r} is not a position for a pass.* fold_loops"):
        lower(program.schedule, program.args, passes=[(phase, lambda f, _: f)])


def test_a_former_name_of_a_pass_is_accepted_with_a_warning() -> None:
    program = random_matrix_product(Environment(PRESETS["tiny"]), 0)
    seen: list[LoopNest] = []

    def note(nest: LoopNest, _: Config) -> LoopNest:
        seen.append(nest)
        return nest

    with pytest.warns(FutureWarning, match="compute_ahead is now software_pipeline"):
        lower(program.schedule, program.args, passes=[("after compute_ahead", note)])
    assert len(seen) == 1


def test_an_additional_pass_has_to_return_a_loop_nest() -> None:
    program = random_matrix_product(Environment(PRESETS["tiny"]), 0)

    def forget(*_: Any) -> Any:
        return None

    passes = [("after fold_loops", forget)]
    with pytest.raises(LoweringError, match="the pass forget returned NoneType and not a LoopNest"):
        lower(program.schedule, program.args, env=program.env, passes=passes)


def test_odd_sizes_make_nests_of_constant_extents() -> None:
    env = Environment(PRESETS["tiny"])
    shape = Convolution(1, 2, 3, (13, 7), (3, 3), 1, (1, 1, 1, 1), (2, 4, 3, 1))
    function = check(convolution(env, shape))
    assert to_text(function.lowered.nest).count("store_buffer_2d") == 8


# Pooling and arithmetic.


def pooling(env: Environment, kind: str, pad_value: int = 0) -> Program:
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((1, 2, 7, 9, *tail), "x", env.out_dtype)
    padded = te.pad(x, (0, 0, 1, 1, 0, 0), value=pad_value, name="padded")
    x_buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.acc_dtype), "x_buf")
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")
    reduce: Any = {"max": te.max, "min": te.min, "sum": te.sum}[kind]
    pool = te.compute(
        (1, 2, 4, 5, *tail),
        lambda n, c, h, w, b, k: reduce(x_buf(n, c, h * 2 + ky, w * 2 + kx, b, k), axis=[ky, kx]),
        "pool",
    )
    y = te.compute(pool.shape, lambda *i: pool(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[padded].compute_inline()
    n, c, h, w, b, k = s[y].op.axis
    ho, hi = s[y].split(h, 3)
    s[y].reorder(n, c, ho, hi, w, b, k)
    for tensor in (pool, x_buf):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], ho)
    s[x_buf].pragma(s[x_buf].op.axis[0], env.dma_copy)
    s[pool].pragma(s[pool].op.axis[0], env.alu)
    s[y].pragma(hi, env.dma_copy)
    return Program(s, [x, y], env)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_pooling_of_stored_scalars(config: str, kind: str) -> None:
    check(pooling(Environment(PRESETS[config]), kind))


@pytest.mark.parametrize(("kind", "value"), [("max", -128), ("min", 127), ("sum", 5)])
def test_pooling_pads_with_a_value(kind: str, value: int) -> None:
    program = pooling(Environment(PRESETS["tiny-extended"]), kind, value)
    assert f"pad_value={value}" in str(check(program).lowered)
    assert len(interpreted(program)) == len(PASSES) + 1


def test_a_padding_value_wraps_as_the_expression_does() -> None:
    env = Environment(PRESETS["tiny-extended"])
    x = te.placeholder((6, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    wide = te.compute(x.shape, lambda *i: x(*i).astype("int32"), "wide")
    padded = te.pad(wide, (1, 0, 0), value=300, name="padded")
    buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.inp_dtype), "buf")
    y = te.compute(buf.shape, lambda *i: buf(*i), "y")
    s = te.create_schedule(y.op)
    s[wide].compute_inline()
    s[padded].compute_inline()
    s[buf].set_scope(env.inp_scope)
    s[buf].pragma(buf.op.axis[0], env.dma_copy)
    lowered = lower(s, [x, y], env=env)
    assert "pad_value=44, sram_index=buf, memory=INP" in str(lowered)


def element_wise(
    env: Environment, functions: list[Callable[..., Expr]], inputs: int = 2
) -> Program:
    """A chain of ALU stages: each reads the inputs and the previous stage."""
    shape = (6, env.BATCH, env.BLOCK_OUT)
    args = [te.placeholder(shape, name, env.acc_dtype) for name in "abc"[:inputs]]
    bufs = [te.compute(shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in args]
    stages: list[Tensor] = []
    for number, function in enumerate(functions):
        reads = [*bufs, *stages[-1:]]
        stages.append(
            te.compute(
                shape,
                lambda *i, f=function, reads=reads: f(*(t(*i) for t in reads)),
                f"stage{number}",
            )
        )
    stored = te.compute(shape, lambda *i: stages[-1](*i).astype(env.out_dtype), "stored")
    s = te.create_schedule(stored.op)
    for tensor in [*bufs, *stages]:
        if tensor.op in [stage.op for stage in s.stages]:
            s[tensor].set_scope(env.acc_scope)
            s[tensor].pragma(s[tensor].op.axis[0], env.alu if tensor in stages else env.dma_copy)
    s[stored].pragma(s[stored].op.axis[0], env.dma_copy)
    return Program(s, [*args, stored], env)


def test_every_alu_operation_in_one_expression() -> None:
    env = Environment(PRESETS["batch2"])
    low, high = dtype_interval(env.out_dtype)
    functions: list[Callable[..., Expr]] = [
        lambda x, y, z: te.min(te.max(((5 * x + y) >> z) * x - 3 << 2, z) >> 3, high),
        lambda x, y, z, before: te.max(before, low),
    ]
    check(element_wise(env, functions, inputs=3))


def random_expression(pick: random.Random, values: tuple[Expr, ...], depth: int) -> Expr:
    if depth == 0 or pick.random() < 0.2:
        return pick.choice([*values, te.const(pick.randint(-300, 300), values[0].dtype)])
    left, right = (random_expression(pick, values, depth - 1) for _ in range(2))
    match pick.choice(["+", "-", "*", "min", "max", ">>", "<<", "- const", "const -"]):
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "min":
            return te.min(left, right)
        case "max":
            return te.max(left, right)
        case ">>":
            return left >> pick.randint(-40, 40)
        case "<<":
            return left << pick.randint(-40, 40)
        case "- const":
            return left - pick.randint(-99, 99)
    return pick.randint(-99, 99) - left


def random_arithmetic(seed: int) -> Program:
    pick = random.Random(seed)

    def function(*values: Expr) -> Expr:
        return values[0] + random_expression(pick, values, 3)

    return element_wise(Environment(PRESETS[CONFIGS[seed % 3]]), [function] * 3)


@pytest.mark.parametrize("block", range(4))
def test_random_arithmetic_is_exact_or_refused(block: int) -> None:
    """Overwritten operands are never needed later, on either side of an operation."""
    exact = 0
    for seed in range(50 * block, 50 * block + 50):
        program = random_arithmetic(seed)
        if lower(program.schedule, program.args, env=program.env).problem is None:
            check(program, seed)
            exact += 1
        else:
            with pytest.raises(BuildError, match="must be computed first|an immediate is within"):
                program.build()
    assert exact > 10


def test_a_maximum_of_accumulators_begins_at_the_least_of_them() -> None:
    """The minimum takes two immediates."""
    env = Environment(PRESETS["batch2"])
    x = te.placeholder((3, 5, env.BATCH, env.BLOCK_OUT), "x", env.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    k = te.reduce_axis((0, 5), "k")
    for reduce in (te.max, te.min):
        best = te.compute(
            (3, *x.shape[2:]), lambda i, b, c, r=reduce: r(x_buf(i, k, b, c), axis=k), "best"
        )
        y = te.compute(best.shape, lambda *i, best=best: best(*i).astype(env.out_dtype), "y")
        s = te.create_schedule(y.op)
        for tensor in (x_buf, best):
            s[tensor].set_scope(env.acc_scope)
        s[x_buf].pragma(x_buf.op.axis[0], env.dma_copy)
        s[best].pragma(best.op.axis[0], env.alu)
        s[y].pragma(y.op.axis[0], env.dma_copy)
        check(Program(s, [x, y], env))


def test_a_function_can_be_called_with_arrays_again_and_again() -> None:
    env = Environment(PRESETS["int4"])
    args, product = matrix_product(env, (1, 2, 2))
    s = te.create_schedule(args[-1].op)
    for tensor, scope in zip(product_inputs(product), (env.inp_scope, env.wgt_scope), strict=True):
        s[tensor].set_scope(scope)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    s[product].set_scope(env.acc_scope)
    s[product].tensorize(s[product].op.axis[2], env.gemm)
    bo, co, bi, ci = s[product].op.axis
    ko, ki = s[product].reduce_axis
    s[product].reorder(bo, co, ko, bi, ci, ki)
    s[args[-1]].pragma(s[args[-1]].op.axis[0], env.dma_copy)
    function = build(s, args, env=env, open_device=FunctionalDevice)
    rng = np.random.default_rng(0)
    for _ in range(2):
        inputs = {tensor: some(tensor, rng) for tensor in args[:-1]}
        got = np.zeros(args[-1].shape, np.int8)
        function(*inputs.values(), got)
        np.testing.assert_array_equal(got, te.evaluate(args[-1], inputs))
    with pytest.raises(ValueError, match=r"y is int4\[1, 2, 1, 16\], not int32\[1, 2, 1, 16\]"):
        function(*inputs.values(), got.astype(np.int32))
    with pytest.raises(ValueError, match="function takes 3 arrays, not 1"):
        function(got)
    with pytest.raises(ValueError, match="y is int4.*, not a list"):
        function(*inputs.values(), got.tolist())
    with pytest.raises(ValueError, match="x is int4.*; the array holds 8 to 8"):
        function(np.full(args[0].shape, 8, np.int8), inputs[args[1]], got)
