"""Random networks from ONNX Runtime's quantizer, with any of its options: every element equals ONNX
Runtime's.
"""

from __future__ import annotations

import pytest

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.model_error import ModelError
from tests.support.quantized_files import Case


def difference(case: Case) -> str:
    """The problem with a network, or an empty string; networks too small to quantize have none."""
    try:
        model = case.quantized()
    except Exception:  # raised by the quantizer itself
        return ""
    try:
        with Session(model, "pynq-extended") as session:
            report = session.check({"x": case.images()[0]})
    except ModelError as error:
        return str(error)
    return f"{report.histogram} by value and number" if report.mismatches else ""


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_quantized_networks_are_exact(first: int) -> None:
    for seed in range(first, first + 10):
        case = Case.drawn(seed)
        if difference(case):
            small = case.smallest(lambda other: bool(difference(other)))
            pytest.fail(f"{small}: {difference(small)}")


def test_a_network_that_fails_is_made_smaller() -> None:
    case = next(case for case in map(Case.drawn, range(99)) if len(case.steps) > 4)
    name = case.steps[2][0]
    small = case.smallest(lambda other: any(step == name for step, _ in other.steps))
    assert [step for step, _ in small.steps] == [name]
