"""Every command line in the documentation works in a fresh copy of the tree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

from amaranth_vta.cli import vta
from amaranth_vta.networks.mlperf_tiny import tiny_model
from amaranth_vta.sw.runtime.array_file import write_arrays
from tests.support.quantized_files import Case

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Commands that only have their options checked, by a part of them, with the reason.
NOT_RUN = {
    "make ": "targets take minutes to hours; that they exist is checked",
    "pip ": "installs packages; that the extras exist is checked",
    "pytest ": "runs by itself",
    "python ": "benchmarks take minutes to hours; their options are checked",
    "doctor": "its exit code says what this computer has",
    "vta build ulx3s": "a bitstream takes minutes, and tools that tests do not need",
    "vta program": "needs a board",
    "VTA_PORT=/dev/": "needs a board",
    "VTA_PORT=uio": "needs a board",
    "VTA_PORT=simulated": "a board in RTL takes minutes",
    "vta fuzz": "takes minutes to hours",
    "vta explore": "takes minutes to hours",
    "vta tune": "takes minutes",
    "--waves digits.fst": "builds another machine, and writes tens of megabytes",
    "vta run digits.vta": "builds another machine, which takes a minute or two",
    "--device pysim": "the program image is the reader's",
    "NETWORK.onnx": "the network is the reader's",
    "vww_96_int8.tflite": "the file belongs to MLPerf Tiny, which publishes it",
    "vta serve": "does not end",
}
# Pages with slow commands that other tests and pages run on other networks and machines.
NIGHTLY = ("docs/bounds.md", "docs/machines.md", "docs/networks.md")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def printed(page: Path) -> Iterator[tuple[bool, str]]:
    """Yield the command lines of a page, with True for a line of a code block and False for inline
    code."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:console|sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^\$ (.*)", block, re.MULTILINE):
            yield True, line
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`([^`\n]+)`", rest):
        program = re.sub(rf"^({ASSIGNMENT.pattern} )*(\.venv/bin/)?", "", line)
        if re.match(r"(vta|make|pip|pytest|python3?) ", program):
            yield False, line


def words_of(line: str) -> list[str]:
    """The words of a command, starting with its program."""
    words = shlex.split(line, comments=True)
    while words and (words[0] == "sudo" or ASSIGNMENT.fullmatch(words[0])):
        del words[0]
    words[0] = words[0].removeprefix(".venv/bin/")
    return words


def problem_of(line: str, complete: bool = True) -> str:
    """Check a command without running it; return the problem or an empty string. A command that is
    not ``complete`` may end with an option without its value, as in a sentence.
    """
    program, *arguments = words_of(line)
    match program:
        case "vta":
            return _problem_of_vta(arguments, complete)
        case "make":
            targets = [word for word in arguments if "=" not in word]
            known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return "".join(f"no target {word}; " for word in targets if word not in known)
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            asked = re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", line)))
            known = extras["optional-dependencies"]
            return "".join(f"no extra {word}; " for word in asked if word not in known)
        case "python" | "python3":
            return _problem_of_script(arguments)
        case "pytest":
            paths = [word for word in arguments if "/" in word]
            return "".join(f"no {word}; " for word in paths if not (ROOT / word).exists())
    return f"unknown program {program}"


def _problem_of_vta(arguments: list[str], complete: bool) -> str:
    """Check commands, options, and values that are not placeholders with the real parser."""
    if not arguments or arguments[0] in ("…", "--help", "--version"):
        return ""
    name, *rest = arguments
    if name not in vta.commands:
        return f"no command {name}"
    command = vta.commands[name]
    context = click.Context(command, info_name=name)
    try:
        values, _, _ = command.make_parser(context).parse_args(rest)
    except click.BadOptionUsage as error:
        return error.format_message() if complete else ""
    except click.UsageError as error:
        return error.format_message()
    for item in command.params:
        value = values.get(item.name or "")
        # Placeholders are in capitals or dots.
        chosen = isinstance(value, str) and re.search(r"[a-z]", value)
        if chosen and isinstance(item.type, click.Choice) and value not in item.type.choices:
            return f"{value} is not a choice of {item.opts[0]}"
    return ""


def _problem_of_script(arguments: list[str]) -> str:
    if arguments[0] == "-m":
        if arguments[1] == "vta.exec.rpc_server":  # a command of TVM, which a page compares with
            return ""
        folder = ROOT / arguments[1].replace(".", "/")
        sources = [folder / "__main__.py", folder.with_suffix(".py")]
    else:
        sources = [ROOT / arguments[0]]
    found = [path for path in sources if path.exists()]
    if not found:
        return "" if arguments[0].isupper() or arguments[0] == "FILE.py" else "no such script"
    text = found[0].read_text(encoding="utf-8")
    # Modules beside a script may define options for it.
    for name in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE):
        beside = found[0].with_name(f"{name}.py")
        text += beside.read_text(encoding="utf-8") if beside.exists() else ""
    options = [word for word in arguments if word.startswith("--")]
    return "".join(f"no option {word}; " for word in options if f'"{word}"' not in text)


def is_run(line: str) -> bool:
    plain = line.replace(".venv/bin/", "")
    return not any(part in plain for part in NOT_RUN)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    problems = [
        f"{line}: {found}"
        for block, line in printed(page)
        if (found := problem_of(line, complete=block))
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vta rnu MODEL.onnx", "no command rnu"),
        ("vta run MODEL.onnx --no-such-option", "No such option"),
        ("vta run MODEL.onnx --device fpga", "fpga is not a choice"),
        ("vta compile MODEL.onnx -o", "requires an argument"),
        ("make no-such-target", "no target"),
        ("pip install '.[rtl,none]'", "no extra none"),
        ("python benchmarks/networks.py --none", "no option --none"),
        ("python benchmarks/none.py", "no such script"),
        ("sh build", "unknown program"),
    ],
)
def test_a_wrong_command_is_found(line: str, said: str) -> None:
    assert said in problem_of(line)


def test_only_commands_that_are_printed_are_excepted() -> None:
    lines = [line.replace(".venv/bin/", "") for page in PAGES for _, line in printed(page)]
    assert [part for part in NOT_RUN if not any(part in line for line in lines)] == []


def copy_of_the_tree(folder: Path) -> None:
    """Copy the files tracked by git, as in a fresh clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and (source.is_symlink() or source.is_file()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)


def add_what_the_reader_has(folder: Path) -> None:
    """Create files that pages expect the reader to have."""
    case = Case(3, "images", (1, 5, 9, 8), 17, (("conv", 1), ("activation", 9), ("classifier", 0)))
    model = case.float_model()
    onnx.save(model, folder / "float.onnx")
    (folder / "model.tflite").write_bytes(tiny_model("mlperf-anomaly", "an example"))
    inputs = {
        item.name: [dim.dim_value or 1 for dim in item.type.tensor_type.shape.dim]
        for item in model.graph.input
    }
    chance = np.random.default_rng(1)
    arrays = {name: chance.random(shape, np.float32) for name, shape in inputs.items()}
    for name in ("samples.npz", "images.npz"):
        with (folder / name).open("wb") as file:
            write_arrays(file, arrays)
    lower = [sys.executable, "-m", "amaranth_vta", "lower", "examples/schedules.py:vector_add"]
    command = [*lower, "--trace"]
    text = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    nest = re.search(r"^# copy_by_dma\n(.*?)(?=^# |\Z)", text, re.MULTILINE | re.DOTALL)
    (folder / "nest.txt").write_text(nest[1] if nest else text)


RUN = [page for page in PAGES if any(block and is_run(line) for block, line in printed(page))]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    copy_of_the_tree(folder)
    add_what_the_reader_has(folder)
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.nightly] * (name in NIGHTLY), id=name)
        for page, name in ((page, str(page.relative_to(ROOT))) for page in RUN)
    ],
)
def test_the_commands_of_a_page_run_in_a_fresh_copy(page: Path, tree: Path) -> None:
    for block, line in printed(page):
        if not block or not is_run(line):
            continue
        program, *arguments = words_of(line)
        assert program == "vta"
        done = subprocess.run(
            [sys.executable, "-m", "amaranth_vta", *arguments],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
