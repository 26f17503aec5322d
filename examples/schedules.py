"""Schedules in the style of VTA's tutorials, each for the current machine (`vta.get_env`).

    vta lower examples/schedules.py:vector_add --trace
    vta lower examples/schedules.py:convolution --origins

Each function returns a schedule and the arguments of its function, for `vta.lower` and `vta.build`.
"""

from __future__ import annotations

import amaranth_vta as vta
from amaranth_vta import te
from amaranth_vta.sw.compiler.te.tensor import Tensor

Scheduled = tuple[te.Schedule, list[Tensor]]


def vector_add(tiles: int = 64) -> Scheduled:
    """c = a + b: accumulators in, the low bits of their sums out."""
    env = vta.get_env()
    shape = (1, tiles, env.BATCH, env.BLOCK_OUT)
    a = te.placeholder(shape, name="a", dtype=env.acc_dtype)
    b = te.placeholder(shape, name="b", dtype=env.acc_dtype)
    a_buf = te.compute(shape, lambda *i: a(*i), "a_buf")
    b_buf = te.compute(shape, lambda *i: b(*i), "b_buf")
    c_buf = te.compute(shape, lambda *i: a_buf(*i) + b_buf(*i), "c_buf")
    c = te.compute(shape, lambda *i: c_buf(*i).astype(env.out_dtype), "c")

    s = te.create_schedule(c.op)
    for tensor in (a_buf, b_buf, c_buf):
        s[tensor].set_scope(env.acc_scope)
    for tensor in (a_buf, b_buf, c):
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    s[c_buf].pragma(s[c_buf].op.axis[0], env.alu)
    return s, [a, b, c]


def convolution(
    inputs: int = 4,
    outputs: int = 4,
    size: int = 14,
    kernel: int = 3,
    rows: int = 7,
    shift: int = 8,
) -> Scheduled:
    """A convolution of ``inputs`` to ``outputs`` tiles of channels of a ``size`` x ``size`` image,
    padded to keep its size; shifted, clipped to 0 … 127, and stored.

    Two virtual threads share the output channels, ``rows`` rows of the image at a time.
    """
    env = vta.get_env()
    pad = kernel // 2
    result = (1, outputs, size, size, env.BATCH, env.BLOCK_OUT)
    data = te.placeholder(
        (1, inputs, size, size, env.BATCH, env.BLOCK_IN), name="data", dtype=env.inp_dtype
    )
    weight = te.placeholder(
        (outputs, inputs, kernel, kernel, env.BLOCK_OUT, env.BLOCK_IN),
        name="weight",
        dtype=env.wgt_dtype,
    )
    data_buf = te.pad(data, (0, 0, pad, pad, 0, 0), name="data_buf")
    weight_buf = te.compute(weight.shape, lambda *i: weight(*i), "weight_buf")
    dy, dx = te.reduce_axis((0, kernel), name="dy"), te.reduce_axis((0, kernel), name="dx")
    ic, ic_tns = te.reduce_axis((0, inputs), name="ic"), te.reduce_axis((0, env.BLOCK_IN), "ic_tns")
    conv = te.compute(
        result,
        lambda bo, co, i, j, bi, ci: te.sum(
            data_buf[bo, ic, i + dy, j + dx, bi, ic_tns].astype(env.acc_dtype)
            * weight_buf[co, ic, dy, dx, ci, ic_tns].astype(env.acc_dtype),
            axis=[ic, dy, dx, ic_tns],
        ),
        "conv",
    )
    shifted = te.compute(result, lambda *i: conv(*i) >> shift, "shifted")
    low = te.compute(result, lambda *i: te.max(shifted(*i), 0), "low")
    high = te.compute(result, lambda *i: te.min(low(*i), 127), "high")
    out = te.compute(result, lambda *i: high(*i).astype(env.out_dtype), "out")

    s = te.create_schedule(out.op)
    on_chip = (conv, shifted, low, high)
    b, oc, y, x, b_tns, oc_tns = s[out].op.axis
    oc_out, oc_inn = s[out].split(oc, factor=1)
    y_out, y_inn = s[out].split(y, factor=rows)
    oc_out, thread = s[out].split(oc_out, factor=2)
    s[out].reorder(thread, b, oc_out, y_out, oc_inn, y_inn, x, b_tns, oc_tns)
    s[out].bind(thread, te.thread_axis("cthread"))
    s[out].pragma(oc_inn, env.dma_copy)
    for tensor in on_chip:
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[out], y_out)
    for tensor in on_chip[1:]:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)

    b, oc, y, x, b_tns, oc_tns = s[conv].op.axis
    ic_out, ic_inn = s[conv].split(ic, factor=1)
    s[conv].reorder(b, ic_out, oc, ic_inn, dy, dx, y, x, b_tns, oc_tns, ic_tns)
    s[conv].tensorize(b_tns, env.gemm)
    for tensor, scope in ((data_buf, env.inp_scope), (weight_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[conv], ic_out)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    return s, [data, weight, out]
