"""Which test files depend on which files of the repository, by their imports."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

FOLDERS = ("hw", "sw", "sim", "amaranth_vta", "tests", "benchmarks", "examples")
# Tests of documentation pages, which read the files that they check.
PAGES = ("tests/docs/", "tests/test_readme.py")


class ImportGraph:
    """Modules under ``root`` and what each imports, including imports within functions.

    Paths are relative to ``root``, with slashes.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths = {
            module_name(path.relative_to(root)): path.relative_to(root).as_posix()
            for folder in FOLDERS
            for path in sorted((root / folder).rglob("*.py"))  # does not follow links
        }

    def affected_tests(self, changed: Iterable[str]) -> list[str]:
        """Test files that depend on a changed file, nearest in the import graph first.

        A file that is not Python belongs to all modules of its folder, or of the nearest parent
        folder with modules; tests of pages depend on all Markdown files. A changed conftest affects
        the tests below it.
        """
        distance = dict.fromkeys(self._modules_of(changed), 0)
        queue = deque(distance)
        while queue:
            module = queue.popleft()
            for reader in self._readers.get(module, ()):
                if reader not in distance:
                    distance[reader] = distance[module] + 1
                    queue.append(reader)
        tests = [(steps, self._paths[name]) for name, steps in distance.items()]
        return [path for _, path in sorted(tests) if is_test(path)]

    def _modules_of(self, changed: Iterable[str]) -> set[str]:
        by_path = {path: name for name, path in self._paths.items()}
        found: set[str] = set()
        for file in changed:
            if file.endswith((".md", ".ipynb")):
                found |= {name for path, name in by_path.items() if path.startswith(PAGES)}
            elif file.endswith("conftest.py"):
                below = file.removesuffix("conftest.py")
                found |= {name for path, name in by_path.items() if path.startswith(below)}
            elif file in by_path:
                found.add(by_path[file])
            else:
                found |= self._nearest(Path(file).parent)
        return found

    def _nearest(self, folder: Path) -> set[str]:
        while folder != Path():
            below = {name for name, path in self._paths.items() if Path(path).parent == folder}
            if below:
                return below
            folder = folder.parent
        return set()

    @cached_property
    def _readers(self) -> Mapping[str, set[str]]:
        readers: dict[str, set[str]] = {}
        for name, path in self._paths.items():
            for module in imported(name, self._root / path):
                if module in self._paths and module != name:
                    readers.setdefault(module, set()).add(name)
        return readers


def is_test(path: str) -> bool:
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")


def module_name(path: Path) -> str:
    """Import name of the module at ``path``, which is relative to the root."""
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] not in ("hw", "sw", "sim") else ["amaranth_vta", *parts])


@cache
def imported(name: str, path: Path) -> tuple[str, ...]:
    """Names of the modules that module ``name`` imports, including names imported from them."""
    return tuple(_imported(name, path))


def _imported(name: str, path: Path) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)
