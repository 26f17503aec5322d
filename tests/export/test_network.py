"""Exported networks, compiled by a C compiler, drive the RTL through registers and memory alone."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import amaranth_vta as vta
from amaranth_vta.cli import invoke
from amaranth_vta.export.c_names import c_names
from amaranth_vta.hw.registers import REGISTERS
from tests.support.exported_c import (
    DONE,
    FAULT,
    PLACE,
    READ,
    TIMEOUT,
    WRITE,
    WRONG_MACHINE,
    compile_c,
    device_for,
    pointer,
    port_of,
)

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled network, its sources in ``c``, and their library."""
    folder = tmp_path_factory.mktemp("digits")
    export_c(DIGITS / "digits.onnx", folder)
    return folder


def export_c(model: Path, folder: Path, name: str = "network", config: str = "tiny") -> None:
    """Exports ``model`` to ``folder / "c"``, and compiles it to ``network.so``."""
    file = str(folder / "network.vta")
    assert invoke(["compile", str(model), "--config", config, "-o", file]) == 0
    assert invoke(["export", file, "-o", str(folder / "c"), "--name", name]) == 0
    sources = [folder / "c" / source for source in (f"{name}.c", "vta_runtime.c")]
    compile_c(sources, folder / "network.so")


def header_in(folder: Path) -> Path:
    return folder / "c" / "network.h"


def test_an_exported_network_gives_what_the_session_gives(digits: Path) -> None:
    images = np.load(DIGITS / "images.npz")["image"][:2].astype(np.float32)
    session = vta.Session.load(digits / "network.vta", device="functional")
    expected = [session.run({"image": image[None]})["logits"] for image in images]
    device = device_for(header_in(digits))
    port = port_of(device)
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    for image, logits in zip(images, expected, strict=True):
        found = np.zeros_like(logits)
        given = np.ascontiguousarray(image)
        assert library.network_run(ctypes.byref(port), pointer(given), pointer(found)) == DONE
        np.testing.assert_array_equal(found, logits)


@pytest.mark.parametrize("address", [(5 << 32) + PLACE, (1 << 32) - 4096])
def test_memory_of_the_machine_may_be_above_4_gib(digits: Path, address: int) -> None:
    """A bridge between processor and machine translates addresses. The second address is just below
    4 GiB, so the network's memory crosses it.
    """
    images = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    session = vta.Session.load(digits / "network.vta", device="functional")
    expected = session.run({"image": images})["logits"]
    device = device_for(header_in(digits))
    port = port_of(device)
    low_half = {register.offset: 0 for register in REGISTERS.values() if register.width == 64}
    seen = set()

    def write(_: object, offset: int, value: int) -> None:
        if offset in low_half:
            low_half[offset] = value
            return
        if offset - 4 not in low_half:
            device.machine.write_register(offset, value)
            return
        given = value << 32 | low_half[offset - 4]
        seen.add(given)
        moved = given - address + PLACE
        assert 0 <= moved < device.memory.size
        device.machine.write_register(offset - 4, moved & 0xFFFFFFFF)
        device.machine.write_register(offset, moved >> 32)

    port.address, port.write_register = address, WRITE(write)
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    found = np.zeros_like(expected)
    given = np.ascontiguousarray(images)
    assert library.network_run(ctypes.byref(port), pointer(given), pointer(found)) == DONE
    np.testing.assert_array_equal(found, expected)
    assert min(seen) == address
    assert max(seen) >= 1 << 32


def test_a_machine_with_other_parameters_is_named(digits: Path) -> None:
    device = device_for(header_in(digits))
    port = port_of(device)
    overwrite = REGISTERS["OVERWRITE"].offset
    read = device.machine.read_register
    other = READ(lambda _, offset: 1 if offset == overwrite else read(offset))
    port.read_register = other
    wrong = ctypes.c_char_p()
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), ctypes.byref(wrong)) == WRONG_MACHINE
    assert wrong.value == b"OVERWRITE"


def test_a_run_that_takes_too_long_or_faults_is_reported(digits: Path) -> None:
    device = device_for(header_in(digits))
    library = ctypes.CDLL(str(digits / "network.so"))
    floats = (ctypes.c_float * 64)()
    slow = port_of(device, most_polls=2)
    assert library.network_init(ctypes.byref(slow), None) == DONE
    assert library.network_run(ctypes.byref(slow), floats, floats) == TIMEOUT
    outside = port_of(device)
    outside.address = 1 << 30
    assert library.network_run(ctypes.byref(outside), floats, floats) == FAULT


def test_the_processor_may_wait_for_the_interrupt(digits: Path) -> None:
    """The hook is called while the line is low, and STATUS is read once before and once after."""
    given = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    session = vta.Session.load(digits / "network.vta", device="functional")
    expected = session.run({"image": given})["logits"]
    device = device_for(header_in(digits))
    machine, status = device.machine, REGISTERS["STATUS"].offset
    waits: list[bool] = []
    reads: list[int] = []

    def read(_: object, offset: int) -> int:
        reads.append(offset)
        return int(machine.read_register(offset))

    port = port_of(device, wait=lambda _: waits.append(machine.advance(1_000_000)))
    port.read_register = READ(read)
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    reads.clear()
    found = np.zeros_like(expected)
    assert library.network_run(ctypes.byref(port), pointer(given), pointer(found)) == DONE
    np.testing.assert_array_equal(found, expected)
    assert waits
    assert all(waits)
    assert reads == [status] * 2 * len(waits)
    assert machine.read_register(REGISTERS["INTERRUPT_ENABLE"].offset) == 0


