"""Generated tokens equal ONNX Runtime's, while the caches stay in the machine's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.hw.isa import INSTRUCTION_BYTES
from amaranth_vta.networks import NETWORKS
from amaranth_vta.networks.generated_network import generated_network
from amaranth_vta.networks.generators import Form
from amaranth_vta.session import Session, compilation
from amaranth_vta.session.batches import InputError
from amaranth_vta.session.generation import Sampling
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import ToHost, ToMachine, WriteRows
from tests.support.decoders import LONG, SIZE, growing, of_integers, reference_tokens, sliding

CONFIG = "pynq-extended"
PROMPT = (5, 6, 7, 200)
LONG_PROMPT = tuple(np.random.default_rng(2).integers(0, 256, SIZE - 8).tolist())
BLOCK = 16


@pytest.fixture(scope="module")
def decoder() -> Iterator[Session]:
    with Session(growing(), CONFIG, context=SIZE) as session:
        yield session


@pytest.fixture(scope="module")
def in_blocks() -> Iterator[Session]:
    with Session(growing(), CONFIG, context=SIZE, prefill=BLOCK) as session:
        yield session


@contextmanager
def counted_bytes(session: Session) -> Iterator[dict[str, int]]:
    """The bytes that the host reads from the device's memory and writes to it."""
    counts = {"read": 0, "write": 0}
    device: Any = session.device
    read, write = device.read, device.write

    def counting_read(address: int, count: int) -> Any:
        counts["read"] += count
        return read(address, count)

    def counting_write(address: int, data: Any) -> None:
        counts["write"] += data.nbytes
        write(address, data)

    device.read, device.write = counting_read, counting_write
    try:
        yield counts
    finally:
        del device.read, device.write


def test_two_hundred_tokens_equal_those_of_onnx_runtime_and_no_cache_passes_the_host() -> None:
    model, tokens = growing(LONG), 200
    with Session(model, CONFIG, context=len(PROMPT) + tokens) as session:
        found = session.generate(PROMPT, tokens)
        with counted_bytes(session) as counts:
            made = [next(found)]
            of_prompt = dict(counts)
            made += found
        assert made == reference_tokens(model, PROMPT, tokens)
        assert len(session.program.kept) == 4  # keys and values of two layers
        # The host keeps only the place of the next row in the caches.
        assert [state.initial.size for state in session.program.states] == [1]
        steps = session.program.steps
        moved = [step.operand for step in steps if isinstance(step, ToMachine | ToHost)]
        cache = min(item.operand.nbytes for item in session.program.kept)
        # The largest operands that the steps transfer are scores, logits and rows.
        assert max(operand.nbytes for operand in moved) < cache // 10
        expected = {
            kind: sum(step.operand.nbytes for step in steps if isinstance(step, of))
            for kind, of in (("read", ToHost), ("write", ToMachine))
        }
        # A new key fills a row of two tiles per head. A new value is a byte in each row of two
        # tiles: the bytes from the first to the last are read and written, with those between.
        keys, values = 2 * 2 * 2 * 16, 2 * 2 * 2 * (256 - 15)
        expected["read"] += values
        expected["write"] += keys + values
        for kind, each in expected.items():
            assert counts[kind] - of_prompt[kind] == (tokens - 1) * each
            assert each < cache


def test_the_machine_appends_keys_and_values_in_one_launch_per_token() -> None:
    model, tokens = of_integers(LONG), 200
    with Session(model, CONFIG, context=LONG) as session:
        network = session.program
        assert len(network.launched("network")) == 1
        # Keys, values and copies of values of two layers.
        assert len(network.kept) == 6
        found = session.generate(PROMPT, tokens)
        made = [next(found)]
        with counted_bytes(session) as counts:
            made += found
        assert made == reference_tokens(model, PROMPT, tokens)
        moved = dict.fromkeys((ToHost, ToMachine), 0)
        for step in network.steps:
            if isinstance(step, ToHost | ToMachine):
                moved[type(step)] += step.operand.nbytes
        assert counts["read"] == (tokens - 1) * moved[ToHost]
        # Besides, addresses of instructions for the keys and values of each layer in each run.
        addresses = counts["write"] - (tokens - 1) * moved[ToMachine]
        assert 0 < addresses <= (tokens - 1) * 2 * 5 * INSTRUCTION_BYTES


