from __future__ import annotations

import itertools
import random

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Module
from amaranth_vta.sw.runtime.kernels import CommandError
from amaranth_vta.sw.runtime.stream import Stream

SET = isa.instruction_set(PRESETS["tiny-extended"])
WORK = {
    Module.LOAD: isa.Load(memory=isa.Memory.INP),
    Module.COMPUTE: isa.Gemm(uop_end=1),
    Module.STORE: isa.Store(),
}


def work(stream: Stream, module: Module) -> None:
    stream.append(module, SET.encode(WORK[module]))


def decoded(stream: Stream) -> list[isa.Instruction]:
    return [SET.decode(bits) for bits in stream.words]


def steps(instructions: list[isa.Instruction]) -> dict[Module, list[str]]:
    """Each module's work, pops and pushes in order; tokens are named by the other module."""
    done: dict[Module, list[str]] = {module: [] for module in WORK}
    for instruction in instructions:
        module = isa.module_of(instruction)
        assert isa.illegal_reason(instruction) is None
        mine = done[module]
        for verb in ("pop", "push"):
            if verb == "push" and _works(instruction):
                mine.append("work")
            for side, step in (("prev", -1), ("next", 1)):
                if getattr(instruction, f"{verb}_{side}"):
                    mine.append(f"{verb} {Module(module + step).name}")
    return done


def _works(instruction: isa.Instruction) -> bool:
    if isinstance(instruction, isa.Load | isa.Store):
        return instruction.x_size > 0
    return isinstance(instruction, isa.Gemm)


def normalized(sequence: list[str]) -> list[str]:
    """Adjacent pops, and adjacent pushes, are sorted: their order does not matter."""
    groups = itertools.groupby(sequence, key=lambda step: step.split()[0])
    return [step for _, group in groups for step in sorted(group)]


@pytest.mark.parametrize(("producer", "consumer"), isa.TOKEN_QUEUES)
def test_a_push_joins_the_instruction_before_it(producer: Module, consumer: Module) -> None:
    stream = Stream()
    work(stream, producer)
    stream.push(producer, consumer)
    (instruction,) = decoded(stream)
    side = "next" if consumer > producer else "prev"
    assert getattr(instruction, f"push_{side}") == 1
    assert instruction.opcode == WORK[producer].opcode


@pytest.mark.parametrize(("producer", "consumer"), isa.TOKEN_QUEUES)
def test_a_pop_joins_the_instruction_after_it(producer: Module, consumer: Module) -> None:
    stream = Stream()
    stream.pop(producer, consumer)
    work(stream, consumer)
    (instruction,) = decoded(stream)
    side = "prev" if consumer > producer else "next"
    assert getattr(instruction, f"pop_{side}") == 1
    assert instruction.opcode == WORK[consumer].opcode


def test_pops_of_both_neighbours_and_pushes_to_both_share_one_instruction() -> None:
    stream = Stream()
    stream.pop(Module.LOAD, Module.COMPUTE)
    stream.pop(Module.STORE, Module.COMPUTE)
    work(stream, Module.COMPUTE)
    stream.push(Module.COMPUTE, Module.LOAD)
    stream.push(Module.COMPUTE, Module.STORE)
    (gemm,) = decoded(stream)
    assert (gemm.pop_prev, gemm.pop_next, gemm.push_prev, gemm.push_next) == (1, 1, 1, 1)


def test_a_push_joins_the_last_instruction_of_an_appended_stream() -> None:
    other, stream = Stream(), Stream()
    work(stream, Module.COMPUTE)
    work(other, Module.COMPUTE)
    stream.extend(other)
    stream.push(Module.COMPUTE, Module.STORE)
    assert [instruction.push_next for instruction in decoded(stream)] == [0, 1]


def test_random_calls_keep_the_order_of_each_module() -> None:
    generator = random.Random(7)
    for _ in range(300):
        stream = Stream()
        expected: dict[Module, list[str]] = {module: [] for module in WORK}
        for _ in range(generator.randint(1, 25)):
            kind = generator.choice(("work", "push", "pop"))
            if kind == "work":
                module = generator.choice(list(WORK))
                work(stream, module)
                expected[module].append("work")
            elif kind == "push":
                producer, consumer = generator.choice(isa.TOKEN_QUEUES)
                stream.push(producer, consumer)
                expected[producer].append(f"push {consumer.name}")
            else:
                producer, consumer = generator.choice(isa.TOKEN_QUEUES)
                stream.pop(producer, consumer)
                expected[consumer].append(f"pop {producer.name}")
        stream.flush_pops()
        done = steps(decoded(stream))
        for module in WORK:
            assert normalized(done[module]) == normalized(expected[module])


