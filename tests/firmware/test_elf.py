"""Images of executables, against objcopy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from amaranth_vta.firmware.elf import loaded_images
from tests.support.exported_c import RISCV, ZIG

ZIG_OBJCOPY = [*ZIG[:-1], "objcopy"]
BASE = 0x4000_0000
MEMORY = range(BASE, BASE + 0x1000)
SOURCE = """
int zeros[5];
const char text[] = "seven b";
int table[3] = {1, 2, 3};
int _start(void) { return zeros[0] + text[1] + table[2]; }
"""
SCRIPT = f"""
SECTIONS
{{
    . = {BASE:#x};
    .text : {{ *(.text*) }}
    . = {BASE + 0x101:#x};
    .rodata : {{ *(.rodata* .srodata*) }}
    .data : ALIGN(64) {{ *(.data* .sdata*) }}
    .bss (NOLOAD) : {{ *(.bss* .sbss*) }}
}}
"""


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "main.c").write_text(SOURCE)
    (folder / "main.ld").write_text(SCRIPT)
    command = [*ZIG, *RISCV, "-O1", f"-Wl,-T,{folder}/main.ld", f"{folder}/main.c"]
    subprocess.run([*command, "-o", folder / "main.elf"], check=True)
    return folder / "main.elf"


def test_the_image_is_that_of_objcopy(executable: Path) -> None:
    binary = executable.with_suffix(".bin")
    # A host's objcopy has no name for RISC-V, and copies it as 32-bit ELF. Zig compiles its own at
    # the first use, in a quarter of a minute.
    objcopy = [host, "-I", "elf32-little"] if (host := shutil.which("objcopy")) else ZIG_OBJCOPY
    subprocess.run([*objcopy, "-O", "binary", executable, binary], check=True)
    expected = binary.read_bytes()
    (found,) = loaded_images(executable.read_bytes(), [MEMORY])
    assert len(found) % 4 == 0
    assert found[: len(expected)] == expected
    assert len(found) - len(expected) < 4


def test_each_memory_has_its_own_bytes(executable: Path) -> None:
    elf, end = executable.read_bytes(), BASE + 0x100
    (whole,) = loaded_images(elf, [MEMORY])
    code, data = loaded_images(elf, [range(BASE, end), range(end, end + 0x1000)])
    assert code.ljust(0x100, b"\0") + data == whole


@pytest.mark.parametrize("memory", [range(BASE + 0x100, BASE + 0x1000), range(BASE, BASE + 2)])
def test_bytes_outside_all_memories_are_refused(memory: range, executable: Path) -> None:
    with pytest.raises(ValueError, match="a segment of .* bytes at 0x40000000 is in no memory"):
        loaded_images(executable.read_bytes(), [memory])