def test_two_networks_link_into_one_program(digits: Path, tmp_path: Path) -> None:
    """They share a runtime, and may be compiled for machines with other parameters."""
    names = {"first": "tiny", "second": "tiny-extended"}
    for name, config in names.items():
        (tmp_path / name).mkdir()
        export_c(DIGITS / "digits.onnx", tmp_path / name, name, config)
    folders = [tmp_path / name / "c" for name in names]
    main = tmp_path / "both.c"
    main.write_text(
        '#include "first.h"\n#include "second.h"\n'
        "typedef char differ[FIRST_MEMORY_BYTES == SECOND_MEMORY_BYTES ? -1 : 1];\n"
    )
    sources = [main, *(folder / f"{folder.parent.name}.c" for folder in folders)]
    runtime = folders[0] / "vta_runtime.c"
    assert runtime.read_bytes() == (folders[1] / "vta_runtime.c").read_bytes()
    both = compile_c([*sources, runtime], tmp_path / "both.so", *(f"-I{at}" for at in folders))
    given = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    device = device_for(folders[0] / "first.h")
    port = port_of(device)
    assert both.second_init(ctypes.byref(port), None) == WRONG_MACHINE
    assert both.first_init(ctypes.byref(port), None) == DONE
    found = np.zeros((1, 10), np.float32)
    assert both.first_run(ctypes.byref(port), pointer(given), pointer(found)) == DONE
    session = vta.Session.load(digits / "network.vta", device="functional")
    np.testing.assert_array_equal(found, session.run({"image": given})["logits"])


@pytest.mark.parametrize("name", ["vta", "VTA_net", "2nd", "a-b", "", "_net", "naïve"])
def test_a_name_that_c_cannot_have_is_refused(
    name: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(digits / "network.vta")
    assert invoke(["export", file, "-o", str(tmp_path / "c"), "--name", name]) == 2
    assert f"{name!r} cannot name a network in C" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_what_the_host_would_compute_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"], "curve")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    model, network = str(tmp_path / "m.onnx"), str(tmp_path / "m.vta")
    assert invoke(["compile", model, "--config", "tiny", "-o", network]) == 0
    assert invoke(["export", network, "-o", str(tmp_path / "c")]) == 2
    assert "exported C cannot run Tanh curve of the host" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("image", "logits"),
    [
        ("vta_run", "vta_port"),
        ("uint8_t", "int"),
        ("tensor_0", "tensor_1"),  # the names that network.c uses for its own tensors
        ("layout_0", "segments"),
        ("limits", "network_reset"),
        ("NULL", "VTA_DONE"),
        ("class", "class_"),
        ("int", "tensor_int_0"),
        ("2nd input:0", "2nd_input_0"),
    ],
)
def test_inputs_may_have_any_name(image: str, logits: str, tmp_path: Path) -> None:
    model = onnx.load(DIGITS / "digits.onnx")
    names = {model.graph.input[0].name: image, model.graph.output[0].name: logits}
    for item in (*model.graph.input, *model.graph.output):
        item.name = names[item.name]
    for node in model.graph.node:
        for places in (node.input, node.output):
            places[:] = [names.get(name, name) for name in places]
    onnx.save(model, tmp_path / "m.onnx")
    export_c(tmp_path / "m.onnx", tmp_path)
    given = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    expected = vta.Session.load(tmp_path / "network.vta").run({image: given})[logits]
    device = device_for(header_in(tmp_path))
    port, found = port_of(device), np.zeros_like(expected)
    library = ctypes.CDLL(str(tmp_path / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    assert library.network_run(ctypes.byref(port), pointer(given), pointer(found)) == DONE
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("standard", ["c99", "gnu17", "c++17"])
def test_no_name_of_a_tensor_means_something_else(standard: str, tmp_path: Path) -> None:
    """Names that C, C++, their headers or the compiler define are usable as names of tensors."""
    language = "c++" if "+" in standard else "c"
    headers = "#include <stddef.h>\n#include <stdint.h>\n"
    command = ["gcc", f"-std={standard}", "-x", language, "-"]
    macros = subprocess.run(
        [*command, "-dM", "-E"], input=headers, capture_output=True, text=True, check=True
    ).stdout
    defined = re.findall(r"^#define ([A-Za-z]\w*)", macros, re.MULTILINE)
    keywords = "int class new auto bool true typeof inline restrict alignas nullptr xor while"
    types = "size_t ptrdiff_t uint8_t int_fast16_t uintptr_t wchar_t max_align_t"
    names = [*defined, *keywords.split(), *types.split(), "vta_run", "data", "x", "vta_input"]
    runtime = (Path(vta.__path__[0]) / "export" / "vta_runtime.h").read_text(encoding="utf-8")
    chosen = c_names(names, runtime)
    assert (chosen["data"], chosen["x"], chosen["vta_input"]) == ("data", "x", "vta_input")
    text = (
        headers
        + runtime
        + "".join(
            f"void f{number}(const float *{name});\n" for number, name in enumerate(chosen.values())
        )
    )
    subprocess.run([*command, "-fsyntax-only", "-Werror"], input=text, text=True, check=True)