def test_an_instruction_that_need_not_wait_leaves_the_pops_to_the_next() -> None:
    stream = Stream()
    stream.pop(Module.LOAD, Module.COMPUTE)
    stream.append_before_pops(Module.COMPUTE, SET.encode(isa.Load(memory=isa.Memory.UOP)))
    work(stream, Module.COMPUTE)
    load, gemm = decoded(stream)
    assert (load.pop_prev, gemm.pop_prev) == (0, 1)


def test_a_padding_value_is_set_when_it_changes_and_again_in_the_successor() -> None:
    stream = Stream()
    stream.set_padding_value(isa.Padding.LOAD, 0)  # the initial value of a run
    stream.pop(Module.COMPUTE, Module.LOAD)
    for value in (-3, -3, 5):
        stream.set_padding_value(isa.Padding.LOAD, value)
    work(stream, Module.LOAD)
    stream.set_padding_value(isa.Padding.COMPUTE, 5)
    first, second, load, third = decoded(stream)
    assert [first, second] == [isa.set_padding(isa.Padding.LOAD, value) for value in (-3, 5)]
    assert load.pop_next == 1
    assert third == isa.set_padding(isa.Padding.COMPUTE, 5)
    continuation = stream.continuation()
    assert decoded(continuation) == [isa.set_padding(padding, 5) for padding in isa.Padding]
    continuation.set_padding_value(isa.Padding.LOAD, 5)
    assert len(continuation.words) == 2


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [(Module.LOAD, Module.STORE), (Module.STORE, Module.LOAD), (Module.LOAD, Module.LOAD)],
)
def test_tokens_between_strangers_are_refused(producer: Module, consumer: Module) -> None:
    message = f"no tokens pass from {producer.name.lower()} to {consumer.name.lower()}"
    with pytest.raises(CommandError, match=message):
        Stream().push(producer, consumer)
    with pytest.raises(CommandError, match=message):
        Stream().pop(producer, consumer)


def test_a_stream_with_a_pop_ahead_of_its_push_cannot_be_divided() -> None:
    stream = Stream()
    stream.pop(Module.LOAD, Module.COMPUTE)
    assert stream.can_be_split()  # the pop has not become part of an instruction
    work(stream, Module.COMPUTE)
    assert not stream.can_be_split()
    work(stream, Module.LOAD)
    stream.push(Module.LOAD, Module.COMPUTE)
    assert stream.can_be_split()
    assert stream.balanced()


def test_a_successor_gives_the_outstanding_tokens_again_and_keeps_the_waiting_pops() -> None:
    stream = Stream()
    for _ in range(2):
        work(stream, Module.COMPUTE)
        stream.push(Module.COMPUTE, Module.LOAD)
    stream.push(Module.COMPUTE, Module.STORE)
    work(stream, Module.LOAD)
    stream.push(Module.LOAD, Module.COMPUTE)
    stream.pop(Module.LOAD, Module.COMPUTE)
    continuation = stream.continuation()
    assert continuation.outstanding == stream.outstanding
    given = steps(decoded(continuation))
    assert sorted(given[Module.COMPUTE]) == ["push LOAD", "push LOAD", "push STORE"]
    assert given[Module.LOAD] == ["push COMPUTE"]
    work(continuation, Module.COMPUTE)
    assert steps(decoded(continuation))[Module.COMPUTE][-2:] == ["pop LOAD", "work"]


def test_a_finished_stream_ends_with_finish() -> None:
    stream = Stream()
    work(stream, Module.LOAD)
    words = stream.finished()
    assert words.shape == (2, 2)
    assert isinstance(SET.decode(int(words[1, 0])), isa.Finish)
    assert int(words[0, 0]) | int(words[0, 1]) << 64 == SET.encode(WORK[Module.LOAD])
