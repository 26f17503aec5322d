"""Random graphs of fused layers: every element equals ONNX Runtime's, and no token is missing.

``benchmarks/fused_graphs.py`` runs more of them.
"""

from __future__ import annotations

import pytest

from tests.support.exact_graphs import check_exact, check_tokens
from tests.support.fused_graphs import fused_graph
from tests.support.seeds import each_seed
from tests.support.step_chains import step_chain


def test_random_fused_graphs_are_exact() -> None:
    operators: set[str] = set()

    @each_seed(range(40))
    def check(seed: int) -> None:
        operators.update(check_exact(fused_graph(seed), "tiny-extended"))

    check()
    block = "QLinearConv+QLinearConv+QLinearConv"
    assert operators >= {"QLinearConv+MaxPool", "QLinearConv+Add", "MaxPool", block, f"{block}+Add"}
    assert any(operator.startswith("QLinearConv, QuantizeLinear") for operator in operators)


@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 60), marks=pytest.mark.nightly)], ids=str
)
def test_random_chains_of_steps_are_exact(seeds: range) -> None:
    operators: set[str] = set()

    @each_seed(seeds)
    def check(seed: int) -> None:
        operators.update(check_exact(step_chain(seed), "tiny-extended"))

    check()
    assert max(operator.count("+") for operator in operators) > 4


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
@each_seed(range(40, 43))
def test_random_fused_graphs_are_exact_on_rtl(seed: int, config: str) -> None:
    check_exact(fused_graph(seed), config, "rtl")


@each_seed(range(43, 49), daily=2)
def test_tokens_order_random_fused_graphs(seed: int) -> None:
    check_tokens(fused_graph(seed), seed)
