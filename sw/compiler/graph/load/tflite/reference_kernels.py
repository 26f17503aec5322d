"""Results of one operator by TensorFlow Lite's reference kernels, for all values of its operands.

An element-wise operator on 8-bit integers is a table. `table` and `pair_table` compute it by a file
with the operator alone, which ai-edge-litert runs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .file import Array, TfliteOperator, packed, schema

# Ratio of an operand's scale to the result's from which the kernel of ADD aborts the process.
_MOST_RATIO = 1 << 19
# How the reference kernels say that they lack an operator.
_NO_KERNEL = "Didn't find op for builtin opcode"


def table(operator: TfliteOperator, to: Conversion, place: int = 0) -> Array:
    """The results of ``operator`` for each value of its input at ``place``, the others being
    constants: (256,), or (channels, 256) if constants differ along the last axis."""
    x = to.tensor(operator.inputs[place])
    rank = max(len(to.tensor(operator.outputs[0]).shape), 2)
    others = [to.tensor(i) for at, i in enumerate(operator.inputs) if i >= 0 and at != place]
    width = max((other.shape[-1] for other in others if other.shape), default=1)
    shape = (256, *[1] * (rank - 2), width)
    values = all_values(x.dtype).reshape(-1, *[1] * (rank - 1))
    given = np.ascontiguousarray(np.broadcast_to(values, shape))
    found = run(operator, to, {operator.inputs[place]: given}).reshape(256, width).T
    return np.ascontiguousarray(found[0] if (found == found[:1]).all() else found)


def pair_table(operator: TfliteOperator, to: Conversion) -> Array:
    """The results of ``operator``, (256, 256), for each value of its first and of its second
    operand."""
    first, second = operator.inputs[:2]
    rows, columns = (all_values(to.tensor(number).dtype) for number in (first, second))
    if first == second:
        line = run(operator, to, {first: rows.reshape(1, 256)})
        return np.ascontiguousarray(np.broadcast_to(line.reshape(256, 1), (256, 256)))
    given = {
        first: np.ascontiguousarray(np.broadcast_to(rows[:, None], (256, 256))),
        second: np.ascontiguousarray(np.broadcast_to(columns, (256, 256))),
    }
    return run(operator, to, given)


def all_values(dtype: np.dtype[Any]) -> Array:
    """The 256 values of an 8-bit type, from the least one."""
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def run(operator: TfliteOperator, to: Conversion, given: dict[int, Array]) -> Array:
    """The result of ``operator`` alone for the ``given`` values of its operands, by number of
    tensor."""
    shapes = {number: value.shape for number, value in given.items()}
    return ReferenceOperator(operator, to, shapes)(given)


class ReferenceOperator:
    """The reference kernel of one operator, on operands of other ``shapes`` than in the file, by
    number of tensor. All other inputs are the file's constants."""

    def __init__(
        self, operator: TfliteOperator, to: Conversion, shapes: dict[int, tuple[int, ...]]
    ) -> None:
        _require_scales(operator, to)
        self._numbers = list(shapes)
        self._model = ReferenceModel(packed(_alone(operator, to, shapes)))

    def __call__(self, given: dict[int, Array]) -> Array:
        return self._model([given[number] for number in self._numbers])[0]


def _require_scales(operator: TfliteOperator, to: Conversion) -> None:
    """Raise `ModelError` for scales and options that stop the process in a kernel."""
    y = to.tensor(operator.outputs[0])
    for number in operator.inputs:
        x = to.tensor(number)
        if number >= 0 and x.scales.size and float(x.scale) >= _MOST_RATIO * float(y.scale):
            raise ModelError(
                f"{operator.name}: the scale of {x.name} is {_MOST_RATIO:,} times, or more, that "
                f"of {y.name}"
            )
    if not isfinite(operator.option("alpha", 0.0)):
        raise ModelError(f"{operator.name} has a slope that is not finite")


def _alone(operator: TfliteOperator, to: Conversion, shapes: dict[int, tuple[int, ...]]) -> Any:
    """The schema's object of a file with ``operator`` alone."""
    module = schema()
    raw, graph = to.file.raw, to.graph.raw
    model = module.ModelT()
    model.version = 3
    model.operatorCodes = [raw.operatorCodes[operator.raw.opcodeIndex]]
    model.buffers = [module.BufferT()]
    alone = module.SubGraphT()
    alone.tensors, numbers = [], {}
    for number in dict.fromkeys((*operator.inputs, *operator.outputs)):
        if number < 0:
            continue
        item = copy.copy(graph.tensors[number])
        if number in shapes:
            item.shape, item.shapeSignature = list(shapes[number]), None
            item.buffer = 0
        elif number in operator.outputs:
            item.buffer = 0
        else:
            model.buffers.append(raw.buffers[item.buffer])
            item.buffer = len(model.buffers) - 1
        item.name = f"t{number}"
        numbers[number] = len(alone.tensors)
        alone.tensors.append(item)
    node = copy.copy(operator.raw)
    node.opcodeIndex = 0
    node.inputs = [numbers.get(number, -1) for number in operator.inputs]
    node.outputs = [numbers[number] for number in operator.outputs]
    alone.operators = [node]
    alone.inputs = [numbers[number] for number in shapes]
    alone.outputs = node.outputs
    model.subgraphs = [alone]
    return model


def open_reference(data: bytes) -> Any:
    """LiteRT's interpreter of a model, with allocated tensors: by the reference kernels, or by the
    other kernels if an operator has no reference kernel.

    Raises `RuntimeError` or `ValueError` if LiteRT refuses the model.
    """
    with explain_missing_extras():
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

    def opened(kernels: Any) -> Any:
        return Interpreter(model_content=data, experimental_op_resolver_type=kernels)

    try:
        interpreter = opened(OpResolverType.BUILTIN_REF)
    except ValueError as error:
        if _NO_KERNEL not in str(error):
            raise
        interpreter = opened(OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    interpreter.allocate_tensors()
    return interpreter


class ReferenceModel:
    """A TensorFlow Lite model, run by the reference kernels."""

    def __init__(self, data: bytes) -> None:
        try:
            self._interpreter = open_reference(data)
        except (RuntimeError, ValueError) as error:
            raise _refused(error) from None

    def __call__(self, given: Sequence[Array]) -> list[Array]:
        """The outputs for the inputs ``given``, both in the order of the file. Raises `ModelError`
        if the kernels do not run them."""
        interpreter = self._interpreter
        try:
            for info, value in zip(interpreter.get_input_details(), given, strict=True):
                interpreter.set_tensor(info["index"], value)
            interpreter.invoke()
            outputs = interpreter.get_output_details()
            return [interpreter.get_tensor(info["index"]) for info in outputs]
        except (RuntimeError, ValueError) as error:
            raise _refused(error) from None


def _refused(error: Exception) -> ModelError:
    first = str(error).strip().splitlines()[0]
    return ModelError(f"TensorFlow Lite's kernels do not run the model: {first}")
