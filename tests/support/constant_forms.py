"""Forms of quantized weights: moved between DequantizeLinear and the product, and of few bits."""

from __future__ import annotations

from functools import partial

from .quantized_forms import IMAGE, Form, Shape, floats, qdq

ROWS: Shape = (3, 24)
SEQUENCES: Shape = (2, 5, 24)


def _conv(weights: str, shape: Shape = IMAGE, opset: int = 21, options: str = "") -> Form:
    """A Conv; ``weights`` is the text that computes its weights m."""
    text = qdq("a", "x", 0.03) + weights + f" b = Conv{options}(a, m)" + qdq("y", "b", 0.05)
    return Form(partial(floats, text, shape, opset))


def _matrix(weights: str, shape: Shape = SEQUENCES, opset: int = 21) -> Form:
    """A MatMul; ``weights`` is the text that computes its weights m."""
    text = qdq("a", "x", 0.03) + weights + " b = MatMul(a, m)" + qdq("y", "b", 0.05)
    return Form(partial(floats, text, shape, opset))


def moved_weights() -> dict[str, Form]:
    """Weights that Transpose, Reshape and others move behind their DequantizeLinear."""
    of_rows = "DequantizeLinear<axis=0>(k(10,24), small(10))"
    part = "k(5,24), small(5)"
    return {
        "a matrix, transposed": _matrix(f"w = {of_rows} m = Transpose<perm=[1,0]>(w)"),
        "a matrix, transposed, of one scale": _matrix(
            "w = DequantizeLinear(k(10,24), c(0.01)) m = Transpose(w)"
        ),
        "a float matrix, quantized and transposed": _matrix(
            "i = QuantizeLinear<axis=0>(w(10,24), small(10))"
            "w = DequantizeLinear<axis=0>(i, small(10)) m = Transpose<perm=[1,0]>(w)"
        ),
        "a matrix with zero points, transposed": _matrix(
            "w = DequantizeLinear<axis=0>(u(10,24), small(10), u(10)) m = Transpose(w)"
        ),
        "Gemm of a transposed matrix": Form(
            partial(
                floats,
                qdq("a", "x", 0.03)
                + f"w = {of_rows} m = Transpose(w) b = Gemm(a, m, small(10))"
                + qdq("y", "b", 0.05),
                ROWS,
            )
        ),
        "a matrix of two halves": _matrix(
            f"l = DequantizeLinear<axis=0>({part}) r = DequantizeLinear<axis=0>({part})"
            "w = Concat<axis=0>(l, r) m = Transpose(w)"
        ),
        "a matrix of halves of one scale each": _matrix(
            "l = DequantizeLinear(k(24,5), c(0.01)) r = DequantizeLinear(k(24,7), c(0.02), n(3))"
            "m = Concat<axis=1>(l, r)"
        ),
        "a matrix of int8 and uint8": _matrix(
            "l = DequantizeLinear(k(24,5), c(0.01)) r = DequantizeLinear(u(24,7), c(0.02), z(99))"
            "m = Concat<axis=1>(l, r)"
        ),
        "a part of a matrix": _matrix(
            "w = DequantizeLinear<axis=1>(k(30,20), small(20))"
            "m = Slice(w, i(6,19), i(30,1), i(0,1), i(1,-2))"
        ),
        "a matrix of heads": _matrix(
            "w = DequantizeLinear<axis=0>(k(2,5,24), small(2)) t = Reshape(w, i(10,24))"
            "m = Transpose(t)"
        ),
        "chosen columns": _matrix(
            "w = DequantizeLinear<axis=1>(k(24,10), small(10))m = Gather<axis=1>(w, i(9,0,3,3,1,5))"
        ),
        "parts of one matrix": Form(
            partial(
                floats,
                qdq("a", "x", 0.03) + "w = DequantizeLinear<axis=1>(k(24,20), small(20))"
                "l, r = Split<axis=1>(w, i(8,12)) b = MatMul(a, l)"
                + qdq("c", "b", 0.05)
                + "d = MatMul(a, r)"
                + qdq("e", "d", 0.05)
                + "y = Concat<axis=-1>(c, e)",
                SEQUENCES,
            ),
            frozenset({"Concat"}),
        ),
        "kernels of channels last": _conv(
            "w = DequantizeLinear<axis=3>(k(3,3,8,6), small(6)) m = Transpose<perm=[3,2,0,1]>(w)"
        ),
        "depthwise kernels of channels last": _conv(
            "w = DequantizeLinear<axis=2>(k(3,3,8,1), small(8)) m = Transpose<perm=[2,3,0,1]>(w)",
            options="<group=8>",
        ),
        "kernels from a matrix": _conv(
            "w = DequantizeLinear<axis=0>(k(6,8), small(6)) m = Reshape(w, i(6,8,1,1))"
        ),
        "kernels with axes to spare": _conv(
            "w = DequantizeLinear<axis=-2>(k(1,6,8), small(6)) s = Squeeze(w, i(0))"
            "m = Unsqueeze(s, i(2,3))"
        ),
        "kernels of two axes, flattened and back": _conv(
            "w = DequantizeLinear<axis=0>(k(6,8,3,3), small(6)) f = Flatten<axis=1>(w)"
            "m = Reshape(f, i(6,8,3,3))"
        ),
        "turned kernels": _conv(
            "w = DequantizeLinear<axis=0>(k(6,8,3,3), small(6))"
            "m = Slice(w, i(-1,-1), i(-9,-9), i(2,3), i(-1,-1))"
        ),
        "one kernel for all channels": _conv(
            "w = DequantizeLinear(k(1,1,3,3), c(0.01)) m = Expand(w, i(8,1,1,1))",
            options="<group=8>",
        ),
        "a repeated kernel": _conv(
            "w = DequantizeLinear<axis=0>(k(3,1,3,3), small(3)) m = Tile(w, i(2,8,1,1))"
        ),
        "ConvTranspose of moved kernels": Form(
            partial(
                floats,
                qdq("a", "x", 0.03) + "w = DequantizeLinear<axis=2>(k(3,3,6,8), small(6))"
                "m = Transpose<perm=[3,2,0,1]>(w) b = ConvTranspose<strides=[2,2]>(a, m)"
                + qdq("y", "b", 0.05),
            )
        ),
        "a moved bias": Form(
            partial(
                floats,
                qdq("a", "x", 0.03) + "m = DequantizeLinear<axis=0>(k(6,8,3,3), small(6))"
                "o = DequantizeLinear(j(1,6,1,1), c(0.0003)) p = Reshape(o, i(6))"
                "b = Conv(a, m, p)" + qdq("y", "b", 0.05),
            )
        ),
        "a bias per channel behind a convolution": Form(
            partial(
                floats,
                qdq("a", "x", 0.03)
                + "m = DequantizeLinear<axis=0>(k(6,8,3,3), small(6)) b = Conv(a, m)"
                "o = DequantizeLinear<axis=0>(j(6), small(6)) p = Unsqueeze(o, i(1,2))"
                "e = Add(b, p)" + qdq("y", "e", 0.08),
            )
        ),
        "one block for each column": _matrix(
            "m = DequantizeLinear<axis=0,block_size=24>(k(24,10), small(1,10))"
        ),
        "a product of constants moved": _matrix(
            "w = DequantizeLinear<axis=0>(k(10,24), small(10)) s = Unsqueeze(w, i(0))"
            "t = Transpose<perm=[0,2,1]>(s) m = Squeeze(t, i(0))"
        ),
    }


