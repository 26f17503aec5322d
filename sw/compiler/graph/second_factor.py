"""Where products of integers have their second factor; the first is always input 0, and its zero
point input 2."""

from __future__ import annotations

# By domain and operator, the inputs that are the second factor and its zero point.
SECOND_FACTOR = {
    **dict.fromkeys((("", "ConvInteger"), ("", "MatMulInteger")), (1, 3)),
    **dict.fromkeys(
        (("", "QLinearConv"), ("", "QLinearMatMul"), ("com.microsoft", "QGemm")), (3, 5)
    ),
}
