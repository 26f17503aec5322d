from __future__ import annotations

import re
from pathlib import Path

from amaranth_vta.hw import isa
from amaranth_vta.hw.isa import Cause, Memory, Opcode
from tests.support.import_graph import imported


def test_opcodes_memories_and_causes_have_their_numbers() -> None:
    assert [(op.name, op.value) for op in Opcode] == [
        ("LOAD", 0), ("STORE", 1), ("GEMM", 2), ("FINISH", 3), ("ALU", 4),
        ("MULTIPLY", 5), ("DEPTHWISE", 6),
    ]  # fmt: skip
    assert [(memory.name, memory.value) for memory in Memory] == [
        ("UOP", 0), ("WGT", 1), ("INP", 2), ("ACC", 3), ("OUT", 4), ("ACC_8BIT", 5),
        ("WGT_4BIT", 9),
    ]  # fmt: skip
    assert [(op.name, op.value) for op in isa.AluOp] == [
        ("MIN", 0), ("MAX", 1), ("ADD", 2), ("SHR", 3), ("MUL", 4),
        ("REQUANTIZE", 5), ("LOOKUP", 6), ("MULTIPLY_ADD", 7),
    ]  # fmt: skip
    assert [cause.name.lower() for cause in Cause] == [
        "illegal_instruction", "index_out_of_range", "bus_error", "token_overflow", "bad_stream",
        "deadlock", "timeout",
    ]  # fmt: skip


def test_each_file_imports_only_files_that_are_read_before_it() -> None:
    folder = Path(isa.__file__).parent
    order = re.findall(r"^- `(\w+)`: ", isa.__doc__ or "", re.MULTILINE)
    assert {*order, "__init__"} == {path.stem for path in folder.glob("*.py")}
    modules = [f"{isa.__name__}.{name}" for name in order]
    for place, module in enumerate(modules):
        found = imported(module, folder / f"{order[place]}.py")
        assert not set(modules[place:]) & set(found), module
