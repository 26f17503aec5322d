"""Checks that the parts of a compiled network fit together.

A file with a valid checksum may still contain anything. The code that runs a network relies on
these checks.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.archive import require
from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.instruction_words import field_of
from amaranth_vta.sw.runtime.program import Program

from .factors import FactorBias, FactorWeights
from .network_program import (
    KnownRuns,
    Launch,
    MoveWindows,
    NetworkProgram,
    OnHost,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from .packing import Packing
from .tensor_type import TensorType
from .tiled_tensor import TiledTensor

_HELD = ("int4", "int8", "int16", "int32")  # scalars that the machine can hold
# The type of tensors that ONNX Runtime makes, which is known only at run time.
_ANY = TensorType(np.dtype(np.void), None)


def validate(network: NetworkProgram) -> None:
    """Raises `ValueError`, naming the mismatch, or `FileLimitError`."""
    known = dict(network.inputs)
    for name, info in known.items():
        require(info.shape is not None, f"input {name} has no shape")
    kept = {_text(item.source): item.initial for item in network.states}
    require(kept.keys().isdisjoint(known), "a variable is an input too")
    for name, value in (*network.constants.items(), *kept.items()):
        known[name] = TensorType(value.dtype, value.shape)
    for name, info in (*known.items(), *network.outputs.items()):
        _check_type(name, info)
    machines = network.machines
    require(type(machines) is int and machines > 0, f"it is for {machines!r} machines")
    require(isinstance(network.open_batch, bool), "open_batch is neither true nor false")
    sizes = {item.name: item.size for item in network.program.buffers}
    for step in network.steps:
        if isinstance(step, MoveWindows):
            _check_windows(step, known, network.program)
        _check_step(step, known, sizes, len(network.program.streams), machines)
    for name in network.outputs:
        require(name in known, f"nothing makes its output {name}")
    for item in network.states:
        _check_numbers(item.source, (item.places,))
        require(_text(item.result) in known, f"nothing makes {item.result}, which it keeps")
        _check_kept(item.result, known[item.result], item.initial)
    for variable in network.kept:
        operand, buffer = variable.operand, variable.buffer
        _check_operand(operand, buffer, sizes)
        if operand.packing is not None:
            _require_weights(operand)
        initial = network.program.contents.get(buffer)
        has_value = initial is not None and initial.size >= operand.nbytes
        require(has_value, f"{_text(operand.tensor)} has no initial value")
    steps = {
        step.streams: index
        for index, step in enumerate(network.steps)
        if isinstance(step, RunLayer)
    }
    for launch in network.launches:
        _check_launch(launch, steps, network.program)


def validate_memory(network: NetworkProgram) -> None:
    """Raises `FileLimitError` if a network and its block exceed the limit together."""
    parts = (network, network.block)
    size = sum(item.program.placed_bytes() for item in parts if item is not None)
    require_within_limit("the memory that it needs", size)


def _check_step(
    step: Step,
    known: dict[str, TensorType],
    sizes: dict[str, int],
    streams: int,
    machines: int,
) -> None:
    """Add the tensors that the step produces to ``known``, the tensors on the host."""
    match step:
        case RunHost():
            for name in step.inputs:
                require(name in known, f"no step produces {name}, which the host reads")
            if step.known is not None:
                _check_known(step, step.known)
            for name in step.outputs:
                known[_text(name)] = _ANY
            for item in step.operators:
                _check_operator(item)
        case RunLayer():
            _check_numbers(step.name, (step.macs, *step.all_streams, *_counts(step.work)))
            require(step.machines <= machines, f"{step.name} runs on more machines than there are")
            for used in (step.streams, *step.beside):
                inside = 0 <= used.start <= used.stop <= streams
                require(inside, f"{step.name} runs streams {used} of {streams}")
                alike = len(used) == len(step.streams)
                require(alike, f"the machines of {step.name} run different numbers of streams")
            _text(step.name)
            _text(step.operator)
        case ToMachine(operand, buffer):
            require(operand.tensor in known, f"nothing makes {operand.tensor}")
            shape = known[operand.tensor].shape
            _check_operand(operand, buffer, sizes)
            fits = shape is None or prod(shape) == prod(operand.image)
            require(fits, f"{operand.tensor} is not an image of {list(operand.image)}")
            require(operand.layout.parts == 1, f"{operand.tensor} is written in parts")
        case WriteRows(operand, buffer, rows, places, axis, stacked):
            _require_weights(operand)
            _check_operand(operand, buffer, sizes)
            require(axis in (1, 2), f"{operand.tensor} has no rows in dimension {axis!r}")
            _check_numbers(operand.tensor, (stacked,))
            groups, inputs, *_ = operand.image
            fits = not stacked or (axis, groups, inputs % stacked) == (2, 1, 0)
            require(fits, f"{operand.tensor} is no {stacked} matrices side by side")
            for name in (rows, places):
                require(name in known, f"nothing makes {name}, which is written as rows")
        case ToHost(tensor, info, operand, buffer):
            _check_operand(operand, buffer, sizes)
            _check_type(tensor, info)
            fits = info.shape is not None and prod(info.shape) == prod(operand.image)
            require(fits, f"{tensor} is not an image of {list(operand.image)}")
            require(operand.packing is None, f"{tensor} is packed")
            known[_text(tensor)] = info


def _check_known(step: RunHost, runs: KnownRuns) -> None:
    require(set(runs.inputs) == set(step.inputs), "known results are for other inputs")
    require(set(runs.outputs) == set(step.outputs), "known results are of other tensors")
    arrays = [*runs.inputs.values(), *runs.outputs.values()]
    counts = {len(array) if array.ndim else 0 for array in arrays}
    require(bool(step.inputs) and len(counts) == 1 and 0 not in counts, "known results lack runs")
    for name, array in (*runs.inputs.items(), *runs.outputs.items()):
        _check_type(name, TensorType(array.dtype, array.shape[1:]))


def _check_windows(step: MoveWindows, known: dict[str, TensorType], program: Program) -> None:
    require(step.place in known, f"nothing makes {step.place}, the place of windows")
    _check_numbers(step.place, (step.count,), least=1)
    windows = {item.name: item for item in program.windows}
    sizes = {item.name: item.size for item in program.buffers}
    for name in step.windows:
        require(name in windows, f"there is no window {name}")
        window = windows[name]
        # The last place, and the last one of the last whole block.
        last = step.count - 1
        places = (last, max(last // window.motion.block * window.motion.block - 1, 0))
        end = max(map(window.motion.offset, places)) + window.size
        require(end <= sizes[window.buffer], f"window {name} moves beyond {window.buffer}")


def _check_launch(launch: Launch, steps: dict[range, int], program: Program) -> None:
    """Check a launch; ``steps`` has the index of each layer, keyed by its streams."""
    numbers = (launch.stream, launch.streams.start, launch.streams.stop, *launch.ends)
    _check_numbers("a launch", numbers)
    require(launch.stream < len(program.streams), "a launch runs a stream that does not exist")
    alone = [range(stream, stream + 1) for stream in launch.streams]
    require(bool(alone) and all(item in steps for item in alone), "a launch runs no layers")
    first = steps[alone[0]]
    in_order = [steps[item] for item in alone] == list(range(first, first + len(alone)))
    require(in_order, "a launch runs layers that are not consecutive")
    words = program.streams[launch.stream].words
    layout = isa.instruction_set(program.config).layouts[isa.Opcode.STORE]
    stores = field_of(words, layout["opcode"])
    ends = (0, *launch.ends)
    require(
        len(ends) == len(alone) + 1
        and ends[-1] <= len(words)
        and all((stores[a:b] == isa.Opcode.STORE).any() for a, b in pairwise(ends)),
        "a launch has layers that store nothing",
    )


def _check_operand(operand: TiledTensor, buffer: str, sizes: dict[str, int]) -> None:
    layout, packing = operand.layout, operand.packing
    require(layout.dtype in _HELD, f"{layout.dtype} is not a type that the machine holds")
    sizes_of_layout = (*operand.image, layout.batch, layout.block, layout.parts)
    _check_numbers(operand.tensor, sizes_of_layout, least=1)
    require(layout.parts * layout.width < 64, f"{operand.tensor} has {layout.parts} parts")
    if packing is not None and not isinstance(packing, Packing):
        _check_factor(operand, packing)
    elif packing is not None:
        window = packing.window
        moves = (*window.kernel, *window.strides, *window.dilations)
        _check_numbers(operand.tensor, moves, least=1)
        _check_numbers(operand.tensor, window.pads)
        _check_numbers(operand.tensor, packing.image(operand.image), least=1)
        require(packing.value in range(-128, 128), f"{operand.tensor} is not padded with an int8")
        wide = zip(operand.image[2:], (window.pads[::2], window.pads[1::2]), strict=True)
        require_within_limit(
            f"{operand.tensor} with its padding",
            prod(operand.image[:2]) * prod(size + sum(pads) for size, pads in wide),
        )
    require(buffer in sizes, f"there is no buffer {buffer}")
    require(operand.nbytes <= sizes[buffer], f"{operand.tensor} does not fit {buffer}")


def _require_weights(operand: TiledTensor) -> None:
    """Require a stack of matrices whose int8 elements are weights, so that each is a byte."""
    packing, layout = operand.packing, operand.layout
    is_plain = isinstance(packing, FactorWeights) and (packing.terms, packing.zero_point) == (1, 0)
    fits = is_plain and layout.dtype == "int8" and layout.parts == 1
    require(fits, f"{operand.tensor} is no stack of matrices as int8 weights")


def _check_factor(operand: TiledTensor, packing: FactorWeights | FactorBias) -> None:
    name, zeros = operand.tensor, [packing.zero_point]
    match packing:
        case FactorWeights():
            _check_numbers(name, (packing.block, packing.terms), least=1)
        case FactorBias():
            _check_numbers(name, (packing.block, packing.batch), least=1)
            zeros.append(packing.first_zero_point)
            for value in (packing.added, *packing.rest):
                valid = type(value) is int and -(1 << 31) <= value < 1 << 31
                require(valid, f"{name} has a constant of {value!r}")
    for zero in zeros:
        valid = type(zero) is int and -128 <= zero < 128
        require(valid, f"{name} has a zero point of {zero!r}")
    require(operand.image[3] == 1, f"{name} is not a stack of matrices")
    image = packing.image(operand.image)
    _check_numbers(name, image, least=1)
    require_within_limit(f"{name} as weights", prod(image))


def _check_kept(name: str, result: TensorType, initial: np.ndarray) -> None:
    """Check that the result of a run can be the variable in the next run."""
    fits = result == _ANY or (result.dtype, result.shape) == (initial.dtype, initial.shape)
    require(fits, f"{name} is not of the shape and type of its initial value")


def _check_type(name: str, info: TensorType) -> None:
    _text(name)
    element = info.dtype if info.member is None else info.member
    require(element.kind in "biuf", f"{name} is of {info}")
    if info.shape is not None:
        _check_numbers(name, info.shape)
        require_within_limit(f"tensor {name}", prod(info.shape) * info.dtype.itemsize)


def _check_operator(operator: OnHost) -> None:
    for value in (operator.name, operator.operator, operator.reason):
        _text(value)
    _check_numbers(operator.name, (operator.macs,))


def _counts(work: Any) -> tuple[Any, ...]:
    return tuple(value for name, value in vars(work).items() if name != "config")


def _check_numbers(what: str, numbers: tuple[Any, ...], least: int = 0) -> None:
    for number in numbers:
        valid = type(number) is int and least <= number < 1 << 62
        require(valid, f"{what} has a size or count of {number!r}")


def _text(value: Any) -> str:
    require(isinstance(value, str), f"{value!r} is not a name")
    return str(value)
