"""Small quantized files with operators that only move elements, between convolutions: `MAPS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx

from .quantized_forms import Shape, floats, matrix, qdq, static

ALL = 2**31 - 1


@dataclass(frozen=True)
class Moves:
    """A network of two convolutions with ``text`` between them, which computes ``z`` with ``made``
    channels from ``a`` with ``channels``. The input has ``shape``; ``opset`` is the version.
    """

    text: str
    channels: int = 8
    made: int = 8
    shape: Shape = (1, 8, 8, 12)
    opset: int = 17

    def model(self, **options: Any) -> onnx.ModelProto:
        """The network, quantized by ONNX Runtime with these options."""
        first = f"a = Conv(x, w({self.channels},8,1,1), v({self.channels}))"
        last = f"y = Conv(z, w(5,{self.made},1,1), v(5))"
        return static(first + self.text + last, self.shape, self.opset, **options)

    def in_steps_of_powers_of_two(self, after: float = 0.125) -> onnx.ModelProto:
        """The network with power-of-two scales, which every machine supports: quantized before and
        after ``text``, with the scale ``after``, but not within it.
        """
        text = (
            qdq("x1", "x", 0.0625, 128)
            + matrix("w1", f"k({self.channels},8,1,1)", "c(0.0078125)")
            + "y1 = Conv(x1, w1)"
            + qdq("a", "y1", 0.125, 128)
            + self.text
            + qdq("x2", "z", after, 128)
            + matrix("w2", f"k(5,{self.made},1,1)", "c(0.0078125)")
            + "y2 = Conv(x2, w2)"
            + qdq("y", "y2", 0.125, 128)
        )
        return floats(text, self.shape, self.opset)


def _sliced(starts: str, ends: str, axes: str, steps: str) -> str:
    return f"z = Slice(a, i({starts}), i({ends}), i({axes}), i({steps}))"


def _focus(order: str) -> str:
    """Space to depth by strided Slices: the pixels of each 2×2 block become channels."""
    starts = {"rows": "0,0 1,0 0,1 1,1", "columns": "0,0 0,1 1,0 1,1"}[order].split()
    parts = [
        f"p{at} = Slice(a, i({start}), i({ALL},{ALL}), i(2,3), i(2,2))"
        for at, start in enumerate(starts)
    ]
    return "".join(parts) + "z = Concat<axis=1>(p0, p1, p2, p3)"


def _pad(mode: str, pads: str, axes: str = "") -> str:
    more = f", , i({axes})" if axes else ""
    return f'z = Pad<mode="{mode}">(a, i({pads}){more})'


def _circular(axis: int, size: int, before: int, after: int) -> str:
    return (
        f"k = Slice(a, i({-before}), i({ALL}), i({axis}))"
        f"l = Slice(a, i(0), i({after}), i({axis}))"
        f"z = Concat<axis={axis}>(k, a, l)"
    )


MAPS: dict[str, Moves] = {
    "every second row and column": Moves(_sliced("0,1", f"{ALL},{ALL}", "2,3", "2,2")),
    "every third column, axis -1": Moves(_sliced("1", f"{ALL}", "-1", "3")),
    "columns reversed": Moves(_sliced("-1", f"{-ALL}", "3", "-1")),
    "rows reversed in steps, 20 channels": Moves(
        _sliced("-2,10", f"{-ALL},2", "2,3", "-2,-3"), channels=20, made=20
    ),
    "channels reversed": Moves(_sliced("-1", f"{-ALL}", "1", "-1")),
    "every second channel of every second column": Moves(
        _sliced("1,0", f"{ALL},{ALL}", "1,3", "2,2"), made=4
    ),
    "channels within a tile, and a crop": Moves(
        _sliced("3,1", "17,7", "1,2", "1,1"), channels=20, made=14
    ),
    "a Slice of one image": Moves("z = Slice(a, i(1,2), i(7,9), i(2,3))"),
    "SpaceToDepth": Moves("z = SpaceToDepth<blocksize=2>(a)", made=32),
    "SpaceToDepth of whole tiles": Moves("z = SpaceToDepth<blocksize=4>(a)", channels=16, made=256),
    "SpaceToDepth of three channels": Moves(
        "z = SpaceToDepth<blocksize=2>(a)", channels=3, made=12
    ),
    "pixel unshuffle": Moves(
        "b = Reshape(a, i(1,8,4,2,6,2)) c = Transpose<perm=[0,1,3,5,2,4]>(b)"
        "z = Reshape(c, i(1,32,4,6))",
        made=32,
    ),
    "pixel shuffle": Moves(
        "r = Relu(a) b = Reshape(r, i(1,2,2,2,8,12)) c = Transpose<perm=[0,1,4,2,5,3]>(b)"
        "d = Reshape(c, i(1,2,16,24)) z = MaxPool<kernel_shape=[2,2]>(d)",
        made=2,
    ),
    "DepthToSpace behind an addition": Moves(
        'b = Add(a, a) z = DepthToSpace<blocksize=2,mode="CRD">(b)', made=2
    ),
    "DepthToSpace of whole tiles": Moves(
        "b = MaxPool<kernel_shape=[2,2]>(a) z = DepthToSpace<blocksize=2>(b)",
        channels=64,
        made=16,
    ),
    "pixel shuffle behind MaxPool": Moves(
        "p = MaxPool<kernel_shape=[2,2]>(a) b = Reshape(p, i(1,5,3,3,7,11))"
        "c = Transpose<perm=[0,1,4,2,5,3]>(b) z = Reshape(c, i(1,5,21,33))",
        channels=45,
        made=5,
    ),
    "a focus of rows first": Moves(_focus("rows"), made=32),
    "a focus of columns first": Moves(_focus("columns"), channels=16, made=64),
    "a focus of three channels": Moves(_focus("rows"), channels=3, made=12),
    "Pad, negative": Moves(_pad("constant", "0,0,-1,0,0,0,0,-2")),
    "Pad, negative and positive": Moves(_pad("constant", "0,0,-1,2,0,0,1,-2")),
    "Pad, reflect": Moves(_pad("reflect", "0,0,2,1,0,0,1,3")),
    "Pad, edge": Moves(_pad("edge", "0,0,1,1,0,0,2,0")),
    "Pad, wrap": Moves(_pad("wrap", "0,0,1,2,0,0,1,1"), opset=19),
    "Pad with a value that is quantized": Moves(
        "b = Pad(a, i(0,0,1,1,0,0,1,1), c(0.5)) z = MaxPool<kernel_shape=[2,2]>(b)"
    ),
    "Pad of channels": Moves("z = Pad(a, i(0,3,0,0,0,5,0,0))", made=16),
    "Pad of channels, rows and columns of every second pixel": Moves(
        f"s = Slice(a, i(0,0), i({ALL},{ALL}), i(2,3), i(2,2))z = Pad(s, i(0,6,1,0,0,2,0,2))",
        channels=20,
        made=28,
    ),
    "Pad with axes": Moves(_pad("reflect", "1,2,1,0", "2,-1"), opset=18),
    "Pad with a constant and axes": Moves(
        "b = Pad(a, i(1,2), , i(3)) z = MaxPool<kernel_shape=[2,2]>(b)", opset=18
    ),
    "circular along columns": Moves(_circular(3, 12, 1, 1)),
    "circular along rows, 20 channels": Moves(_circular(2, 8, 2, 1), channels=20, made=20),
    "circular along both": Moves(
        _circular(3, 12, 1, 2).replace("z =", "s =")
        + f"t = Slice(s, i(-1), i({ALL}), i(2)) u = Slice(s, i(0), i(1), i(2))"
        "z = Concat<axis=2>(t, s, u)"
    ),
    "a flip added to itself": Moves(
        _sliced("-1", f"{-ALL}", "3", "-1").replace("z =", "f =") + "z = Add(a, f)"
    ),
    "two tensors side by side": Moves(
        "b = Conv(x, w(8,8,1,1), v(8)) c = Slice(b, i(2), i(7), i(3)) z = Concat<axis=3>(a, c)"
    ),
    "rows in another order": Moves("z = Gather<axis=2>(a, i(3,0,0,7,5))"),
    "Tile": Moves("z = Tile(a, i(1,1,2,1))"),
    "Transpose of rows and columns": Moves("z = Transpose<perm=[0,1,3,2]>(a)"),
}
SEQUENCE: Shape = (1, 8, 24)
SEQUENCES: dict[str, str] = {
    "steps": f"z = Slice(a, i(1), i({ALL}), i(2), i(2))",
    "reversed": f"z = Slice(a, i(-1), i({-ALL}), i(2), i(-1))",
    "reflect": 'z = Pad<mode="reflect">(a, i(0,0,3,0,0,2))',
    "circular": _circular(2, 24, 2, 3),
    "causal": "z = Pad(a, i(0,0,4,0,0,-1))",
}