# Whole blocks; one with masked positions; several, with a single token at the end.
@pytest.mark.parametrize("length", [BLOCK, BLOCK - 3, 2 * BLOCK + 1])
def test_the_machine_appends_to_caches_that_the_host_filled_in_blocks(length: int) -> None:
    model, prompt = of_integers(), LONG_PROMPT[:length]
    with Session(model, CONFIG, context=SIZE, prefill=BLOCK) as session:
        assert list(session.generate(prompt, 20)) == reference_tokens(model, prompt, 20)


def test_the_machine_appends_keys_and_values_on_the_rtl() -> None:
    model = of_integers(16)
    with Session(model, CONFIG, "rtl", "ddr", context=16) as session:
        assert list(session.generate(PROMPT, 4)) == reference_tokens(model, PROMPT, 4)


def test_machines_that_share_a_token_append_keys_and_values() -> None:
    model = of_integers()
    with Session(model, CONFIG, context=SIZE, machines=2, split=True) as session:
        assert not any(isinstance(step, WriteRows) for step in session.program.steps)
        assert list(session.generate(PROMPT, 20)) == reference_tokens(model, PROMPT, 20)


@pytest.mark.parametrize("make", [growing, sliding])
def test_a_long_random_prompt_is_continued_as_by_onnx_runtime(make: Any) -> None:
    model = make()
    prompt = np.random.default_rng(1).integers(0, 256, SIZE - 8).tolist()
    with Session(model, CONFIG, context=SIZE) as session:
        assert len(session.program.kept) == 4
        assert list(session.generate(prompt, 8)) == reference_tokens(model, prompt, 8)


# Whole blocks; one with masked positions; one of a single token, which runs alone; several.
@pytest.mark.parametrize("length", [BLOCK, BLOCK - 3, BLOCK + 1, SIZE - 8])
def test_a_prompt_in_blocks_is_continued_as_by_onnx_runtime(
    decoder: Session, in_blocks: Session, length: int
) -> None:
    prompt = LONG_PROMPT[:length]
    tokens = list(in_blocks.generate(prompt, 8))
    assert tokens == list(decoder.generate(prompt, 8))
    assert tokens == reference_tokens(growing(), prompt, 8)


def test_both_networks_of_a_session_with_blocks_have_the_same_caches_and_weights(
    decoder: Session, in_blocks: Session
) -> None:
    single, block = in_blocks._networks.single, in_blocks._networks.block  # type: ignore[union-attr]
    for kept in single.program.kept:
        buffers = [item.runner._placed[0].buffer(kept.buffer) for item in (single, block)]
        assert buffers[0] is buffers[1]
    alone = decoder.device.memory_bytes
    assert alone < in_blocks.device.memory_bytes < 1.5 * alone
    # No cache passes the host between the prompt and the first token.
    list(in_blocks.generate(LONG_PROMPT[:BLOCK], 1))
    with counted_bytes(in_blocks) as counts:
        list(in_blocks.generate(LONG_PROMPT[:BLOCK], 2))
    steps = [*block.program.steps, *single.program.steps]
    moved = [step.operand.nbytes for step in steps if isinstance(step, ToHost)]
    rows = 2 * 2 * 2 * 256  # a value is a byte in each row of its tiles
    assert counts["read"] <= sum(moved) + 2 * rows


