"""Caches to which a run appends rows become ring buffers that the host writes in place, and results
equal ONNX Runtime's over more runs than a buffer has rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.load.states import with_states
from amaranth_vta.sw.runtime.network.network_program import (
    MoveWindows,
    RunLayer,
    ToMachine,
    WriteRows,
)
from tests.support.cached_attention import (
    STATES,
    WIDTH,
    appending,
    appending_feeds,
    attention,
    integer_attention,
    random_feeds,
)

CONFIG = "tiny-extended"


def rings_of(model: onnx.ModelProto) -> list[str]:
    """The variables of the canonical network that are ring buffers."""
    states = canonical(load_network(with_states(model, STATES), 1)).states
    return [item.source for item in states if item.source.endswith("_ring")]


def expected(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    shapes = {item.name: item.shape for item in session.get_inputs()}
    caches = {name: np.zeros(shapes[name], np.float32) for name in STATES}
    found = []
    for given in feeds:
        y, *following = session.run(["y", *STATES.values()], given | caches)
        caches = dict(zip(STATES, following, strict=True))
        found.append(y)
    return found


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("past", "new"), [(7, 1), (8, 1), (9, 3), (4, 4)])
def test_results_are_those_of_onnx_runtime_after_the_buffer_wraps_around(
    past: int, new: int, whole: bool, tmp_path: Path
) -> None:
    model = attention(past, new, whole)
    feeds = random_feeds(new, 3 * (past + new))
    with Session(model, CONFIG, states=STATES) as session:
        names = ["past_k_integer_ring", "past_v_integer_ring"]
        assert [item.operand.tensor for item in session.program.kept] == names
        np.testing.assert_equal(
            [session.run(given)["y"] for given in feeds], expected(model, feeds)
        )
        session.reset()
        assert (session.run(feeds[0])["y"] == expected(model, feeds)[0]).all()
        session.save(tmp_path / "attention.vta")
    with Session.load(tmp_path / "attention.vta") as loaded:
        found = [loaded.run(given)["y"] for given in feeds]
        np.testing.assert_equal(found, expected(model, feeds))


@pytest.mark.parametrize("masked", [False, True])
def test_scores_of_a_row_softmax_stay_in_the_order_of_the_buffer(masked: bool) -> None:
    model = integer_attention(masked)
    feeds: list[dict[str, Any]] = list(random_feeds(1, 20))
    if masked:
        rng = np.random.default_rng(8)
        feeds = [given | {"mask": rng.integers(0, 2, (1, 8))} for given in feeds]
    with Session(model, CONFIG, states=STATES) as session:
        assert len(session.program.kept) == 2
        np.testing.assert_equal(
            [session.run(given)["y"] for given in feeds], expected(model, feeds)
        )
        assert session.check(feeds[0]).ok
        on_host = {layer.name for layer in session.layers if layer.operator == "Gather"}
    assert on_host == ({"mask/cast_in_ring"} if masked else set())


def test_both_products_of_a_row_softmax_have_the_same_order_or_none_has() -> None:
    assert len(rings_of(integer_attention())) == 2
    assert not rings_of(integer_attention(zero="other"))


def test_only_new_rows_are_written_and_no_layer_moves_a_cache() -> None:
    with Session(attention(), CONFIG, states=STATES) as session:
        steps = session.program.steps
        layers = [step.operator for step in steps if isinstance(step, RunLayer)]
        assert layers == ["QLinearMatMul", "QLinearMatMul"]
        written = [step for step in steps if isinstance(step, WriteRows)]
        assert [step.axis for step in written] == [2, 1]
        operands = [step.operand for step in steps if isinstance(step, ToMachine)]
        assert [operand.packing for operand in operands] == [None, None]


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"zero": "other"}, 1),  # the bias depends on the keys
        ({"function": "shares = Softmax<axis = -1>(sf) scaled = Identity(scores)"}, 2),
        ({"output": f", float[1, 2, 8, {WIDTH}] all_k"}, 1),  # the order would be seen
        ({"function": "shares = Softmax<axis = -1>(sf) c = Cast<to = 6>(si)",
          "output": ", int32[1, 2, 1, 8] c"}, 1),  # reads scores as integers
        ({"past": 7, "new": 7}, 2),
    ],
)  # fmt: skip
def test_a_cache_becomes_a_ring_buffer_only_if_its_order_cannot_be_seen(
    changes: dict[str, object], left: int
) -> None:
    assert len(rings_of(attention(**changes))) == left  # type: ignore[arg-type]


# Heads of one and of two tiles; more runs than rows.
@pytest.mark.parametrize(("width", "device", "runs"), [(4, "functional", 20), (8, "functional", 20),
                                                       (8, "rtl", 11)])  # fmt: skip
def test_layers_store_new_keys_and_values_at_their_places(
    width: int, device: str, runs: int, tmp_path: Path
) -> None:
    model, feeds = appending(width), appending_feeds(runs, width)
    wanted = expected(model, feeds)
    with Session(model, CONFIG, device, states=STATES) as session:
        network = session.program
        kinds = [type(step) for step in network.steps]
        assert (kinds.count(WriteRows), kinds.count(MoveWindows)) == (0, 1)
        assert len(network.launched("network")) == 1
        # Keys, values, and the copy of values.
        assert [item.operand.image for item in network.kept] == [
            (2, width, 8, 1), (2, 8, width, 1), (1, 2 * width, 8, 1)
        ]  # fmt: skip
        for _ in range(2):
            np.testing.assert_equal([session.run(given)["y"] for given in feeds], wanted)
            session.reset()
        session.save(tmp_path / "attention.vta")
    with Session.load(tmp_path / "attention.vta", launch="layer") as loaded:
        np.testing.assert_equal([loaded.run(given)["y"] for given in feeds], wanted)


def test_the_host_writes_rows_that_other_operators_read_too() -> None:
    model = appending()
    model.graph.output.append(helper.make_tensor_value_info("k_4", onnx.TensorProto.INT8, None))
    feeds = appending_feeds(10)
    with Session(model, CONFIG, states=STATES) as session:
        written = [step for step in session.program.steps if isinstance(step, WriteRows)]
        assert [step.axis for step in written] == [2]
        np.testing.assert_equal(
            [session.run(given)["y"] for given in feeds], expected(model, feeds)
        )
