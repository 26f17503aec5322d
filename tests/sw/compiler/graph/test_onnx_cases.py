"""ONNX's own test cases of the operators that the compiler handles give ONNX Runtime's results."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.model_error import ModelError
from tests.support.qdq_cases import QdqCase, qdq_cases

OPERATORS = {
    *("Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
    *("QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Add", "MaxPool", "AveragePool"),
    *("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "If", "Loop"),
}
OPSETS = range(13, 27)
# Operators whose cases, if any, are of other operator sets, or begin with another operator.
ELSEWHERE = {"ConvInteger", "MatMulInteger", "QLinearConv", "QuantizeLinear", "DequantizeLinear"}
# Cases with inputs that are sequences, of optional values, and of tensors without elements.
REFUSED = {
    *("test_identity_sequence", "test_identity_opt", "test_if_opt"),
    *("test_loop13_seq", "test_loop16_seq_none", "test_reshape_allowzero_reordered"),
}


@cache
def all_cases() -> list[TestCase]:
    """The cases of `OPERATORS`. ONNX computes their results when it imports the module of an
    operator; those of other operators take as long again.
    """
    # The cases divide by zero on purpose, and cause deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in OPERATORS:
            name = "if_" if operator == "If" else operator.lower()
            importlib.import_module(f"{node.__name__}.{name}")
        found = node._NodeTestCases
    return [
        case
        for case in found
        if case.model is not None
        and all(part.op_type in OPERATORS for part in case.model.graph.node)
    ]


def cases(operator: str, opsets: range) -> list[TestCase]:
    """The cases whose first operator is ``operator``."""
    return [
        case
        for case in all_cases()
        if case.model is not None
        and case.model.graph.node[0].op_type == operator
        and case.model.opset_import[0].version in opsets
    ]


def test_the_cases_are_there() -> None:
    assert sum(len(cases(operator, OPSETS)) for operator in OPERATORS) > 100


@pytest.mark.parametrize("operator", sorted(OPERATORS - ELSEWHERE))
def test_the_cases_of_an_operator_are_as_onnx_runtime_has_them(operator: str) -> None:
    chosen = cases(operator, OPSETS)
    assert chosen
    for case in chosen:
        assert case.model is not None
        if case.name in REFUSED:
            with pytest.raises(ModelError):
                Session(case.model, "tiny")
            continue
        session = Session(case.model, "tiny")
        assert case.data_sets
        for inputs, _ in case.data_sets:
            given = dict(zip(session.inputs, inputs, strict=True))
            assert session.check(given).ok, case.name


# The test case of QLinearConv has the operator's first version, which is still the current one.
@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearMatMul"])
def test_a_product_with_constant_weights_is_as_onnx_has_it(operator: str) -> None:
    """The cases have weights and scales as inputs; here they become constants, as in networks."""
    chosen = cases(operator, range(10, 27))
    assert chosen
    for case in chosen:
        assert case.model is not None
        assert case.data_sets
        for inputs, (expected,) in case.data_sets:
            check_with_constants(case.model, inputs, expected)


def check_with_constants(model: onnx.ModelProto, inputs: Sequence[Any], expected: Any) -> None:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.opset_import[0].version = max(13, copy.opset_import[0].version)
    names = [item.name for item in copy.graph.input]
    for name, value in list(zip(names, inputs, strict=True))[1:]:
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    del copy.graph.input[1:]
    with Session(copy, "tiny-extended") as session:
        report = session.check({names[0]: inputs[0]})
        (layer,) = [item for item in session.layers if item.operator != "layout"]
    assert report.ok
    np.testing.assert_array_equal(next(iter(report.outputs.values())), expected)
    assert layer.placed_on == "machine"


def test_operators_between_quantizations_are_as_onnx_runtime_has_them() -> None:
    """One in twelve of the cases; ``benchmarks/quantized_files.py --cases`` has all."""
    assert right(islice(qdq_cases(), 5, None, 12), "functional") > 35


def test_a_sample_of_operators_between_quantizations_is_right_on_rtl() -> None:
    assert right(islice(qdq_cases(), 3, None, 40), "rtl") > 10


def right(cases: Iterable[QdqCase], device: str) -> int:
    """The number of ``cases`` that ONNX Runtime can run; checks that all of them give its
    results."""
    count = 0
    for case in cases:
        try:
            with Session(case.model, "tiny-extended", device) as session:
                assert session.check({"given": case.images}).ok, case.name
        except ModelError:  # operators that ONNX Runtime does not implement
            continue
        count += 1
    return count