def small_weights() -> dict[str, Form]:
    """Weights and activations of two and four bits, and scales of float16."""
    forms: dict[str, Form] = {}
    for kind, opset in (("int4", 21), ("uint4", 21), ("int4", 23), ("int2", 25), ("uint2", 25)):
        name = f"{kind} in opset {opset}"
        wide = f"{kind}(6,8,3,3)"
        forms |= {
            f"{name}": _conv(f"m = DequantizeLinear({wide}, small(1))", opset=opset),
            f"{name}, per channel": _conv(
                f"m = DequantizeLinear<axis=0>({wide}, small(6))", opset=opset
            ),
            f"{name}, a zero point": _conv(
                f"m = DequantizeLinear({wide}, small(1), {kind}(1))", opset=opset
            ),
            f"{name}, zero points per channel": _conv(
                f"m = DequantizeLinear<axis=0>({wide}, small(6), {kind}(6))", opset=opset
            ),
            f"{name}, a transposed matrix": _matrix(
                f"w = DequantizeLinear<axis=0>({kind}(10,24), small(10), {kind}(10))"
                "m = Transpose(w)",
                opset=opset,
            ),
            f"{name}, quantized when compiling": _conv(
                f"i = QuantizeLinear<axis=0>(w(6,8,3,3), small(6), {kind}(6))"
                f"m = DequantizeLinear<axis=0>(i, small(6), {kind}(6))",
                opset=opset,
            ),
        }
    for kind, number, end in (("int4", 22, 0.08), ("uint4", 21, 0.04)):
        to = f"QuantizeLinear<output_dtype={number}>"
        text = (
            f"i = {to}(x, c(0.3)) a = DequantizeLinear(i, c(0.3))"
            f"m = DequantizeLinear<axis=0>({kind}(6,8,3,3), small(6), {kind}(6)) b = Conv(a, m)"
            f"j = {to}(b, c({end})) y = DequantizeLinear(j, c({end}))"
        )
        forms[f"activations of {kind}"] = Form(partial(floats, text, opset=21), frozenset({"Clip"}))
        text = (
            f"p = Constant<value_floats=[0.4]>() i = QuantizeLinear(x, p, {kind}(1))"
            f"a = DequantizeLinear(i, p, {kind}(1)) b = MaxPool<kernel_shape=[2,2]>(a)"
            f"j = QuantizeLinear(b, p, {kind}(1)) d = DequantizeLinear(j, p, {kind}(1))"
            "m = DequantizeLinear<axis=0>(k(6,8,3,3), small(6)) e = Conv(d, m) f = Relu(e)"
            f"l = {to}(f, c(1.2)) y = DequantizeLinear(l, c(1.2))"
        )
        forms[f"activations of {kind} with zero points"] = Form(
            partial(floats, text, opset=21), frozenset({"Clip"})
        )
    return forms


