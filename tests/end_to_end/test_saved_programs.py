"""A compiled function is recorded without a machine, saved, and run on each device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.runtime.program import Program, Recorder
from amaranth_vta.sw.runtime.runtime import Runtime

TINY = PRESETS["tiny"]


def matrix_product(rows: int, inner: int, columns: int) -> Function:
    """y = x · wᵀ in blocks, with its low bits stored; all tensors are in tiles."""
    env = Environment(TINY)
    x = te.placeholder((rows, inner, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((columns, inner, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ko, ki = te.reduce_axis((0, inner), "ko"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    shape = (rows, columns, env.BATCH, env.BLOCK_OUT)
    product = te.compute(
        shape,
        lambda r, c, b, o: te.sum(
            x_buf[r, ko, b, ki].astype(env.acc_dtype) * w_buf[c, ko, o, ki].astype(env.acc_dtype),
            axis=[ko, ki],
        ),
        "product",
    )
    y = te.compute(shape, lambda *i: product(*i).astype(env.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[x_buf].set_scope(env.inp_scope)
    s[w_buf].set_scope(env.wgt_scope)
    s[product].set_scope(env.acc_scope)
    outer, _ = s[y].split(y.op.axis[0], factor=3)
    s[product].compute_at(s[y], outer)
    r, c, b, o = s[product].op.axis
    s[product].reorder(ko, r, c, b, o, ki)
    for data in (x_buf, w_buf):
        s[data].compute_at(s[product], ko)
        s[data].pragma(s[data].op.axis[0], env.dma_copy)
    s[product].tensorize(b, env.gemm)
    s[y].pragma(s[y].op.axis[1], env.dma_copy)
    return build(s, [x, w, y], name="product", env=env)


@pytest.mark.parametrize("stream_limit", [1 << 20, 12])
def test_a_recorded_function_runs_from_its_file_on_every_device(
    tmp_path: Path, stream_limit: int
) -> None:
    generator = np.random.default_rng(1)
    function = matrix_product(7, 4, 5)
    x = generator.integers(-128, 128, (7, 4, 1, 4)).astype(np.int8)
    w = generator.integers(-128, 128, (5, 4, 4, 4)).astype(np.int8)

    recorder = Recorder(TINY, stream_limit=stream_limit)
    buffers = [
        recorder.allocate(function.nbytes(i), arg.name) for i, arg in enumerate(function.args)
    ]
    buffers[1].write(w)
    function.run_on(recorder, *buffers)
    recorder.synchronize()
    program = recorder.program([buffers[0]], [buffers[2]], [buffers[1]])
    assert (len(program.streams) > 1) == (stream_limit == 12)
    program.save(tmp_path / "product.vta")

    expected = np.einsum("rkbi,ckoi->rcbo", x.astype(np.int32), w.astype(np.int32)).astype(np.int8)
    memories = []
    for name in ("functional", "rtl"):
        device = open_device(name, TINY, 1 << 17)
        placed = Program.load(tmp_path / "product.vta", TINY).place(Runtime(device))
        placed.buffer("x").write(x)
        for _ in range(2):  # the second run starts with the micro-op buffer of the first one
            placed.run()
        assert (placed.buffer("y").read(np.int8, expected.shape) == expected).all()
        memories.append(device.read(0, device.memory_bytes))
    assert all((memory == memories[0]).all() for memory in memories)
