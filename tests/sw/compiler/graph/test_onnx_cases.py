"""ONNX's own cases of the operators that the compiler looks at: whatever it makes of them, the
result is ONNX Runtime's."""

from __future__ import annotations

import warnings

import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.model import ModelError

OPERATORS = {
    *("Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
    *("QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Add", "MaxPool", "AveragePool"),
    *("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "If", "Loop"),
}
# Of sequences, of optional values, and of tensors without elements.
REFUSED = {
    *("test_identity_sequence", "test_identity_opt", "test_if_seq", "test_if_opt"),
    *("test_loop13_seq", "test_loop16_seq_none", "test_reshape_allowzero_reordered"),
}


def cases() -> list[TestCase]:
    # They divide by zero on purpose, and speak of what will be removed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return [
        case
        for case in found
        if case.model is not None
        and all(node.op_type in OPERATORS for node in case.model.graph.node)
        and case.model.opset_import[0].version in range(13, 27)
    ]


CASES = cases()


def test_the_cases_are_there() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_case_is_as_onnx_runtime_has_it(case: TestCase) -> None:
    assert case.model is not None
    if case.name in REFUSED:
        with pytest.raises(ModelError):
            Session(case.model, "tiny")
        return
    session = Session(case.model, "tiny")
    assert case.data_sets
    for inputs, _ in case.data_sets:
        assert session.check(dict(zip(session.inputs, inputs, strict=True))).ok