def half_scales() -> dict[str, Form]:
    """Scales of float16, of weights alone or in networks of float16."""
    scale = "s = Squeeze(half(1))"
    end = "j = QuantizeLinear({}, t, z(110)) f = DequantizeLinear(j, t, z(110)) y = Cast<to=1>(f)"
    given = (
        f"xh = Cast<to=10>(x) {scale} t = Cast<to=10>(c(0.06)) i = QuantizeLinear(xh, s, z(120))"
    )
    given += "a = DequantizeLinear(i, s, z(120))"
    for name, value in (("c16", 1.4142), ("d16", 1), ("e16", 0.5)):
        given += f" {name} = Cast<to=10>(c({value})) "
    weights = "m = DequantizeLinear<axis=0>(k(6,8,3,3), half(6))"
    lines = {
        "a product in float16": "b = Conv(a, m)" + end.format("b"),
        "a product in float16 with Relu": "b = Conv(a, m) d = Relu(b)" + end.format("d"),
        "a product in float16 with a bias": "b = Conv(a, m, half(6))" + end.format("b"),
        "Gelu in float16": "b = Conv(a, m) g = QuantizeLinear(b, t, z(110)) "
        "h = DequantizeLinear(g, t, z(110)) l = Div(h, c16) e = Erf(l) n = Add(e, d16)"
        "p = Mul(h, n) q = Mul(p, e16)" + end.format("q"),
        "a product in float16, added to itself": "b = Conv(a, m) "
        "g = QuantizeLinear(b, t, z(110)) h = DequantizeLinear(g, t, z(110)) l = Sigmoid(h) "
        "n = Mul(l, h)" + end.format("n"),
    }
    forms = {
        name: Form(partial(floats, given + weights + text, opset=21), frozenset({"Cast"}))
        for name, text in lines.items()
    }
    forms |= {
        "weights of float16 scales": _conv(
            "w = DequantizeLinear<axis=0>(k(6,8,3,3), half(6)) m = Cast<to=1>(w)"
        ),
        "weights of a float16 scale": _conv(
            "w = DequantizeLinear(u(6,8,3,3), half(1), u(1)) m = Cast<to=1>(w)"
        ),
        "weights of int4 and float16 scales": _conv(
            "w = DequantizeLinear<axis=0>(int4(6,8,3,3), half(6), int4(6)) m = Cast<to=1>(w)"
        ),
        "weights of float16 scales, transposed": _matrix(
            "w = DequantizeLinear<axis=0>(k(10,24), half(10)) t = Transpose(w) m = Cast<to=1>(t)"
        ),
        "weights of float16 scales, dequantized to float32": _conv(
            "m = DequantizeLinear<axis=0,output_dtype=1>(k(6,8,3,3), half(6))", opset=23
        ),
    }
    return forms
