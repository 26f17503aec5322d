"""Programs in the forms of the published VTA tutorials and operators; only the imports and the
sizes are changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import amaranth_vta as vta
from amaranth_vta import te
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler.build import build
from amaranth_vta.sw.compiler.emit.listing import listing
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower, lower_further
from amaranth_vta.sw.compiler.nest.interpret import interpret
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.te.dtypes import dtype_interval
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack, unpack

Program = tuple[te.Schedule, list[Tensor]]
Arrays = list[npt.NDArray[Any]]


def blocked_matrix_product(env: Environment) -> Program:
    """Splits by factor, a whole stage attached to another stage's axis, shift and clip as
    stages."""
    rows, inputs, outputs = 2, 4, 4
    data = te.placeholder((rows, inputs, env.BATCH, env.BLOCK_IN), "data", env.inp_dtype)
    weight = te.placeholder((outputs, inputs, env.BLOCK_OUT, env.BLOCK_IN), "weight", env.wgt_dtype)
    data_buf = te.compute(data.shape, lambda *i: data(*i), "data_buf")
    weight_buf = te.compute(weight.shape, lambda *i: weight(*i), "weight_buf")
    ko, ki = te.reduce_axis((0, inputs), name="ko"), te.reduce_axis((0, env.BLOCK_IN), name="ki")
    shape = (rows, outputs, env.BATCH, env.BLOCK_OUT)
    res_gemm = te.compute(
        shape,
        lambda bo, co, bi, ci: te.sum(
            data_buf[bo, ko, bi, ki].astype(env.acc_dtype)
            * weight_buf[co, ko, ci, ki].astype(env.acc_dtype),
            axis=[ko, ki],
        ),
        name="res_gemm",
    )
    alu, res = narrowed(env, res_gemm)
    s = te.create_schedule(res.op)
    b, oc, _, _ = s[res].op.axis
    b_out, b_inn = s[res].split(b, 1)
    oc_out, oc_inn = s[res].split(oc, 2)
    s[res].reorder(b_out, oc_out, b_inn, oc_inn)
    for tensor in (res_gemm, *alu):
        s[tensor].compute_at(s[res], oc_out)
        s[tensor].set_scope(env.acc_scope)
    b_inn, oc_inn, b_tns, oc_tns = s[res_gemm].op.axis
    ic_out, ic_inn = s[res_gemm].split(ko, nparts=2)
    s[res_gemm].reorder(ic_out, b_inn, oc_inn, ic_inn, b_tns, oc_tns, ki)
    for tensor, scope in ((data_buf, env.inp_scope), (weight_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[res_gemm], ic_out)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    s[res].pragma(s[res].op.axis[2], env.dma_copy)
    s[res_gemm].tensorize(b_tns, env.gemm)
    for tensor in alu:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    return s, [data, weight, res]


def narrowed(env: Environment, sums: Tensor) -> tuple[list[Tensor], Tensor]:
    """ALU stages that shift and clip ``sums``, and the output."""
    inp_max = (1 << (env.INP_WIDTH - 1)) - 1
    res_shr = te.compute(sums.shape, lambda *i: sums(*i) >> env.INP_WIDTH, name="res_shr")
    res_max = te.compute(sums.shape, lambda *i: te.max(res_shr(*i), 0), "res_max")
    res_min = te.compute(sums.shape, lambda *i: te.min(res_max(*i), inp_max), "res_min")
    res = te.compute(sums.shape, lambda *i: res_min(*i).astype(env.inp_dtype), name="res")
    return [res_shr, res_max, res_min], res


def convolution_of_the_tutorial(
    env: Environment, height: int = 3, width: int = 4, stride: int = 1, h_block: int = 2
) -> Program:
    """Padding within the load, and two virtual threads over blocks of outputs."""
    pad, in_channels, out_channels = 1, 2 * env.BLOCK_IN, 4 * env.BLOCK_OUT
    data_shape = (1, in_channels // env.BLOCK_IN, height, width, env.BATCH, env.BLOCK_IN)
    kernel_shape = (
        out_channels // env.BLOCK_OUT,
        in_channels // env.BLOCK_IN,
        *(3, 3, env.BLOCK_OUT, env.BLOCK_IN),
    )
    output_shape = (
        1,
        out_channels // env.BLOCK_OUT,
        *((size + 2 * pad - 3) // stride + 1 for size in (height, width)),
        *(env.BATCH, env.BLOCK_OUT),
    )
    dy = te.reduce_axis((0, 3), name="dy")
    dx = te.reduce_axis((0, 3), name="dx")
    ic = te.reduce_axis((0, in_channels // env.BLOCK_IN), name="ic")
    ic_tns = te.reduce_axis((0, env.BLOCK_IN), name="ic_tns")
    data = te.placeholder(data_shape, name="data", dtype=env.inp_dtype)
    kernel = te.placeholder(kernel_shape, name="kernel", dtype=env.wgt_dtype)
    data_buf = te.pad(data, [0, 0, pad, pad, 0, 0], name="data_buf")
    kernel_buf = te.compute(kernel_shape, lambda *i: kernel(*i), "kernel_buf")
    res_conv = te.compute(
        output_shape,
        lambda bo, co, i, j, bi, ci: te.sum(
            data_buf[bo, ic, i * stride + dy, j * stride + dx, bi, ic_tns].astype(env.acc_dtype)
            * kernel_buf[co, ic, dy, dx, ci, ic_tns].astype(env.acc_dtype),
            axis=[ic, dy, dx, ic_tns],
        ),
        name="res_conv",
    )
    alu, res = narrowed(env, res_conv)

    s = te.create_schedule(res.op)
    b, oc, y, x, b_tns, oc_tns = s[res].op.axis
    b_out, b_inn = s[res].split(b, factor=1)
    oc_out, oc_inn = s[res].split(oc, factor=1)
    y_out, y_inn = s[res].split(y, factor=h_block)
    x_out, x_inn = s[res].split(x, factor=3)
    s[res].reorder(b_out, oc_out, y_out, x_out, b_inn, oc_inn, y_inn, x_inn, b_tns, oc_tns)
    for tensor in (res_conv, *alu):
        s[tensor].compute_at(s[res], x_out)
    b_inn, oc_inn, y_inn, x_inn, b_tns, oc_tns = s[res_conv].op.axis
    ic_out, ic_inn = s[res_conv].split(ic, factor=1)
    s[res_conv].reorder(ic_out, b_inn, oc_inn, y_inn, ic_inn, dy, dx, x_inn, b_tns, oc_tns, ic_tns)
    _, tx = s[res].split(oc_out, factor=2)
    s[res].reorder(tx, b_out)
    s[res].bind(tx, te.thread_axis("cthread"))

    s[data_buf].set_scope(env.inp_scope)
    s[kernel_buf].set_scope(env.wgt_scope)
    for tensor in (res_conv, *alu):
        s[tensor].set_scope(env.acc_scope)
    s[data_buf].compute_at(s[res_conv], ic_out)
    s[kernel_buf].compute_at(s[res_conv], ic_out)
    s[data_buf].pragma(s[data_buf].op.axis[0], env.dma_copy)
    s[kernel_buf].pragma(s[kernel_buf].op.axis[0], env.dma_copy)
    s[res].pragma(s[res].op.axis[4], env.dma_copy)
    s[res_conv].tensorize(b_tns, env.gemm)
    for tensor in alu:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    return s, [data, kernel, res]


def convolution_with_tails(env: Environment) -> Program:
    return convolution_of_the_tutorial(env, height=13, width=7, h_block=3)


def convolution_with_strides(env: Environment) -> Program:
    return convolution_of_the_tutorial(env, height=5, width=5, stride=2)


def convolution_of_the_operators(env: Environment) -> Program:
    """A convolution with cached reads, a bias, and threads over outputs and rows."""
    data = te.placeholder((1, 2, 6, 4, env.BATCH, env.BLOCK_IN), "data", env.inp_dtype)
    kernel = te.placeholder((4, 2, 3, 3, env.BLOCK_OUT, env.BLOCK_IN), "kernel", env.wgt_dtype)
    bias = te.placeholder((1, 4, 1, 1, env.BATCH, env.BLOCK_OUT), "bias", env.acc_dtype)
    k_o = te.reduce_axis((0, 2), name="k_o")
    d_i, d_j = te.reduce_axis((0, 3), name="d_i"), te.reduce_axis((0, 3), name="d_j")
    k_i = te.reduce_axis((0, env.BLOCK_IN), name="k_i")
    conv = te.compute(
        (1, 4, 4, 2, env.BATCH, env.BLOCK_OUT),
        lambda b_o, c_o, i, j, b_i, c_i: te.sum(
            data[b_o, k_o, i + d_i, j + d_j, b_i, k_i].astype(env.acc_dtype)
            * kernel[c_o, k_o, d_i, d_j, c_i, k_i].astype(env.acc_dtype),
            axis=[k_o, d_i, d_j, k_i],
        ),
        name="res",
    )
    biased = te.compute(
        conv.shape,
        lambda n, c, h, w, b, k: conv(n, c, h, w, b, k) + bias(n, c, 0, 0, b, k),
        name="biased",
    )
    alu, output = narrowed(env, biased)
    s = te.create_schedule(output.op)
    cdata = s.cache_read(data, env.inp_scope, [conv])
    ckernel = s.cache_read(kernel, env.wgt_scope, [conv])
    cbias = s.cache_read(bias, env.acc_scope, [biased])
    s[conv].set_scope(env.acc_scope)
    for op in (biased, *alu):
        s[op].set_scope(env.acc_scope)
        s[op].pragma(s[op].op.axis[0], env.alu)
    x_bo, x_co, x_i, x_j, x_bi, x_ci = s[output].op.axis
    x_co0, x_co1 = s[output].split(x_co, factor=1)
    x_i0, x_i1 = s[output].split(x_i, factor=1)
    x_j0, x_j1 = s[output].split(x_j, factor=2)
    s[output].reorder(x_bo, x_i0, x_co0, x_j0, x_co1, x_i1, x_j1, x_bi, x_ci)
    for op in (conv, biased, *alu, cbias):
        s[op].compute_at(s[output], x_j0)
    s[cbias].pragma(s[cbias].op.axis[0], env.dma_copy)
    for axis in (x_co0, x_i0):
        _, v_t = s[output].split(axis, factor=2)
        s[output].reorder(v_t, x_bo)
        s[output].bind(v_t, te.thread_axis("cthread"))
    x_bo, x_co, x_i, x_j, x_bi, x_ci = s[conv].op.axis
    k_o, d_i, d_j, k_i = s[conv].op.reduce_axis
    s[conv].reorder(x_bo, k_o, x_j, d_j, d_i, x_co, x_i, x_bi, x_ci, k_i)
    k_o, _ = s[conv].split(k_o, factor=1)
    s[cdata].compute_at(s[conv], k_o)
    s[ckernel].compute_at(s[conv], k_o)
    s[cdata].pragma(s[cdata].op.axis[0], env.dma_copy)
    s[ckernel].pragma(s[ckernel].op.axis[0], env.dma_copy)
    s[conv].tensorize(x_bi, env.gemm)
    s[output].pragma(x_co1, env.dma_copy)
    return s, [data, kernel, bias, output]


def fused_and_unrolled_sum(env: Environment) -> Program:
    shape = (2, 3, env.BATCH, env.BLOCK_OUT)
    a, b = (te.placeholder(shape, name, env.acc_dtype) for name in "ab")
    a_buf = te.compute(shape, lambda *i: a(*i), "a_buf")
    b_buf = te.compute(shape, lambda *i: b(*i), "b_buf")
    c_buf = te.compute(shape, lambda *i: (a_buf(*i) - b_buf(*i)) << 1, "c_buf")
    c = te.compute(shape, lambda *i: c_buf(*i).astype(env.inp_dtype), "c")
    s = te.create_schedule(c.op)
    fused = s[c].fuse(*s[c].op.axis[:2])
    for tensor in (a_buf, b_buf, c_buf):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[c], fused)
    s[c].unroll(fused)
    s[a_buf].pragma(s[a_buf].op.axis[0], env.dma_copy)
    s[b_buf].pragma(s[b_buf].op.axis[0], env.dma_copy)
    s[c_buf].pragma(s[c_buf].op.axis[0], env.alu)
    s[c].pragma(s[c].op.axis[2], env.dma_copy)
    return s, [a, b, c]


FORMS: list[Callable[[Environment], Program]] = [
    blocked_matrix_product,
    convolution_of_the_tutorial,
    convolution_with_tails,
    convolution_with_strides,
    convolution_of_the_operators,
    fused_and_unrolled_sum,
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
# The last one's micro-op buffer holds 64 micro-ops, fewer than the kernels of a function.
CONFIGS: dict[str, Config] = {
    **{name: PRESETS[name] for name in ("tiny", "batch2", "int4", "pynq", "pynq-extended")},
    "64 micro-ops": replace(PRESETS["tiny"], log_uop_buff_size=8),
}
TINY = Environment(PRESETS["tiny"])


def arrays(args: list[Tensor]) -> tuple[Arrays, npt.NDArray[Any]]:
    """Random arrays for the inputs, and the expected output."""
    rng = np.random.default_rng(1)
    inputs: Arrays = []
    for tensor in args[:-1]:
        low, high = (max(-(1 << 16), min(1 << 16, end)) for end in dtype_interval(tensor.dtype))
        dtype = "int8" if tensor.dtype == "int4" else tensor.dtype
        inputs.append(rng.integers(low, high, tensor.shape, endpoint=True).astype(dtype))
    return inputs, te.evaluate(args[-1], dict(zip(args, inputs, strict=False)))


@pytest.mark.parametrize("config", CONFIGS)
@forms
def test_published_forms_are_exact(form: Callable[[Environment], Program], config: str) -> None:
    """Also if the runtime launches streams of a few instructions as they fill up."""
    env = Environment(CONFIGS[config])
    s, args = form(env)
    function = build(s, args, name="form", env=env)
    inputs, want = arrays(args)
    for limit in (1 << 16, 5):
        device = FunctionalDevice(env.config, 1 << 22, "reverse", report_races=True)
        runtime = Runtime(device, stream_limit=limit)
        buffers = [runtime.allocate(function.nbytes(i)) for i in range(len(args))]
        for buffer, array, arg in zip(buffers, inputs, args, strict=False):
            buffer.write(pack(array, arg.dtype))
        function.run_on(runtime, *buffers)
        runtime.synchronize()
        data = buffers[-1].read(np.uint8, (function.nbytes(len(args) - 1),))
        np.testing.assert_array_equal(unpack(data, args[-1].dtype).reshape(want.shape), want)
        assert not device.races, device.races[0]


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_a_published_convolution_is_called_with_arrays(device: str) -> None:
    s, args = convolution_of_the_tutorial(TINY)
    print(vta.lower(s, args, simple_mode=True, env=TINY))
    convolve = vta.build(s, args, name="convolve", env=TINY, device=device)
    inputs, want = arrays(args)
    got = np.zeros_like(want)
    for _ in range(2):
        convolve(*inputs, got)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "config", ["tiny", pytest.param("pynq-extended", marks=pytest.mark.nightly)]
)
@forms
def test_their_text_lowers_to_the_same_bytes_after_each_pass(
    form: Callable[[Environment], Program], config: str
) -> None:
    env = Environment(CONFIGS[config])
    lowered = lower(*form(env), env=env, trace=True)
    want = instructions(lowered.instructions())
    for name, text in lowered.steps:
        assert to_text(parse(text)) == text
        again = lower_further(parse(text), name, env.config)
        assert again.problem is None
        assert instructions(listing(again.nest, env.config)) == want, name


def instructions(text: str) -> list[str]:
    """A listing without stages and source lines, which a nest parsed from text lacks."""
    return [line.split("  # ")[0] for line in text.splitlines()]


@pytest.mark.parametrize("form", [*FORMS[:2], *FORMS[4:]], ids=lambda form: form.__name__)
def test_every_pass_keeps_what_they_do(form: Callable[[Environment], Program]) -> None:
    s, args = form(TINY)
    inputs, want = arrays(args)
    for name, text in lower(s, args, env=TINY, trace=True).steps:
        got = np.zeros_like(want)
        interpret(parse(text), TINY.config, [*inputs, got])
        np.testing.assert_array_equal(got, want, err_msg=f"after {name}")
