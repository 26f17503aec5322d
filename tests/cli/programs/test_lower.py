from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta import cli

ROOT = Path(__file__).parents[3]
SCHEDULES = ROOT / "examples" / "schedules.py"
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.invoke(["lower", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert cli.invoke(["lower", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vta: ")
    assert err.count("\n") == 1
    return err


def source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


def test_a_schedule_is_printed_down_to_its_micro_ops(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, f"{SCHEDULES}:vector_add", "--config", "tiny")
    nest, instructions = out.split("\n# instructions\n")
    assert nest.startswith("def vector_add(a: int32[1, 64, 1, 4]")
    assert "load_buffer_2d(a, 0, x_size=64" in nest
    assert re.search(
        r"ALU ADD .* # c_buf, schedules.py:\d+\n +uop\[0\]  acc\[0\] = add", instructions
    )


def test_trace_names_every_pass_and_skips_the_text_of_those_that_change_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, f"{SCHEDULES}:convolution", "--trace")
    names = re.findall(r"^# (\w+)", out, re.MULTILINE)
    assert names[0] == "infer_bounds"
    assert names[-2:] == ["insert_tokens", "instructions"]
    assert "# overwrite_first: changes nothing\n" in out
    assert out.count("\ndef convolution") == len(names) - 1 - out.count(": changes nothing")


def test_a_former_name_after_which_to_stop_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"{SCHEDULES}:vector_add", "--after"
    assert cli.invoke(["lower", *arguments, "compute_ahead"]) == 0
    out, err = capsys.readouterr()
    assert err == "vta: warning: --after compute_ahead: the pass is now software_pipeline\n"
    assert out == printed(capsys, *arguments, "software_pipeline")


def test_after_a_pass_there_is_its_loop_nest_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, f"{SCHEDULES}:convolution", "--after", "copy_by_dma")
    assert out.startswith("def convolution(")
    assert "load_buffer_2d" in out
    assert "with gemm():" in out
    assert "instructions" not in out


def test_each_line_can_name_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"{SCHEDULES}:convolution", "--after", "infer_bounds")
    assert "#" not in printed(capsys, *arguments)
    out = printed(capsys, *arguments, "--origins")
    lines = SCHEDULES.read_text().splitlines()
    for line in out.splitlines():
        if re.match(r" *(for|\w+\[)", line):
            stage, number = re.search(r"# (\w+).*, schedules.py:(\d+)$", line).groups()  # type: ignore[union-attr]
            assert stage in " ".join(lines[int(number) - 1 : int(number) + 9])
    assert re.search(r"for dy in range\(3\): +# conv.dy, schedules.py:\d+", out)


@pytest.mark.parametrize("layer", [None, "conv2"])
def test_layers_of_a_network_are_printed(
    capsys: pytest.CaptureFixture[str], layer: str | None
) -> None:
    out = printed(capsys, DIGITS, *(("--layer", layer) if layer else ()))
    found = re.findall(r"^def (\w+)\(", out, re.MULTILINE)
    assert found == ([layer] if layer else ["conv1", "conv2", "conv3", "dense"])
    assert out.count("# instructions") == len(found)


def test_what_the_machine_cannot_do_is_said_behind_what_it_could(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = source(
        tmp_path,
        "from amaranth_vta import te\n"
        "def plain():\n"
        "    a = te.placeholder((4, 4), 'a', 'int32')\n"
        "    b = te.compute((4, 4), lambda i, j: a(i, j) + 1, 'b')\n"
        "    return te.create_schedule(b.op), [a, b]\n",
    )
    out = printed(capsys, f"{path}:plain")
    assert "b[i, j] = a[i, j] + 1" in out
    assert out.splitlines()[-1].startswith("# not for the machine: no instruction computes b: n")
    err = refused(capsys, f"{path}:plain", "--after", "insert_tokens")
    assert "plain cannot be lowered up to insert_tokens: no instruction computes b" in err


@pytest.mark.parametrize("after", ["infer_bounds", "map_to_alu", "insert_tokens"])
def test_a_printed_loop_nest_lowers_further_to_the_same_instructions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, after: str
) -> None:
    want = printed(capsys, f"{SCHEDULES}:convolution")
    nest = tmp_path / "nest.txt"
    nest.write_text(printed(capsys, f"{SCHEDULES}:convolution", "--after", after))
    got = printed(capsys, nest, "--after", after)
    # The text of a loop nest omits the stages and source lines of instructions.
    assert without_origins(got) == without_origins(want)


def without_origins(text: str) -> list[str]:
    return [line.split("  # ")[0].rstrip() for line in text.splitlines()]


def test_a_loop_nest_that_was_edited_is_traced_from_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--config", "tiny", "--after", "map_to_alu")
    text = printed(capsys, f"{SCHEDULES}:vector_add", *options, "--origins")
    assert "op=ADD" in text
    nest = tmp_path / "nest.txt"
    nest.write_text(text.replace("op=ADD", "op=MUL"))
    out = printed(capsys, nest, *options, "--trace")
    names = re.findall(r"^# (\w+)", out, re.MULTILINE)
    assert names[:2] == ["map_to_alu", "fold_loops"]
    assert names[-2:] == ["insert_tokens", "instructions"]
    assert re.search(r"acc\[0\] = mul", out)


@pytest.mark.parametrize(
    ("text", "after", "problem"),
    [
        (
            "def f(a: int8[4]):\n    a[0] = 1 +\n",
            "infer_bounds",
            ": line 2: invalid syntax",
        ),
        ("def f(a: int8[4]):\n    a[i] = 1\n", "infer_bounds", "nest.txt: line 2: i is not a loop"),
        ("", "infer_bounds", "nest.txt: line 1: a loop nest begins with"),
        (
            "def f(a: int8[4]):\n    a[0] = 1\n",
            "fold_loops",
            "f is not a loop nest after fold_loops: the assignment of a is removed by fold_loops",
        ),
        (
            "def f(a: int8[4]):\n    dep_push(LOAD, COMPUTE)\n",
            "fold_loops",
            "f is not a loop nest after fold_loops: dep_push is introduced by insert_tokens",
        ),
        (
            "def f(a: int32[9]):\n    b = allocate(acc, int32, [4], base=0)\n"
            "    load_buffer_2d(a, 0, x_size=1, y_size=1, x_stride=-1, sram_index=b, memory=ACC)\n",
            "insert_tokens",
            "nest.txt: a transfer of 1 rows of 1 elements, -1 apart: none can be negative",
        ),
    ],
)
def test_a_mistake_in_a_loop_nest_is_told_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, after: str, problem: str
) -> None:
    nest = tmp_path / "nest.txt"
    nest.write_text(text)
    assert problem in refused(capsys, nest, "--after", after)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            ["nothing.txt"],
            "give --after, the pass after which nothing.txt was printed: one of inf",
        ),
        (["nothing.txt", "--after", "fold_loops"], "nothing.txt: No such file"),
        (["nothing.txt", "--after", "x"], "--after x: the passes are infer_bounds, overwrite"),
        (["nothing.txt", "--after", "fold_loops", "--origins"], "schedules: nothing.txt has no"),
        (["nothing.onnx"], "nothing.onnx"),
        (["nothing.tflite"], "nothing.tflite"),
        (["nothing.py:f"], "nothing.py is not a file"),
        (["README.md"], "README.md is not FILE.py:FUNCTION, MODEL or NEST.txt"),
        ([str(SCHEDULES)], "there is vector_add, convolution"),
        ([f"{SCHEDULES}:nothing"], "there is vector_add, convolution"),
        ([f"{SCHEDULES}:vector_add", "--layer", "x"], "--layer is for networks"),
        ([f"{SCHEDULES}:vector_add", "--after", "x"], "the passes are infer_bounds, overwrite"),
        ([str(DIGITS), "--layer", "x"], "the layers on the machine are conv1, conv2, conv3"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], call: list[str], problem: str
) -> None:
    assert problem in refused(capsys, *call)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f():\n    return 1 / 0\n", "mine.py:2: ZeroDivisionError"),
        ("def f():\n    return None\n", "mine.py: TypeError"),
        ("import nothing_like_it\n", "mine.py:1: ModuleNotFoundError"),
        ("def f(:\n", "mine.py: SyntaxError"),
        ("def f(size):\n    return size\n", "there is none"),
        (
            "from amaranth_vta import te\ndef f():\n    te.placeholder((0,), 'a', 'int7')\n",
            "mine.py:3: ExpressionError",
        ),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, problem: str
) -> None:
    assert problem in refused(capsys, f"{source(tmp_path, text)}:f")
