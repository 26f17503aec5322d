"""``vta generate`` prints tokens, or text, as the decoder finds them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.cli.networks.generate import _texts
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.runtime import RuntimeFault
from tests.support.decoders import growing, reference_tokens, sliding

CONFIG = ("--config", "pynq-extended")
PROMPT = (5, 6, 7)
IDS = ("--prompt-ids", "5,6,7")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("decoder") / "decoder.onnx")
    onnx.save(growing(), path)
    return path


def test_the_tokens_of_onnx_runtime_are_printed(decoder: str, capsys: Capture) -> None:
    assert invoke(["generate", decoder, *CONFIG, *IDS, "--max-new-tokens", "5"]) == 0
    tokens, summary = capsys.readouterr().out.splitlines()
    assert [int(token) for token in tokens.split()] == reference_tokens(growing(), PROMPT, 5)
    assert summary == "5 tokens after 3 tokens"


def test_a_long_prompt_is_processed_in_blocks(decoder: str, capsys: Capture) -> None:
    prompt = range(1, 21)
    ids = ",".join(str(token) for token in prompt)
    call = ["generate", decoder, *CONFIG, "--prompt-ids", ids, "--max-new-tokens", "3"]
    assert invoke([*call, "--device", "estimate", "--json", "-"]) == 0
    captured = capsys.readouterr()
    written = json.loads(captured.out)
    assert written["tokens"] == reference_tokens(growing(), prompt, 3)
    assert (written["prefill"]["tokens"], written["prefill"]["runs"]) == (32, 1)
    assert written["runs"] == 2
    assert (
        f"{written['prefill']['cycles']:,} cycles per block of 32 tokens; "
        f"{written['cycles'] / 2:,.0f} cycles per token"
    ) in captured.err


def test_several_machines_share_each_token(decoder: str, tmp_path: Path, capsys: Capture) -> None:
    prompt = range(1, 21)
    ids = ",".join(str(token) for token in prompt)
    call = ["--prompt-ids", ids, "--max-new-tokens", "3", "--device", "estimate", "--json", "-"]
    compiled = str(tmp_path / "decoder.vta")
    system = ["--machines", "2"]
    made = ["compile", decoder, *CONFIG, *system, "--context", "40", "--prefill", "16"]
    assert invoke([*made, "-o", compiled]) == 0
    capsys.readouterr()
    reports = []
    for given in ([decoder, *CONFIG], [decoder, *CONFIG, *system], [compiled, *system]):
        assert invoke(["generate", *given, *call]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    for report in reports:
        assert report["tokens"] == reference_tokens(growing(), prompt, 3)
    assert reports[1]["cycles"] < reports[0]["cycles"]
    assert invoke(["generate", compiled, "--prompt-ids", ids]) == 2
    assert "compiled for 2 machines" in capsys.readouterr().err


def test_a_decoder_of_single_tokens_takes_long_prompts(tmp_path: Path, capsys: Capture) -> None:
    path, prompt = str(tmp_path / "decoder.onnx"), range(1, 21)
    onnx.save(sliding(), path)
    ids = ",".join(str(token) for token in prompt)
    call = ["generate", path, *CONFIG, "--prompt-ids", ids, "--max-new-tokens", "1"]
    assert invoke(call) == 0
    (token,) = reference_tokens(sliding(), prompt, 1)
    assert capsys.readouterr().out == f"{token}\n1 token after 20 tokens\n"
    assert invoke([*call, "--prefill", "16"]) == 2
    assert "need an open length of input_ids; it is fixed at 1" in capsys.readouterr().err


def test_a_compiled_decoder_generates_the_same(
    decoder: str, tmp_path: Path, capsys: Capture
) -> None:
    compiled = str(tmp_path / "decoder.vta")
    assert invoke(["compile", decoder, *CONFIG, "--context", "20", "-o", compiled]) == 0
    capsys.readouterr()
    assert invoke(["generate", compiled, *IDS, "--max-new-tokens", "5"]) == 0
    tokens = capsys.readouterr().out.splitlines()[0]
    assert [int(token) for token in tokens.split()] == reference_tokens(growing(), PROMPT, 5)
    assert invoke(["generate", compiled, *IDS, "--context", "9"]) == 2
    assert capsys.readouterr().err == (
        f"vta: --context is for `vta compile`; {compiled} is compiled "
        "(`vta generate --help` says more)\n"
    )
    assert invoke(["generate", compiled, *IDS, "--prefill", "16"]) == 2
    assert f"{compiled} is compiled for single tokens" in capsys.readouterr().err


def test_a_decoder_compiled_for_blocks_takes_prompts_in_blocks(
    decoder: str, tmp_path: Path, capsys: Capture
) -> None:
    compiled, prompt = str(tmp_path / "decoder.vta"), range(1, 21)
    call = ["compile", decoder, *CONFIG, "--prefill", "16", "-o", compiled]
    assert invoke(call) == 2
    assert "--prefill needs --context" in capsys.readouterr().err
    assert invoke([*call, "--context", "64"]) == 0
    assert "on the host; in blocks of 16 tokens, " in capsys.readouterr().out
    ids = ",".join(str(token) for token in prompt)
    call = ["generate", compiled, "--prompt-ids", ids, "--max-new-tokens", "2"]
    assert invoke([*call, "--prefill", "16", "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["tokens"] == reference_tokens(growing(), prompt, 2)
    assert (written["prefill"]["tokens"], written["prefill"]["runs"]) == (16, 2)
    assert invoke([*call, "--prefill", "1", "--json", "-"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["tokens"] == written["tokens"]
    assert "prefill" not in alone
    assert invoke([*call, "--prefill", "8"]) == 2
    assert f"{compiled} is compiled for blocks of 16 tokens" in capsys.readouterr().err
    assert invoke(["run", compiled, "--json", "-"]) == 0
    assert "prefill" not in json.loads(capsys.readouterr().out)
    assert invoke(["export", compiled, "-o", str(tmp_path / "c")]) == 2
    assert "exported C runs a single token at a time" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_cycles_per_token_and_json_are_written(decoder: str, capsys: Capture) -> None:
    call = ["generate", decoder, *CONFIG, *IDS, "--max-new-tokens", "2", "--device", "estimate"]
    assert invoke([*call, "--json", "-"]) == 0
    captured = capsys.readouterr()
    written = json.loads(captured.out)
    assert written["prompt_ids"] == [*PROMPT]
    assert written["tokens"] == reference_tokens(growing(), PROMPT, 2)
    assert f"{written['cycles'] / 4:,.0f} cycles per token" in captured.err


def test_a_fault_leaves_the_tokens_before_it_in_the_file(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run, runs = Session.run, 0

    def fail_after_the_first_token(self: Session, inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs <= len(PROMPT):
            return run(self, inputs)
        self._fault = Fault("load", 7, "bus_error")
        raise RuntimeFault(self._fault, None, "bus_error in load, instruction 7")

    monkeypatch.setattr(Session, "run", fail_after_the_first_token)
    path = tmp_path / "report.json"
    assert invoke(["generate", decoder, *CONFIG, *IDS, "--json", str(path)]) == 3
    (first,) = reference_tokens(growing(), PROMPT, 1)
    assert capsys.readouterr() == (f"{first}\n", "vta: bus_error in load, instruction 7\n")
    written = json.loads(path.read_text())
    assert written["tokens"] == [first]
    assert written["fault"] == {"module": "load", "instruction": 7, "cause": "bus_error"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "give the prompt as --prompt-ids, or as --prompt with --tokenizer"),
        ((*IDS, "--prompt", "a"), "give the prompt as --prompt-ids, or as --prompt with"),
        (("--prompt", "a"), "--prompt needs --tokenizer; --prompt-ids does not"),
        (("--prompt-ids", "5,x"), "'5,x' is not a list of tokens, such as 1,2,3"),
        ((*IDS, "--skip", "gemm"), "tokens follow from results, which --skip does not compute"),
        (("--prompt-ids", "5,999"), "999 is no token; the network has 256"),
    ],
)
def test_a_wrong_call_is_refused(
    decoder: str, options: tuple[str, ...], problem: str, capsys: Capture
) -> None:
    assert invoke(["generate", decoder, *CONFIG, *options]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_a_network_without_caches_is_refused(capsys: Capture) -> None:
    digits = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"
    assert invoke(["generate", str(digits), *IDS]) == 2
    assert "the model has no inputs and outputs with the names of caches" in capsys.readouterr().err


def test_a_missing_tokenizer_package_is_named(
    decoder: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert invoke(["generate", decoder, "--prompt", "a", "--tokenizer", "tokenizer.json"]) == 2
    assert capsys.readouterr().err == (
        "vta: this needs the package tokenizers: pip install 'amaranth-vta[text]'\n"
    )


def test_text_is_printed_when_its_characters_are_complete() -> None:
    pieces = {1: b"a", 2: b"\xc3", 3: b"\xa9", 4: b" b"}

    def decode(tokens: list[int]) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    made: list[int] = []
    tokenizer: Any = SimpleNamespace(decode=decode)
    assert [*_texts(iter([1, 2, 3, 4]), made, tokenizer)] == ["a", "é", " b"]
    assert made == [1, 2, 3, 4]


def test_a_tokenizer_gives_the_prompt_and_the_text(
    decoder: str, tmp_path: Path, capsys: Capture
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{number}": number for number in range(256)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = str(tmp_path / "tokenizer.json")
    tokenizer.save(path)
    call = ["generate", decoder, *CONFIG, "--tokenizer", path, "--max-new-tokens", "3"]
    assert invoke([*call, "--prompt", "w5 w6 w7"]) == 0
    expected = " ".join(f"w{token}" for token in reference_tokens(growing(), PROMPT, 3))
    assert capsys.readouterr().out.splitlines()[0] == expected
    Path(path).write_text("{}")
    assert invoke([*call, "--prompt", "w5"]) == 2
    assert f"--tokenizer {path} cannot be read" in capsys.readouterr().err
