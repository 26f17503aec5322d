"""Input positions of the second factor of integer products. The first factor is always input 0, and
its zero point input 2."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT

# Input positions of the second factor and its zero point, by domain and operator.
SECOND_FACTOR = {
    **dict.fromkeys((("", "ConvInteger"), ("", "MatMulInteger")), (1, 3)),
    **dict.fromkeys((("", "QLinearConv"), ("", "QLinearMatMul"), (MICROSOFT, "QGemm")), (3, 5)),
}