def test_a_check_of_a_block_compares_all_its_logits(in_blocks: Session) -> None:
    mask = np.zeros((1, SIZE), np.int64)
    mask[:, -BLOCK + 3 :] = 1
    places = np.maximum(np.arange(BLOCK) - 3, 0)[None]
    ids = np.array([LONG_PROMPT[:BLOCK]])
    report = in_blocks.check({"input_ids": ids, "attention_mask": mask, "position_ids": places})
    assert report.ok
    assert report.elements == BLOCK * 256


def test_runs_of_single_tokens_and_blocks_are_reported_apart() -> None:
    with Session(
        growing(), CONFIG, "estimate", context=SIZE, prefill=BLOCK, timing_only=True
    ) as session:
        list(session.generate(LONG_PROMPT[: BLOCK + 2], 3))
        report = session.report()
    assert (report["prefill"]["tokens"], report["prefill"]["runs"]) == (BLOCK, 2)
    assert report["runs"] == 2
    assert report["cycles"] / 2 < report["prefill"]["cycles"] / 2 < report["cycles"]


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (sliding, {}, "blocks of 16 tokens need an open length of input_ids; it is fixed at 1"),
        (
            growing,
            {"dimensions": {"sequence_length": BLOCK}},
            "length of input_ids; it is fixed at 16",
        ),
        (growing, {"context": 8, "prefill": 32}, "runs of 32 tokens exceed the context of 16"),
        (growing, {"context": None}, "prefill is 16: give a number of tokens, and the decoder's"),
        (growing, {"prefill": 0}, "prefill is 0: give a number of tokens"),
    ],
)
def test_blocks_that_a_decoder_cannot_take_are_refused(
    model: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises((ModelError, ValueError), match=problem):
        Session(model(), CONFIG, **{"context": SIZE, "prefill": BLOCK, **options})


def test_a_block_is_refused_before_the_first_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_compiled", pytest.fail)
    with pytest.raises(ModelError, match="runs of 32 tokens exceed the context of 16"):
        compilation.compile(growing(), CONFIG, context=8, prefill=32)


def test_blocks_are_refused_if_caches_are_no_ring_buffers() -> None:
    with_zero_points = replace(NETWORKS["llama-tiny"], form=Form("int8", only=("MatMul",)))
    model = generated_network("llama-tiny", with_zero_points, 16, 0.25).model
    with pytest.raises(ModelError, match="cannot have the same caches: these are no ring buffers"):
        Session(model, CONFIG, context=32, prefill=BLOCK)


def test_blocks_of_a_dynamically_quantized_decoder_are_refused() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(growing())
    logits = model.graph.output[0].name
    results = [f"{logits}_{what}" for what in ("dynamic", "scale_now", "zero_now")]
    node = onnx.helper.make_node("DynamicQuantizeLinear", [logits], results)
    model.graph.node.append(node)
    with pytest.raises(ModelError, match="all tokens of a block have the same scale"):
        Session(model, CONFIG, context=SIZE, prefill=BLOCK)


def test_a_generation_begins_with_empty_caches(decoder: Session) -> None:
    first = list(decoder.generate(PROMPT, 5))
    assert list(decoder.generate(PROMPT, 5)) == first
    assert list(decoder.generate(PROMPT[:2], 5)) != first


def test_tokens_come_one_by_one(decoder: Session) -> None:
    runs = 0
    run = decoder._runner.run_all

    def counting(inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        return run(inputs)

    decoder._runner.run_all = counting  # type: ignore[method-assign]
    try:
        tokens = decoder.generate(PROMPT, 3)
        assert runs == 0
        next(tokens)
        assert runs == len(PROMPT)
        next(tokens)
        assert runs == len(PROMPT) + 1
    finally:
        decoder._runner.run_all = run  # type: ignore[method-assign]


def test_a_stop_token_is_the_last(decoder: Session) -> None:
    whole = list(decoder.generate(PROMPT, 8))
    stop = whole[3]
    cut = whole[: whole.index(stop) + 1]
    assert list(decoder.generate(PROMPT, 8, stop_ids={stop})) == cut


def test_drawn_tokens_depend_on_the_seed_alone(decoder: Session) -> None:
    def drawn(seed: int) -> list[int]:
        return list(decoder.generate(PROMPT, 12, temperature=1.0, seed=seed))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_low_temperature_and_a_single_candidate_take_the_most_likely_token(
    decoder: Session,
) -> None:
    whole = list(decoder.generate(PROMPT, 8))
    assert list(decoder.generate(PROMPT, 8, temperature=5.0, top_k=1)) == whole


def test_tokens_are_drawn_with_the_probabilities_of_softmax() -> None:
    logits = np.array([0.0, np.log(3.0), -50.0], np.float32)
    choose = Sampling(1.0).chooser()
    counts = np.bincount([choose(logits) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.25, 0.75, 0.0], atol=0.03)
    choose = Sampling(0.5).chooser()
    counts = np.bincount([choose(logits) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.1, 0.9, 0.0], atol=0.03)


def test_only_the_largest_logits_are_candidates() -> None:
    choose = Sampling(100.0, top_k=2).chooser()
    assert {choose(np.array([1.0, 3.0, 2.0, 2.0])) for _ in range(200)} == {1, 2}


@pytest.mark.parametrize(
    ("prompt", "count", "problem"),
    [
        ((), 4, "the prompt has no tokens"),
        ((3,), 0, "0 new tokens cannot be generated: give 1 or more"),
        ((3, 256), 4, "256 is no token; the network has 256"),
        ((3, -1), 4, "-1 is no token; the network has 256"),
        ((3,), 64, "1 tokens of the prompt and 64 new ones exceed the context of 64"),
    ],
)
def test_a_wrong_prompt_is_refused_at_once(
    decoder: Session, prompt: tuple[int, ...], count: int, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        decoder.generate(prompt, count)


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"top_k": -1}])
def test_wrong_options_are_refused(decoder: Session, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not -1"):
        decoder.generate(PROMPT, 1, **options)


def test_a_session_without_a_context_cannot_generate() -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    with (
        Session(digits, "tiny") as session,
        pytest.raises(ModelError, match="a session of a decoder that was opened with a context"),
    ):
        session.generate(PROMPT, 1)


def test_an_unknown_input_is_refused() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(growing())
    for item in model.graph.input:
        if item.name == "position_ids":
            item.name = "where"
    for node in model.graph.node:
        node.input[:] = ["where" if name == "position_ids" else name for name in node.input]
    with (
        Session(model, CONFIG, context=SIZE) as session,
        pytest.raises(ModelError, match="generate does not know the input where, int64"),
    ):
        session.generate(PROMPT, 1)


def test_a_saved_decoder_generates_the_same(decoder: Session, tmp_path: Path) -> None:
    decoder.save(tmp_path / "decoder.vta")
    with Session.load(tmp_path / "decoder.vta") as loaded:
        assert list(loaded.generate(PROMPT, 6)) == list(decoder.generate(PROMPT, 6))


def test_a_check_begins_with_empty_caches(decoder: Session) -> None:
    list(decoder.generate(PROMPT, 2))
    feeds = {
        "input_ids": np.array([[9]]),
        "attention_mask": np.eye(1, SIZE, SIZE - 1, dtype=np.int64),
        "position_ids": np.array([[0]]),
    }
    report = decoder.check(feeds)
    assert report.ok
    assert report.elements == 256
    assert report.file is not None


def test_tokens_on_the_rtl_equal_those_of_onnx_runtime() -> None:
    prompt = LONG_PROMPT[:BLOCK]
    with Session(growing(), CONFIG, "rtl", "ddr", context=SIZE, prefill=BLOCK) as session:
        assert list(session.generate(prompt, 2)) == reference_tokens(growing(), prompt, 2)
        report = session.report()
    assert report["prefill"]["cycles"] > report["cycles"] > 0
