"""TensorFlow Lite files: every element equals LiteRT's reference kernels.

``benchmarks/tflite_operators.py`` runs more of them.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.session import Session
from tests.support.seeds import each_seed
from tests.support.tflite_files import TfliteCase, run_case
from tests.support.tflite_graphs import random_graph, stateful_graph
from tests.support.tflite_operators import OPERATORS, operator_cases

_CASES = list(operator_cases(1, 100))
# Refused by the reader: LiteRT's kernels compute these in ways that cannot be reproduced.
_REFUSED = "wrap around in TensorFlow Lite's kernel|TensorFlow Lite interpolates uint8 in float32"


def assert_exact(
    case: TfliteCase, config: str = "pynq-extended", device: str = "functional"
) -> None:
    outcome = run_case(case, config, device)
    if outcome.refused:
        assert re.search(_REFUSED, outcome.refused), f"{case.name}: {outcome.refused}"
    assert outcome.different == 0, case.name


def test_cases_cover_all_operators() -> None:
    assert {case.operator for case in _CASES} == set(OPERATORS)


def test_a_wrong_element_is_found() -> None:
    case = random_graph(1000)
    wanted = [[values.copy() for values in run] for run in case.wanted]
    wanted[1][0].flat[0] ^= 1
    assert run_case(replace(case, wanted=wanted), "pynq-extended").different == 1


@pytest.mark.parametrize("operator", OPERATORS)
def test_single_operators_are_exact(operator: str) -> None:
    for case in _CASES:
        if case.operator == operator:
            assert_exact(case)


@each_seed(range(1000, 1020), daily=8)
def test_random_graphs_are_exact(seed: int) -> None:
    assert_exact(random_graph(seed))


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
@each_seed(range(1020, 1023))
def test_random_graphs_are_exact_on_rtl(seed: int, config: str) -> None:
    assert_exact(random_graph(seed), config, "rtl")


@each_seed(range(4))
def test_state_is_kept_between_runs_and_cleared_by_reset(seed: int) -> None:
    case = stateful_graph(seed)
    with Session(case.model, "pynq-extended") as session:
        for _ in range(2):
            for run, wanted in zip(case.runs, case.wanted, strict=True):
                outputs = session.run(dict(zip(session.inputs, run, strict=True)))
                np.testing.assert_array_equal(next(iter(outputs.values())), wanted[0])
            session.reset()
