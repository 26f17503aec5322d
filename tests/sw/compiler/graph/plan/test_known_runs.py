"""What the host would compute from the positions of tokens is computed at compile time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session
from amaranth_vta.session.compilation import compile
from amaranth_vta.sw.compiler.graph.load.states import decoder
from amaranth_vta.sw.compiler.graph.plan import known_runs
from amaranth_vta.sw.runtime.network.network_file import load_network, save_network
from amaranth_vta.sw.runtime.network.network_program import KnownRuns, NetworkProgram, RunHost
from tests.support.decoders import growing, of_integers, reference_tokens

CONFIG = "pynq-extended"
SIZE, BLOCK = 16, 4
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(of_integers(SIZE), CONFIG, context=SIZE, prefill=BLOCK) as opened:
        yield opened


def known_steps(program: NetworkProgram | None) -> list[RunHost]:
    assert program is not None
    return [step for step in program.steps if isinstance(step, RunHost) and step.known]


def on_host(session: Session) -> dict[str, int]:
    """The operators that the host has run, with their number of runs."""
    return {layer.operator: layer.runs for layer in session.layers if layer.reason and layer.runs}


def test_the_host_converts_the_last_result_and_sets_addresses_for_each_token() -> None:
    with Session(of_integers(SIZE), CONFIG, context=SIZE) as session:
        assert list(session.generate(PROMPT, 7)) == reference_tokens(of_integers(SIZE), PROMPT, 7)
        assert on_host(session) == {"DequantizeLinear": 15, "addresses": 15}
        (step,) = known_steps(session.program)
        # The mask of a token, the place of its key and value, and the next place.
        assert sorted(step.known.outputs[name].shape for name in step.outputs) == [  # type: ignore[union-attr]
            *((SIZE, 1),) * 2,
            (SIZE, 1, SIZE),
        ]
        assert session.program.host_operator_count == 1


# Blocks that begin with masked positions, whole blocks, and a single token before them.
@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 9])
def test_results_are_known_after_masked_positions_too(session: Session, length: int) -> None:
    ran: list[bool] = []
    results = KnownRuns.results

    def noted(runs: KnownRuns, feeds: Any) -> Any:
        found = results(runs, feeds)
        ran.append(found is None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownRuns, "results", noted)
        prompt, tokens = PROMPT[:length], SIZE - length
        found = list(session.generate(prompt, tokens))
    assert found == reference_tokens(of_integers(SIZE), prompt, tokens)
    blocks = length // BLOCK + (length % BLOCK > 1)
    assert len(ran) == blocks + (length % BLOCK == 1) + tokens - 1
    assert not any(ran)
    assert known_steps(session.program.block)


def test_the_host_computes_the_results_of_other_masks() -> None:
    rng = np.random.default_rng(2)
    with Session(of_integers(SIZE), CONFIG, context=SIZE) as session:
        for count, visible in enumerate(rng.integers(0, 2, (4, 1, SIZE)), 1):
            ids, places = np.array([[7]]), np.array([[5]])
            feeds = {"input_ids": ids, "attention_mask": visible, "position_ids": places}
            assert session.check(feeds).ok
            assert on_host(session)["CumSum"] == count


def test_a_file_has_known_results_which_earlier_releases_ignore(
    session: Session, tmp_path: Path
) -> None:
    wanted = reference_tokens(of_integers(SIZE), PROMPT, 5)
    save_network(session.program, tmp_path / "decoder.vta")
    loaded = load_network(tmp_path / "decoder.vta")
    for program in (loaded, loaded.block):
        (step,) = known_steps(program)
        (given,) = known_steps(session.program if program is loaded else session.program.block)
        for name, values in given.known.outputs.items():  # type: ignore[union-attr]
            np.testing.assert_array_equal(step.known.outputs[name], values)  # type: ignore[union-attr]
    without = [
        replace(step, known=None) if isinstance(step, RunHost) else step for step in loaded.steps
    ]
    states = tuple(replace(state, places=0) for state in loaded.states)
    save_network(replace(loaded, steps=tuple(without), states=states), tmp_path / "old.vta")
    for name, runs in (("decoder", 0), ("old", 5)):
        with Session.load(tmp_path / f"{name}.vta") as opened:
            assert list(opened.generate(PROMPT, 5)) == wanted
            assert on_host(opened).get("CumSum", 0) == runs


def test_a_decoder_with_softmax_on_the_host_knows_its_masks_and_orders() -> None:
    with Session(growing(SIZE), CONFIG, context=SIZE) as session:
        assert list(session.generate(PROMPT, 7)) == reference_tokens(growing(SIZE), PROMPT, 7)
        assert on_host(session).keys().isdisjoint({"CumSum", "Greater", "Mod", "Or", "Not"})


def with_operators(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    """The decoder with operators on its positions, whose results are outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(of_integers(SIZE))
    model.graph.node.extend(nodes)
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for node in nodes:
        made = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        model.graph.output.append(made)
    return model


