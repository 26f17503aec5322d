"""Sound TensorFlow Lite files, and mutations of their words and of their fields."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from .tflite_files import DrawnNetwork
from .tflite_graphs import stateful_graph

NUMBERS = (0, 1, -1, 2, 7, 255, 65535, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, math.inf, -math.inf, math.nan)
# Operators that a mutation puts in the place of others.
_OPERATORS = (
    *("ADD", "SUB", "MUL", "CONCATENATION", "MEAN", "SUM", "SOFTMAX", "LOGISTIC", "TANH"),
    *("AVERAGE_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR", "TRANSPOSE_CONV", "GATHER", "PAD"),
    *("PRELU", "LEAKY_RELU", "HARD_SWISH", "QUANTIZE", "BATCH_MATMUL", "RESHAPE", "SPLIT"),
    *("STRIDED_SLICE", "CALL_ONCE", "READ_VARIABLE", "WHILE", "CUSTOM", "ARG_MAX", "REDUCE_MAX"),
)


def small_tflite(keeps_state: bool) -> bytes:
    """A network of the operators that need most of the reader, or one with a variable."""
    if keeps_state:
        return stateful_graph(1).model
    net = DrawnNetwork(1)
    x = net.given(1, 6, 6, 3)
    y = net.conv(x, 4, (3, 3))
    y = net.apply("ADD", y, net.conv(y, 4, (1, 1), act="NONE"), fused_activation_function="RELU")
    window = dict.fromkeys(("stride_w", "stride_h", "filter_width", "filter_height"), 2)
    one = dict.fromkeys(window, 1)
    y = net.apply("AVERAGE_POOL_2D", y, padding="VALID", **window)
    y = net.apply("MUL", y, net.apply("LOGISTIC", y), fused_activation_function="NONE")
    y = net.apply("CONCATENATION", y, net.apply("MAX_POOL_2D", y, padding="SAME", **one), axis=3)
    y = net.apply("MEAN", y, net.values([1, 2]), fit=True, keep_dims=False)
    net.output(net.apply("SOFTMAX", net.dense(y, 5), beta=1.0))
    return net.bytes()


def any_word(random: Random, data: bytes) -> bytes:
    """Change an aligned word, which may be an offset, a length, a size or a scale."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2))):
        at = 4 * random.randrange(len(changed) // 4)
        word = int.from_bytes(changed[at : at + 4], "little")
        near = word + random.choice((-8, -4, 4, 8, random.randrange(len(data))))
        near = random.choice((near, *NUMBERS))
        changed[at : at + 4] = (near & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(changed)


def any_tflite(random: Random, data: bytes) -> bytes:
    """Change fields of the file's tables."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    for _ in range(random.choice((1, 1, 2, 3))):
        tables = [item for item in _tables(model) if vars(item)]
        kind = random.choice(list({type(item): None for item in tables}))
        changed = random.choice([item for item in tables if type(item) is kind])
        name = random.choice(list(vars(changed)))
        setattr(changed, name, _other(random, name, getattr(changed, name)))
    try:
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
    except Exception:  # a value of another type than the field's
        return any_word(random, data)
    return bytes(builder.Output())


def _tables(table: Any) -> Any:
    yield table
    for value in vars(table).values():
        for item in value if isinstance(value, list) else (value,):
            if hasattr(item, "Pack"):
                yield from _tables(item)


def _other(random: Random, name: str, value: Any) -> Any:
    if name in ("builtinCode", "deprecatedBuiltinCode") and random.random() < 0.8:
        return getattr(schema.BuiltinOperator, random.choice(_OPERATORS))
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, value - 1, random.randrange(12), *NUMBERS[:9]))
        case float():
            return random.choice(FLOATS)
        case np.ndarray() if value.size:
            return _other_array(random, value)
        case list() if value:
            place = random.randrange(len(value))
            more = (value[:place] + value[place + 1 :], [*value, value[place]], value[::-1])
            return random.choice(more)
        case bytes() if value:
            return random.choice((b"", b"x", b"\xff\xfe", value * 300))
    return None


def _other_array(random: Random, value: Any) -> Any:
    changed = value.copy()
    match random.randrange(6):
        case 0:
            return changed[: random.randrange(value.size)]
        case 1:
            return np.concatenate([changed, changed])
    place = random.randrange(value.size)
    if value.dtype.kind == "f":
        changed[place] = random.choice((*FLOATS, 1e-20, 1e20, changed[place] * 2))
    else:
        limits = np.iinfo(value.dtype)
        number = random.choice((*NUMBERS, int(changed[place]) + 1, random.randrange(300)))
        changed[place] = min(max(number, limits.min), limits.max)
    return changed
