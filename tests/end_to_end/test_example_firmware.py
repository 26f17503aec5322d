"""The program of examples/firmware, for this processor and for RISC-V."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from amaranth_vta.cli import invoke
from tests.support.exported_c import (
    RISCV,
    STANDARDS,
    STRICT,
    ZIG,
    compile_c,
    device_for,
    port_of,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRMWARE = EXAMPLES / "firmware"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported sources."""
    folder = tmp_path_factory.mktemp("firmware")
    network, sources = str(folder / "digits.vta"), folder / "digits"
    model = str(EXAMPLES / "digits" / "digits.onnx")
    assert invoke(["compile", model, "--config", "tiny", "-o", network]) == 0
    assert invoke(["export", network, "--name", "digits", "-o", str(sources)]) == 0
    return sources


def test_it_classifies_a_digit_on_the_rtl(digits: Path, tmp_path: Path) -> None:
    """With the port of the test in place of the board's."""
    port_file = tmp_path / "port.c"
    port_file.write_text(
        '#include "port.h"\n'
        "void use(const vta_port *port);\n"
        "static const vta_port *used;\n"
        "void use(const vta_port *port) { used = port; }\n"
        "const vta_port *board_port(void) { return used; }\n"
    )
    sources = [FIRMWARE / "main.c", port_file, digits / "digits.c", digits / "vta_runtime.c"]
    folders = [f"-I{digits}", f"-I{FIRMWARE}"]
    library = compile_c(sources, tmp_path / "main.so", "-Dmain=classify", *folders)
    port = port_of(device_for(digits / "digits.h"))
    library.use(ctypes.byref(port))
    assert library.classify() == 3


@pytest.mark.parametrize("options", [(), ("-DVTA_INTERRUPT", "-DVTA_MEMORY=0x20000000")])
def test_it_links_for_a_risc_v_processor_without_a_library(
    options: tuple[str, ...], digits: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang")
    sources = [*FIRMWARE.glob("*.c"), *digits.glob("*.c")]
    program = tmp_path / "firmware.elf"
    command = [*ZIG, *RISCV, *STANDARDS["c99"], *STRICT, *options, f"-I{digits}"]
    linked = ["-Os", "-Wl,--entry=main", "-o", str(program)]
    subprocess.run([*command, *map(str, sources), *linked], check=True)
    assert program.read_bytes()[:5] == b"\x7fELF\x01"


@pytest.mark.parametrize("standard", STANDARDS)
def test_its_port_compiles_for_any_processor(standard: str, digits: Path, tmp_path: Path) -> None:
    command = ["gcc", *STANDARDS[standard], *STRICT, f"-I{digits}", "-c"]
    output = ["-o", str(tmp_path / "port.o")]
    subprocess.run([*command, str(FIRMWARE / "port.c"), *output], check=True)