def compiled(model: onnx.ModelProto) -> list[RunHost]:
    return known_steps(compile(model, CONFIG, context=SIZE).program)


def test_random_results_are_not_known() -> None:
    cast = helper.make_node("Cast", ["position_ids"], ["place"], to=TensorProto.FLOAT)
    (step,) = compiled(with_operators(cast))
    assert "place" in step.outputs
    draw = helper.make_node("RandomNormalLike", ["position_ids"], ["drawn"], dtype=1)
    (step,) = compiled(with_operators(draw))
    assert "drawn" not in step.outputs


@pytest.mark.parametrize("rows", [SIZE, SIZE - 1])
def test_results_are_not_known_if_a_run_fails(rows: int) -> None:
    """A table with a row less than there are positions: the last run fails, and no other."""
    table = np.ones((rows, 3), np.float32)
    gather = helper.make_node("Gather", ["table", "position_ids"], ["row"])
    assert len(compiled(with_operators(gather, table=table))) == (rows == SIZE)


@pytest.mark.parametrize(("columns", "known"), [(1 << 12, 1), (1 << 15, 0)])
def test_large_results_are_computed_for_each_run(columns: int, known: int) -> None:
    """16 rows of 16 kB and of 128 kB."""
    table = np.ones((SIZE, columns), np.float32)
    gather = helper.make_node("Gather", ["table", "position_ids"], ["row"])
    assert len(compiled(with_operators(gather, table=table))) == known


@pytest.mark.parametrize(("most", "known"), [(SIZE * 18, True), (SIZE * 18 - 1, False)])
def test_inputs_of_all_runs_are_limited_too(
    monkeypatch: pytest.MonkeyPatch, most: int, known: bool
) -> None:
    """Each run has 18 elements of inputs, and two places of 8 bytes as results."""
    monkeypatch.setattr(known_runs, "_MOST_BYTES", most)
    found = compile(of_integers(SIZE), CONFIG, context=SIZE)
    (step,) = (item for item in found.program.steps if isinstance(item, RunHost) and item.known)
    places = replace(step, outputs=tuple(name for name in step.outputs if "place" in name))
    made = known_runs.with_known_runs(found.network, replace(places, known=None))
    assert (made.known is not None) == known


def test_inputs_of_another_value_or_type_are_not_among_the_runs() -> None:
    runs = KnownRuns({"a": np.arange(3), "b": np.eye(3, dtype=np.uint8)}, {"y": np.arange(3) * 10})
    row = np.eye(3, dtype=np.int64)
    for number in range(3):
        found = runs.results({"a": np.array(number), "b": row[number]})
        assert found is not None
        assert found["y"] == 10 * number
    assert runs.results({"a": np.array(2), "b": row[1]}) is None
    assert runs.results({"a": np.array(5), "b": row[1]}) is None
    assert runs.results({"a": np.array(2), "b": row[2].astype(np.int8)}) is None
    assert runs.results({"a": np.array(2), "b": row[2] + 256}) is None


def test_only_decoders_have_known_runs() -> None:
    """An input that `generate` does not provide may have any value."""
    model = decoder(of_integers(SIZE), SIZE, 16)
    for item in model.graph.input:
        if item.name == "position_ids":
            item.name = "turns"
    for node in model.graph.node:
        node.input[:] = ["turns" if name == "position_ids" else name for name in node.input]
    assert not known_steps(compile(model, CONFIG).program)
