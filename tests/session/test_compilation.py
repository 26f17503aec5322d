"""A model is compiled once; every input of the result is part of the cache key."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import pytest

import amaranth_vta as vta
from amaranth_vta.sim.cache import package_files, package_version
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.plan import placement
from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork, compile_network
from amaranth_vta.sw.compiler.nest.ir import LoopNest
from amaranth_vta.sw.runtime.network.network_file import write_network

MODEL = Path(__file__).parents[2] / "examples/digits/digits.onnx"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "networks"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[CompiledNetwork]:
    """The networks compiled so far, without those taken from the cache."""
    done: list[CompiledNetwork] = []

    def note(*args: Any) -> CompiledNetwork:
        done.append(compile_network(*args))
        return done[-1]

    monkeypatch.setattr("amaranth_vta.session.compilation.compile_network", note)
    return done


def file_of(network: CompiledNetwork) -> bytes:
    file = BytesIO()
    write_network(network.program, file)
    return file.getvalue()


def test_a_model_that_has_not_changed_is_compiled_once(compiled: list[CompiledNetwork]) -> None:
    first = vta.compile(MODEL, "tiny-extended")
    second = vta.compile(MODEL.read_bytes(), "tiny-extended")
    assert len(compiled) == 1
    assert file_of(second) == file_of(first)


def test_what_a_kept_program_was_made_of_is_found_again() -> None:
    first, second = (vta.compile(MODEL, "tiny-extended") for _ in range(2))
    assert second.network.to_onnx() == first.network.to_onnx()
    texts = [
        [str(item.function.lowered) for item in network.placement.items if isinstance(item, Layer)]
        for network in (first, second)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 2


def test_model_machine_and_images_each_make_a_difference(compiled: list[CompiledNetwork]) -> None:
    model = onnx.load_model(MODEL)
    vta.compile(model, "tiny-extended")
    vta.compile(model, "tiny")
    vta.compile(model, "tiny-extended", images=2)
    model.graph.initializer[0].name += "_renamed"
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if f"{name}_renamed" == model.graph.initializer[0].name:
                node.input[index] = f"{name}_renamed"
    vta.compile(model, "tiny-extended")
    assert len(compiled) == 4


def test_a_changed_compiler_makes_a_difference(
    compiled: list[CompiledNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    vta.compile(MODEL, "tiny-extended")
    monkeypatch.setattr("amaranth_vta.session.compilation.package_version", lambda: ("another",))
    vta.compile(MODEL, "tiny-extended")
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", ["a byte", "the end", "all", "seal"])
def test_a_damaged_entry_is_compiled_again(
    compiled: list[CompiledNetwork], cache: Path, damage: str
) -> None:
    first = vta.compile(MODEL, "tiny-extended")
    (entry,) = cache.glob("*.vta")
    data = bytearray(entry.read_bytes())
    match damage:
        case "a byte":
            data[len(data) // 2] ^= 1
        case "the end":
            del data[-100:]
        case "all":
            data.clear()
        case "seal":
            entry.with_name(f"{entry.name}.seal").unlink()
    entry.write_bytes(data)
    assert file_of(vta.compile(MODEL, "tiny-extended")) == file_of(first)
    assert len(compiled) == 2
    vta.compile(MODEL, "tiny-extended")
    assert len(compiled) == 2


def test_what_others_may_write_is_not_trusted(compiled: list[CompiledNetwork], cache: Path) -> None:
    vta.compile(MODEL, "tiny-extended")
    (entry,) = cache.glob("*.vta")
    entry.chmod(0o666)
    vta.compile(MODEL, "tiny-extended")
    assert len(compiled) == 2


def test_without_a_place_for_the_cache_networks_are_compiled_each_time(
    compiled: list[CompiledNetwork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "file"))
    vta.compile(MODEL, "tiny-extended")
    vta.compile(MODEL, "tiny-extended")
    assert len(compiled) == 2


def test_networks_with_added_passes_or_operators_are_not_kept(
    compiled: list[CompiledNetwork], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same(nest: LoopNest, _: vta.Config) -> LoopNest:
        return nest

    vta.compile(MODEL, "tiny-extended", passes=[("after fold_loops", same)])
    monkeypatch.setattr(placement, "_LAYERS", dict(placement._LAYERS))
    vta.register_operator("MaxPool")(placement._LAYERS["", "Clip"])
    vta.compile(MODEL, "tiny-extended")
    assert len(compiled) == 2
    assert not cache.exists()


def test_the_key_has_every_module_that_a_compilation_loads() -> None:
    root = Path(vta.__path__[0])
    script = (
        "import sys, amaranth_vta as vta\n"
        "from amaranth_vta.session import compilation\n"
        "compilation._cached_program = lambda *values: values[-1]()\n"
        f"vta.compile({str(MODEL)!r}, 'tiny-extended')\n"
        "for module in list(sys.modules.values()):\n"
        "    print(getattr(module, '__file__', None) or '')\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {Path(line).resolve() for line in done.stdout.splitlines() if line}
    within = [root.resolve(), *((root / name).resolve() for name in ("hw", "sw", "sim"))]
    ours = {path for path in loaded if any(folder in path.parents for folder in within)}
    keyed = {(root / path).resolve() for path in package_files(root)}
    assert {path.name for path in ours} >= {"timing.py", "tiles.py", "config.py", "compilation.py"}
    assert ours <= keyed


def test_a_change_of_any_file_of_the_package_makes_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "hw").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("amaranth_vta.sim.cache._PACKAGE", tmp_path / "package")
    versions = set()
    for name in ("package/__init__.py", "elsewhere/timing.py", "elsewhere/model.json"):
        for text in ("first", "second"):
            (tmp_path / name).write_text(text)
            package_version.cache_clear()
            versions.add(package_version())
    package_version.cache_clear()
    assert len(versions) == 6
