"""MEAN, SUM and REDUCE_MAX.

A mean or a sum depends only on the sum of the integers that it reduces, and never falls when that
sum rises. So it is a step function, whose steps are found by bisection with the reference kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import STEPS
from amaranth_vta.sw.compiler.te.requantization import steps_of
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import TO_FIRST, TO_LAST, Conversion
from .file import Array, TfliteOperator
from .precision import require_bytes
from .products import channel_sums
from .reference_kernels import ReferenceOperator

# Sums tried at a time.
_PROBES = 256
# Elements of a tensor of probes.
_ELEMENTS = 1 << 20
# Sums for which the steps are compared with the kernel.
_TRIED = 4096


def reduction(operator: TfliteOperator, to: Conversion) -> None:
    """MEAN and SUM: a convolution with weights of one, whose sums have steps."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = to.tensor(number), to.tensor(result)
    require_bytes(operator, x, y)
    axes = _axes(operator, to)
    lowest, begins = _steps(operator, to, axes)
    count = prod(x.shape[axis] for axis in axes)
    source, pooled, channels, window = _pooled(operator, to, axes)
    steps = np.float32(y.scale * (count if operator.kind == "MEAN" else 1))
    channel_sums(
        to,
        operator.name,
        source,
        pooled,
        channels,
        (x.scale, np.array(x.zero_point, x.dtype)),
        (steps, np.array(y.zero_point, y.dtype)),
        kernel_shape=window,
        rounding=STEPS,
        lowest=lowest - y.zero_point,
        begins=(begins - count * x.zero_point).tolist(),
    )
    _store(operator, to, pooled)


def reduce_max(operator: TfliteOperator, to: Conversion) -> None:
    """REDUCE_MAX."""
    require_bytes(operator, to.tensor(operator.inputs[0]), to.tensor(operator.outputs[0]))
    source, pooled, _, window = _pooled(operator, to, _axes(operator, to))
    to.add("MaxPool", (source,), (pooled,), operator.name, kernel_shape=window)
    _store(operator, to, pooled)


def _pooled(
    operator: TfliteOperator, to: Conversion, axes: list[int]
) -> tuple[str, str, int, list[int]]:
    """The operand as images, the name of the reduced images, their channels, and the window."""
    source, image, window = _image(operator, to, axes)
    out = (*image[:2], *(size // taps for size, taps in zip(image[2:], window, strict=True)))
    pooled = to.inner(f"{operator.name}_image", to.tensor(operator.outputs[0]).dtype, out)
    return source, pooled, image[1], list(window)


def _store(operator: TfliteOperator, to: Conversion, pooled: str) -> None:
    """Store the images ``pooled``, with channels first, as the result."""
    result = operator.outputs[0]
    images, channels, *pixels = to.network.types[pooled].shape or ()
    if prod(pixels) > 1 and channels > 1:
        last = to.inner(f"{pooled}_last", to.tensor(result).dtype, (images, *pixels, channels))
        to.add("Transpose", (pooled,), (last,), f"{pooled}_last", perm=list(TO_LAST))
        pooled = last
    to.reshape(pooled, to.put(result))


def _axes(operator: TfliteOperator, to: Conversion) -> list[int]:
    rank = len(to.tensor(operator.inputs[0]).shape)
    return sorted({int(axis) % rank for axis in to.constant(operator, 1).reshape(-1)})


def _image(
    operator: TfliteOperator, to: Conversion, axes: list[int]
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The operand as images, their shape (N, C, H, W), and the reduced rows and columns."""
    number = operator.inputs[0]
    x = to.tensor(number)
    if len(x.shape) == 4 and set(axes) <= {1, 2}:
        shape = tuple(x.shape[axis] for axis in TO_FIRST)
        window = tuple(x.shape[axis] if axis in axes else 1 for axis in (1, 2))
        return to.name(number, True), shape, window
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    name, turned = operator.name, to.name(number)
    order = [*kept, *axes]
    if order != sorted(order):
        shape = tuple(x.shape[axis] for axis in order)
        turned = to.inner(f"{name}_turned", x.dtype, shape)
        to.add("Transpose", (to.name(number),), (turned,), f"{name}_turned", perm=order)
    rows = prod(x.shape[axis] for axis in axes)
    image = (1, prod(x.shape[axis] for axis in kept), rows, 1)
    source = to.inner(f"{name}_pixels", x.dtype, image)
    to.reshape(turned, source)
    return source, image, (rows, 1)


def _steps(operator: TfliteOperator, to: Conversion, axes: list[int]) -> tuple[int, Array]:
    """The result of the least sum, and for each greater result the least sum that has it. Raises
    `ModelError` if results fall."""
    x = to.tensor(operator.inputs[0])
    limits = np.iinfo(x.dtype)
    count = prod(x.shape[axis] for axis in axes)
    if count > _ELEMENTS:
        raise ModelError(f"{operator.name} reduces more than {_ELEMENTS:,} elements to one")
    evaluate = _function_of_sums(operator, to, axes, count)
    least, most = count * limits.min, count * limits.max
    steps = steps_of(evaluate, least, most)
    tried = np.unique(np.linspace(least, most, _TRIED).astype(np.int64))
    if not np.array_equal(
        steps.lowest + np.searchsorted(steps.begins, tried, "right"), evaluate(tried)
    ):
        raise ModelError(
            f"{operator.name}: sums of these scales wrap around in TensorFlow Lite's kernel"
        )
    # A file cannot hold an empty list.
    return steps.lowest, steps.begins if steps.begins.size else np.array([most + 1])


def _function_of_sums(
    operator: TfliteOperator, to: Conversion, axes: list[int], count: int
) -> Callable[[Array], Array]:
    """The results of the reference kernel for sums of ``count`` integers. The tensors have the rank
    and the reduced axes of the operator; the last axis that is kept holds different sums."""
    number = operator.inputs[0]
    x = to.tensor(number)
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    probes = max(1, min(_PROBES, _ELEMENTS // count)) if kept else 1
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    if kept:
        shape[kept[-1]] = probes
    kernel = ReferenceOperator(operator, to, {number: tuple(shape)})
    minimum = np.iinfo(x.dtype).min

    order = [*axes, *kept[-1:], *kept[:-1]]

    def evaluate(sums: Array) -> Array:
        found: list[Array] = []
        for begin in range(0, len(sums), probes):
            part = sums[begin : begin + probes]
            # ``count`` integers with each sum, which differ by at most 1.
            whole, rest = np.divmod(np.resize(part, probes) - count * minimum, count)
            given = whole + minimum + (np.arange(count)[:, None] < rest)
            turned = given.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
            result = kernel({number: np.ascontiguousarray(turned.astype(x.dtype))})
            found.append(result.reshape(-1)[: len(part)])
        return np.concatenate(found).astype(np.int64)

    return evaluate
