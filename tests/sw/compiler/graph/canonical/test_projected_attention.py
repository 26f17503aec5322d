"""QAttention and Attention become a product and MultiHeadAttention, with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.session import Session
from tests.support.transformer_files import whole_attention


def operators(session: Session, side: str) -> set[str]:
    return {layer.operator for layer in session.layers if layer.placed_on == side}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("mask", [0, 1, 2, 3])
@pytest.mark.parametrize("past", [0, 3])
def test_the_projection_is_on_the_machine(dynamic: bool, mask: int, past: int) -> None:
    model, feeds = whole_attention(dynamic, mask, past, unidirectional=past % 2)
    with Session(model, "pynq-extended") as session:
        report = session.check(feeds)
        assert operators(session, "machine") == {"MatMulInteger"}
        assert "MultiHeadAttention" in operators(session, "host")
    assert report.mismatches == 0
    assert report.file is not None
    assert max(item.of_range for item in report.file.outputs.values()) < 1e-6


def test_what_the_parts_cannot_express_stays_whole() -> None:
    """A mask of ends and starts, which MultiHeadAttention does not have."""
    model, feeds = whole_attention(False, mask=1)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
    feeds["mask"] = np.array([6, 1], np.int32)
    with Session(model, "pynq-extended") as session:
        assert session.check(feeds).ok
        assert "Attention" in operators(session, "host")
