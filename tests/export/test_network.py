"""Exported networks, compiled by a C compiler, drive the RTL through registers and memory alone."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import amaranth_vta as vta
from amaranth_vta.cli import invoke
from amaranth_vta.export.c_names import c_names
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.machine.rtl.engine import RtlDevice

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
# Where the network's memory begins; it may be anywhere.
PLACE = 0x3000
DONE, WRONG_MACHINE, FAULT, TIMEOUT = range(4)
_READ = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
_WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
_SYNC = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Port(ctypes.Structure):
    """`vta_port`."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("read_register", _READ),
        ("write_register", _WRITE),
        ("memory", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("flush", _SYNC),
        ("invalidate", _SYNC),
        ("most_polls", ctypes.c_uint32),
    ]


def device_for(folder: Path) -> Any:
    """A device with the memory size that the sources in ``folder`` state."""
    header = (folder / "c" / "network.h").read_text()
    size = re.search(r"#define NETWORK_MEMORY_BYTES (\d+)", header)
    assert size is not None
    return RtlDevice(PRESETS["tiny"], PLACE + int(size[1]))


def port_of(device: Any, most_polls: int = 0) -> Port:
    machine = device.machine
    return Port(
        None,
        _READ(lambda _, offset: machine.read_register(offset)),
        _WRITE(lambda _, offset, value: machine.write_register(offset, value)),
        device.memory.ctypes.data + PLACE,
        PLACE,
        _SYNC(),
        _SYNC(),
        most_polls,
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled network, its sources and their library."""
    folder = tmp_path_factory.mktemp("digits")
    network = str(folder / "digits.vta")
    model = str(DIGITS / "digits.onnx")
    assert invoke(["compile", model, "--config", "tiny", "-o", network]) == 0
    assert invoke(["export", network, "-o", str(folder / "c")]) == 0
    compile_c(folder)
    return folder


def compile_c(folder: Path) -> None:
    """Compiles the sources in ``folder / "c"`` to ``network.so``, without a warning."""
    sources = [str(folder / "c" / name) for name in ("network.c", "vta_runtime.c")]
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
    library = str(folder / "network.so")
    subprocess.run(["gcc", *strict, "-shared", "-fPIC", *sources, "-lm", "-o", library], check=True)


def test_an_exported_network_gives_what_the_session_gives(digits: Path) -> None:
    images = np.load(DIGITS / "images.npz")["image"][:2].astype(np.float32)
    session = vta.Session.load(digits / "digits.vta", device="functional")
    expected = [session.run({"image": image[None]})["logits"] for image in images]
    device = device_for(digits)
    port = port_of(device)
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    for image, logits in zip(images, expected, strict=True):
        found = np.zeros_like(logits)
        given = np.ascontiguousarray(image)
        result = library.network_run(
            ctypes.byref(port),
            given.ctypes.data_as(ctypes.c_void_p),
            found.ctypes.data_as(ctypes.c_void_p),
        )
        assert result == DONE
        np.testing.assert_array_equal(found, logits)


@pytest.mark.parametrize("address", [(5 << 32) + PLACE, (1 << 32) - 4096])
def test_memory_of_the_machine_may_be_above_4_gib(digits: Path, address: int) -> None:
    """A bridge between processor and machine translates addresses. The second address is just below
    4 GiB, so the network's memory crosses it.
    """
    images = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    session = vta.Session.load(digits / "digits.vta", device="functional")
    expected = session.run({"image": images})["logits"]
    device = device_for(digits)
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

    port.address, port.write_register = address, _WRITE(write)
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    found = np.zeros_like(expected)
    given = np.ascontiguousarray(images)
    result = library.network_run(
        ctypes.byref(port),
        given.ctypes.data_as(ctypes.c_void_p),
        found.ctypes.data_as(ctypes.c_void_p),
    )
    assert result == DONE
    np.testing.assert_array_equal(found, expected)
    assert min(seen) == address
    assert max(seen) >= 1 << 32


def test_a_machine_with_other_parameters_is_named(digits: Path) -> None:
    device = device_for(digits)
    port = port_of(device)
    overwrite = REGISTERS["OVERWRITE"].offset
    read = device.machine.read_register
    other = _READ(lambda _, offset: 1 if offset == overwrite else read(offset))
    port.read_register = other
    wrong = ctypes.c_char_p()
    library = ctypes.CDLL(str(digits / "network.so"))
    assert library.network_init(ctypes.byref(port), ctypes.byref(wrong)) == WRONG_MACHINE
    assert wrong.value == b"OVERWRITE"


def test_a_run_that_takes_too_long_or_faults_is_reported(digits: Path) -> None:
    device = device_for(digits)
    library = ctypes.CDLL(str(digits / "network.so"))
    floats = (ctypes.c_float * 64)()
    slow = port_of(device, most_polls=2)
    assert library.network_init(ctypes.byref(slow), None) == DONE
    assert library.network_run(ctypes.byref(slow), floats, floats) == TIMEOUT
    outside = port_of(device)
    outside.address = 1 << 30
    assert library.network_run(ctypes.byref(outside), floats, floats) == FAULT


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
    assert "Tanh curve runs on the host" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("image", "logits"),
    [
        ("vta_run", "vta_port"),
        ("uint8_t", "int"),
        ("tensor_0", "tensor_1"),  # the names that network.c uses for its own tensors
        ("layout_0", "segments"),
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
    network = str(tmp_path / "m.vta")
    assert invoke(["compile", str(tmp_path / "m.onnx"), "--config", "tiny", "-o", network]) == 0
    assert invoke(["export", network, "-o", str(tmp_path / "c")]) == 0
    compile_c(tmp_path)
    given = np.load(DIGITS / "images.npz")["image"][:1].astype(np.float32)
    expected = vta.Session.load(network).run({image: given})[logits]
    device = device_for(tmp_path)
    port, found = port_of(device), np.zeros_like(expected)
    library = ctypes.CDLL(str(tmp_path / "network.so"))
    assert library.network_init(ctypes.byref(port), None) == DONE
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (given, found)]
    assert library.network_run(ctypes.byref(port), *pointers) == DONE
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
