"""A file of a decoder holds the networks for single tokens and for blocks, and their common parts
once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.session.compilation import compile
from amaranth_vta.sw.runtime.archive import ProgramError, write_archive
from amaranth_vta.sw.runtime.array_file import FileLimitError
from amaranth_vta.sw.runtime.network.network_file import KIND, load_network, save_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.shared_arrays import second_arrays, share
from amaranth_vta.sw.runtime.network.validation import validate_memory
from tests.support.decoders import SIZE, growing, reference_tokens

CONFIG = "pynq-extended"
BLOCK = 16
PROMPT = tuple(np.random.default_rng(2).integers(0, 256, SIZE - 8).tolist())


@pytest.fixture(scope="module")
def decoder() -> NetworkProgram:
    return compile(growing(), CONFIG, context=SIZE, prefill=BLOCK).program


@pytest.fixture(scope="module")
def saved(decoder: NetworkProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "decoder.vta"
    save_network(decoder, path)
    return path


def changed(saved: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """A copy of the file with a ``change`` to header and arrays, and the checksum for it."""
    with np.load(saved) as file:
        arrays: dict[str, Any] = dict(file)
    header = json.loads(str(arrays.pop("header")))
    del header["checksum"]
    change(header, arrays)
    path = saved.with_name("changed.vta")
    with path.open("wb") as file:
        write_archive(file, KIND, header, arrays)
    return path


# A prompt of two blocks and a single token, and one of less than a block.
@pytest.mark.parametrize("length", [2 * BLOCK + 1, 3])
def test_a_loaded_decoder_takes_prompts_in_blocks(saved: Path, length: int) -> None:
    prompt = PROMPT[:length]
    with Session.load(saved) as session:
        assert session.tokens_per_block == BLOCK
        assert list(session.generate(prompt, 4)) == reference_tokens(growing(), prompt, 4)
        assert session.report()["prefill"]["runs"] == length // BLOCK + (length % BLOCK > 1)


def test_a_loaded_decoder_is_saved_with_its_block(saved: Path, tmp_path: Path) -> None:
    with Session.load(saved) as session:
        session.save(tmp_path / "again.vta")
    assert (tmp_path / "again.vta").read_bytes() == saved.read_bytes()


def test_a_run_takes_a_token_or_a_block(saved: Path) -> None:
    mask = np.ones((1, SIZE), np.int64)
    with Session.load(saved) as session:
        for tokens in (1, BLOCK):
            places = np.arange(SIZE - tokens, SIZE)[None]
            ids = np.array([PROMPT[:tokens]])
            feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
            assert session.run(feeds)["logits"].shape == (1, tokens, 256)


def test_a_file_holds_weights_and_tables_once(decoder: NetworkProgram, saved: Path) -> None:
    single = saved.with_name("single.vta")
    save_network(compile(growing(), CONFIG, context=SIZE).program, single)
    assert "block" not in json.loads(str(np.load(single)["header"]))
    loaded = load_network(saved)
    assert loaded.block is not None
    assert decoder.block is not None
    common = loaded.block.shared_with(loaded)
    assert common == decoder.shared_with_block
    assert {item.buffer for item in loaded.kept} < common
    contents = decoder.block.program.contents
    other = sum(data.nbytes for name, data in contents.items() if name not in common)
    shared = sum(data.nbytes for name, data in contents.items() if name in common)
    # Without the masks and orders that depend on positions, which differ.
    added = sum(
        data.nbytes
        for name, data in np.load(saved).items()
        if name.startswith("block_") and not name.startswith("block_known_")
    )
    words = sum(item.words.nbytes + item.buffer.nbytes for item in decoder.block.program.streams)
    models = sum(len(step.model) for step in decoder.block.steps if hasattr(step, "model"))
    assert other + words < added < other + words + models - 256 * 64  # rows of embeddings
    assert added < shared


def test_arrays_of_bytes_are_stored_once_and_others_twice() -> None:
    numbers = np.arange(300, dtype=np.uint8)
    first: dict[str, Any] = {
        "contents_0": numbers,
        "contents_1": numbers[:4],
        "words_0": np.arange(3),
    }
    second: dict[str, Any] = {
        "contents_0": numbers[:4],
        "contents_1": numbers[:5],
        "words_0": np.arange(3),
    }
    pieces, added = share(first, second, lambda name: False)
    assert pieces == {
        "contents_0": [("contents_1", 0, 4)],
        "contents_1": [("block_contents_1", 0, 5)],
    }
    assert added.keys() == {"block_contents_1", "block_words_0"}
    found = second_arrays(pieces, {**first, **added})
    for name, array in second.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda block: block.pop("steps"), "it has no 'steps'"),
        (lambda block: block.pop("pieces"), "it has no 'pieces'"),
        (lambda block: block["states"].append({"source": "a", "result": "b"}), "no 'state_1'"),
        (lambda block: block["pieces"]["model_0"].append(["words", 0, 1]), "it has no 'words'"),
        (
            lambda block: block["pieces"]["model_0"].append(["model_0", 0, 1 << 40]),
            "model_0 has no bytes 0 to 1099511627776 for model_0",
        ),
        (lambda block: block["pieces"]["model_0"].append(["model_0", -1, 1]), "no bytes -1 to 1"),
        (lambda block: block["pieces"]["model_0"].append(["words_0", 0, 1]), "no bytes 0 to 1"),
        (
            lambda block: block["inputs"]["input_ids"]["shape"].insert(1, 1),
            "the inputs and outputs of a block of tokens differ from those of a single token",
        ),
        (
            lambda block: block["inputs"]["input_ids"].update(shape=[1, 8]),
            "the inputs and outputs of a block of tokens differ from those of a single token",
        ),
        (
            lambda block: [
                block["inputs"][name].update(shape=[1, 0]) for name in ("input_ids", "position_ids")
            ],
            "the inputs and outputs of a block of tokens differ from those of a single token",
        ),
        (lambda block: block["kept"].pop(), "cannot have the same caches"),
        (lambda block: block["steps"][0].update(kind="other"), "other is not a kind of step"),
    ],
)
def test_a_damaged_block_is_refused_in_one_sentence(
    saved: Path, change: Callable[[Any], object], problem: str
) -> None:
    path = changed(saved, lambda header, _: change(header["block"]))
    with pytest.raises(ProgramError, match=rf"changed\.vta is damaged: .*{problem}"):
        load_network(path)


def test_changed_bytes_of_a_block_are_found(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    place = data.index(b"block_words_0.npy") + 400
    data[place] ^= 1
    path = saved.with_name("changed.vta")
    path.write_bytes(data)
    with pytest.raises(ProgramError, match=r"changed\.vta is (truncated or )?damaged: "):
        load_network(path)


def test_pieces_that_repeat_an_array_many_times_exceed_the_limit(saved: Path) -> None:
    def repeat(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays["many"] = np.zeros(1 << 20, np.uint8)
        header["block"]["pieces"]["model_0"] = [["many", 0, 1 << 20]] * (1 << 11)

    with pytest.raises(FileLimitError, match="what its blocks of tokens hold takes"):
        load_network(changed(saved, repeat))


def test_both_networks_together_stay_within_the_limit(
    decoder: NetworkProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decoder.block is not None
    sizes = [item.program.placed_bytes() for item in (decoder, decoder.block)]
    monkeypatch.setenv("VTA_FILE_LIMIT", str(sum(sizes)))
    validate_memory(decoder)
    monkeypatch.setenv("VTA_FILE_LIMIT", str(sum(sizes) - 1))
    with pytest.raises(FileLimitError, match="the memory that it needs takes"):
        validate_memory(decoder)
