"""Folders, files and functions stay small, imports go one way, and class names are unique."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.import_graph import imported, module_name

ROOT = Path(__file__).parents[1]
SOURCES = ("hw", "sw", "sim", "amaranth_vta")
FILES, LINES, FUNCTION_LINES, ELABORATE_LINES = 24, 600, 100, 120
# Class names that are used twice, with their two meanings.
SHARED = {
    "Access": "how software uses a register; an element of a tensor",
    "Link": "both ends of the serial line",
    "Load": "the instruction and its module",
    "Rule": "of legal instructions, and its fields as the compiled model reads them",
    "Scratchpad": "of the machine and of the model",
    "Store": "the instruction and its module",
    "Unit": "GEMM or ALU, in compute and in the observer of its claims",
}


def oversized(root: Path) -> Iterator[str]:
    """Folders, files and functions under ``root`` that are over a limit."""
    folders: dict[Path, int] = {}
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > LINES:
            yield f"{name}: {lines} lines, over {LINES}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                limit = ELABORATE_LINES if node.name == "elaborate" else FUNCTION_LINES
                if length > limit:
                    yield f"{name}:{node.lineno}: {node.name} has {length} lines, over {limit}"
    for folder, files in folders.items():
        if files > FILES:
            yield f"{folder.relative_to(root).as_posix()}/: {files} files, over {FILES}"


def circle(root: Path, parts: int | None = None) -> list[str]:
    """Modules that import each other in a cycle, including imports within functions; with
    ``parts``, the packages that the first parts of their names are.
    """
    paths = {module_name(path.relative_to(root)): path for path in sources(root)}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        package = ".".join(name.split(".")[:parts])
        found = {".".join(n.split(".")[:parts]) for n in imported(name, path) if n in paths}
        graph[package] = graph.get(package, set()) | found - {package}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        modules: list[str] = error.args[1]
        return modules
    return []


def shared_names(root: Path) -> set[str]:
    """Names that more than one public class under ``root`` has."""
    names = Counter(
        node.name
        for path in sources(root)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name for name, count in names.items() if count > 1}


def sources(root: Path) -> list[Path]:
    # rglob does not follow the links in amaranth_vta.
    return sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py"))


def test_nothing_is_too_large() -> None:
    assert list(oversized(ROOT)) == []


def test_no_imports_go_in_a_circle() -> None:
    assert circle(ROOT) == []
    assert circle(ROOT, parts=2) == []
    assert circle(ROOT, parts=5) == []  # folders of the graph compiler


def test_a_name_means_one_class() -> None:
    assert shared_names(ROOT) == set(SHARED)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"hw/x.py": "a = 1\n" * 601}, "hw/x.py: 601 lines, over 600"),
        ({"sw/x.py": "def f():\n" + " 1\n" * 100}, "sw/x.py:1: f has 101 lines, over 100"),
        (
            {"hw/x.py": "class X:\n def elaborate(self):\n" + "  1\n" * 120},
            "hw/x.py:2: elaborate has 121 lines, over 120",
        ),
        ({f"sim/m/x{n}.py": "" for n in range(25)}, "sim/m/: 25 files, over 24"),
    ],
)
def test_a_planted_excess_is_found(tmp_path: Path, files: dict[str, str], found: str) -> None:
    write(tmp_path, files)
    assert list(oversized(tmp_path)) == [found]


@pytest.mark.parametrize(
    "files",
    [
        {"hw/a.py": "from .b import x", "hw/b.py": "def f():\n    from . import a"},
        {"sw/a.py": "import amaranth_vta.hw.b", "hw/b.py": "from amaranth_vta.sw.a import x"},
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert len(circle(tmp_path)) == 3


def test_a_planted_circle_of_packages_is_found(tmp_path: Path) -> None:
    files = {"session/a.py": "from ..report import b", "report/c.py": "from ..session import a"}
    write(tmp_path, {f"amaranth_vta/{name}": text for name, text in files.items()})
    write(tmp_path, {"amaranth_vta/report/b.py": ""})
    assert circle(tmp_path) == []
    assert len(circle(tmp_path, parts=2)) == 3


def test_a_planted_second_class_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"hw/a.py": "class X: ...", "sim/b.py": "class X: ...\nclass _Y: ..."})
    assert shared_names(tmp_path) == {"X"}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
