"""Tokens and streams, faults, and introspection of the runtime."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.kernels import CommandError
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault
from tests.support.runtimes import (
    DEEP,
    TINY,
    MakeDevice,
    add_immediate,
    array_buffer,
    load,
    one_uop,
    runtime_of,
)

# Tokens and streams.


def test_micro_ops_are_loaded_without_waiting_for_the_tokens_of_their_kernel(
    fake_device: MakeDevice,
) -> None:
    device = fake_device()
    runtime = Runtime(device)
    buffer = runtime.allocate(64)
    load(runtime, buffer, 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    runtime.dep_pop(Module.LOAD, Module.COMPUTE)
    runtime.push_gemm(one_uop(runtime, 0, 0, 0, 0, 0))
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    runtime.dep_pop(Module.COMPUTE, Module.LOAD)
    runtime.synchronize()
    first, uops, gemm, last, _ = device.runs[0]
    assert (first.push_next, uops.pop_prev, gemm.pop_prev, gemm.push_prev) == (1, 0, 1, 1)
    assert isinstance(last, isa.Load)  # no kernel follows the last pop
    assert (last.pop_next, last.x_size, last.memory) == (1, 0, Memory.INP)


def pipeline(runtime: Runtime, blocks: int) -> npt.NDArray[np.int8]:
    """A pipeline over two halves of every scratchpad, with tokens for free and full halves."""
    generator = np.random.default_rng(2)
    inp = generator.integers(-20, 20, (blocks * 8, 4)).astype(np.int8)
    wgt = generator.integers(-20, 20, (4, 4)).astype(np.int8)
    x, w = array_buffer(runtime, inp), array_buffer(runtime, wgt)
    y = runtime.allocate(blocks * 8 * 4)
    load, compute, store = Module.LOAD, Module.COMPUTE, Module.STORE
    runtime.load_buffer_2d(w, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.WGT)
    for _ in range(2):
        runtime.dep_push(compute, load)
        runtime.dep_push(store, compute)
    for block in range(blocks):
        half = block % 2 * 8
        runtime.dep_pop(compute, load)
        runtime.load_buffer_2d(x, block * 8, 8, 1, 8, 0, 0, 0, 0, half, Memory.INP)
        runtime.dep_push(load, compute)
        runtime.dep_pop(load, compute)
        runtime.dep_pop(store, compute)
        for reset in (1, 0):

            def body(reset: int = reset, half: int = half) -> None:
                runtime.uop_loop_begin(8, 1, 1, 0)
                runtime.uop_push(0, reset, half, half, 0)
                runtime.uop_loop_end()

            runtime.push_gemm(body, (reset, half))
        runtime.dep_push(compute, load)
        add_immediate(runtime, 1, 8, half)
        runtime.dep_push(compute, store)
        runtime.dep_pop(compute, store)
        runtime.store_buffer_2d(half, y, block * 8, 8, 1, 8)
        runtime.dep_push(store, compute)
    for _ in range(2):
        runtime.dep_pop(compute, load)
        runtime.dep_pop(store, compute)
    runtime.synchronize()
    expected = (inp.astype(np.int32) @ wgt.T.astype(np.int32) + 1).astype(np.int8)
    result = y.read(np.int8, expected.shape)
    assert (result == expected).all()
    return result


@pytest.mark.parametrize("order", ["program", "reverse", "random:1", "random:2"])
@pytest.mark.parametrize("limit", [None, 2, 3, 5, 8, 16, 31])
def test_streams_split_at_any_length_without_a_difference(limit: int | None, order: str) -> None:
    runtime = runtime_of(TINY, limit, order)
    pipeline(runtime, 9)


@pytest.mark.parametrize("limit", [None, 2, 5])
def test_split_streams_do_the_same_on_the_rtl(limit: int | None) -> None:
    device = open_device("rtl", TINY, 1 << 20)
    pipeline(Runtime(device) if limit is None else Runtime(device, limit), 9)


def test_a_split_stream_runs_in_pieces_of_the_limit(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, stream_limit=8)
    buffer = runtime.allocate(64)
    for _ in range(20):
        load(runtime, buffer, 1)
    total = runtime.synchronize()
    assert [len(run) for run in device.runs] == [8, 8, 7]
    assert all(isinstance(run[-1], isa.Finish) for run in device.runs)
    assert (total.cycles, total.seconds, total.counters) == (300, 1.5, {"instructions": 23})


def test_a_stream_grows_while_a_pop_in_it_waits_for_a_later_push(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, stream_limit=4)
    buffer = runtime.allocate(64)
    runtime.dep_pop(Module.LOAD, Module.COMPUTE)
    for _ in range(6):
        load(runtime, buffer, 1)
    assert device.runs == []
    load(runtime, buffer, 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    load(runtime, buffer, 1)
    assert [len(run) for run in device.runs] == [8]


def test_a_barrier_orders_everything_through_device_memory() -> None:
    for order in ("program", "reverse", "random:1", "random:2", "random:3"):
        runtime = runtime_of(TINY, order=order)
        data = np.arange(16, dtype=np.int8).reshape(4, 4)
        x, wgt = array_buffer(runtime, data), array_buffer(runtime, np.eye(4, dtype=np.int8))
        y, z = runtime.allocate(16), runtime.allocate(16)
        for source, target in ((x, y), (y, z)):
            load(runtime, source, 4, memory=Memory.INP)
            load(runtime, wgt, 1, memory=Memory.WGT)
            runtime.barrier()
            for reset in (1, 0):
                runtime.push_gemm(one_uop(runtime, 0, reset, np.arange(4), np.arange(4), 0), reset)
            add_immediate(runtime, 1, 4)
            runtime.barrier()
            runtime.store_buffer_2d(0, target, 0, 4, 1, 4)
            runtime.barrier()
        runtime.synchronize()
        assert (z.read(np.int8, (4, 4)) == data + 2).all()


def test_a_barrier_among_outstanding_tokens_ends_the_run(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    load(runtime, runtime.allocate(64), 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    runtime.barrier()
    assert len(device.runs) == 1
    load(runtime, runtime.allocate(64), 1)
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    runtime.dep_pop(Module.STORE, Module.COMPUTE)
    load(runtime, runtime.allocate(64), 1)
    with pytest.raises(CommandError, match="a barrier between a dep_pop and the dep_push that"):
        runtime.barrier()


def test_a_stream_limit_without_room_is_refused(fake_device: MakeDevice) -> None:
    with pytest.raises(ValueError, match="at most 1 instructions holds no work"):
        Runtime(fake_device(), stream_limit=1)


# Faults.


def test_a_fault_names_module_instruction_and_cause(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    buffer = runtime.allocate(64)
    load(runtime, buffer, 2)
    load(runtime, buffer, 3, sram_index=4)
    device.fault = Fault("compute", 1, "bus_error")
    with pytest.raises(RuntimeFault) as caught:
        runtime.synchronize()
    assert str(caught.value) == (
        "the machine stopped: bus_error in compute, instruction 1 of 3 "
        "(LOAD ACC[4:7], memory 1 x 3 from 0)"
    )
    assert caught.value.fault == device.fault
    assert isinstance(caught.value.instruction, isa.Load)


def test_after_a_fault_micro_ops_are_loaded_anew(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    add_immediate(runtime, 3, 4)
    device.fault = Fault("compute", 0, "bus_error")
    with pytest.raises(RuntimeFault):
        runtime.synchronize()
    device.fault = None
    add_immediate(runtime, 3, 4)
    assert runtime.synchronize().cycles == 100
    assert [item.opcode.name for item in device.runs[1]] == ["LOAD", "ALU", "FINISH"]


def test_a_pop_without_a_push_is_reported_as_the_deadlock_it_is() -> None:
    runtime = runtime_of(TINY)
    runtime.dep_pop(Module.STORE, Module.COMPUTE)
    load(runtime, runtime.allocate(64), 1)
    with pytest.raises(RuntimeFault, match=r"deadlock in compute.*; pop from store\)"):
        runtime.synchronize()


def test_the_time_limit_goes_to_the_device_and_into_the_message(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, time_limit=9)
    buffer = runtime.allocate(64)
    for limit in (None, 2.5):
        load(runtime, buffer, 1)
        runtime.synchronize(time_limit=limit)
    assert device.time_limits == [9, 2.5]
    device.fault = Fault("compute", 0, "timeout")
    load(runtime, buffer, 1)
    with pytest.raises(RuntimeFault, match="timeout in compute.*; the time limit is 2.5 s"):
        runtime.synchronize(time_limit=2.5)


def test_a_long_run_on_the_functional_model_ends_at_the_time_limit() -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 22))
    for _ in range(3000):
        runtime.push_alu(lambda: _slow(runtime), key="slow")
    with pytest.raises(RuntimeFault, match="timeout in .* of 3002 .*the time limit is 0.001 s"):
        runtime.synchronize(time_limit=0.001)


def _slow(runtime: Runtime) -> None:
    runtime.uop_loop_begin(16_000, 1, 1, 0)
    runtime.uop_push(1, 0, 0, 1, 0, AluOp.MUL)
    runtime.uop_loop_end()


# The dump.


def test_the_dump_shows_instructions_and_micro_ops() -> None:
    runtime = runtime_of(TINY)
    buffer = array_buffer(runtime, np.zeros((8, 4), np.int32))
    add_immediate(runtime, 3, 4, begin=9)
    runtime.synchronize()
    load(runtime, buffer, 2)
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    add_immediate(runtime, 3, 4, begin=9)  # resident since the last run
    runtime.push_gemm(one_uop(runtime, 0, 0, 5, 6, 7))
    lines = runtime.dump().splitlines()
    assert lines[0] == "     0  compute  LOAD ACC[0:2], memory 1 x 2 from 0; push to load"
    assert lines[1] == "     1  compute  ALU ADD immediate 3 uop[0:1] x 1 x 4, acc +0 +1"
    assert lines[2] == "                 uop[0]  acc[9] = add(acc[9], 3)"
    assert lines[3].startswith("     2  compute  LOAD UOP[1:2], memory 1 x 1 from ")
    assert lines[4] == "     3  compute  GEMM uop[1:2] x 1 x 1"
    assert lines[5] == "                 uop[1]  acc[5] += inp[6] · wgt[7]"
    assert len(lines) == 6


@pytest.mark.parametrize("name", ["functional", "rtl"])
def test_a_program_cannot_reach_behind_what_is_allocated(name: str) -> None:
    device = open_device(name, TINY, 4096)
    runtime = Runtime(device)
    buffer = runtime.allocate(64)
    stream = runtime.allocate(64)
    elements = (stream.address + stream.size) // TINY.out.element_bytes
    words = [
        isa.instruction_set(TINY).encode(item)
        for item in (isa.Store(dram_base=elements), isa.Finish())
    ]
    raw = b"".join(word.to_bytes(16, "little") for word in words)
    stream.write(raw)
    with pytest.raises(RuntimeFault, match="bus_error in store, instruction 0"):
        runtime.run_stream(stream.address, np.frombuffer(raw, "<u8").reshape(-1, 2))
    assert not device.read(192, 64).any()
    buffer.free()
    more = runtime.allocate(512)
    runtime.run_stream(stream.address, np.frombuffer(raw, "<u8").reshape(-1, 2))
    more.free()
