"""Run the command line on damaged and hostile files of every kind.

    python benchmarks/fuzz_files.py [--runs 10000] [--seed 1] [--jobs 2] [--only KIND]
        [--keep DIR]

Whatever a file contains, a command must exit with 0, 1, 2 or 3, in bounded time and memory. Takes
valid files, mutates bytes or fields (sizes, names, numbers, instructions, with corrected
checksums), and gives each to a command in its own process. Prints how the runs ended and the
maximum time and memory of a run, keeps the files of failing runs in DIR, and exits with 1 if there
are any. The same seed and number produce the same file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta.cli import invoke
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import compilation
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.runtime.archive import write_archive
from amaranth_vta.sw.runtime.array_file import ArrayFile, write_arrays
from amaranth_vta.sw.runtime.network.network_file import KIND, write_network
from tests.support.damaged_tflite import FLOATS, NUMBERS, any_tflite, any_word, small_tflite
from tests.support.decoders import decoder_file
from tests.support.random_networks import QuantizedNetwork

CONFIG = "tiny-extended"
ALLOWED = (0, 1, 2, 3)
SECONDS, MEGABYTES = 30, 1500
FILE_LIMIT = "64M"
TEXTS = ("", "x", "file", "header", "../x", "/dev/zero", "a\0b", "int8", "O", "ä" * 300, "[" * 2000)

Change = Callable[[Random, bytes], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of file: valid examples, mutations of their contents, and commands that read them."""

    suffix: str
    seeds: tuple[bytes, ...]
    changes: tuple[Change, ...]
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: ``code`` is negative for a signal; seconds are of processor time."""

    number: int
    arguments: tuple[str, ...]
    code: int
    seconds: float
    megabytes: float
    message: str

    @property
    def is_allowed(self) -> bool:
        return (
            self.code in ALLOWED
            and self.seconds <= SECONDS
            and self.megabytes <= MEGABYTES
            and "Traceback" not in self.message
        )


# Mutations of bytes.


def flip_bits(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 20))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def move_bytes(random: Random, data: bytes) -> bytes:
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    to = random.randrange(len(data) + 1)
    match random.randrange(4):
        case 0:
            return data[:begin]
        case 1:
            return data[:begin] + data[end:]
        case 2:
            return data[:to] + data[begin:end] + data[to:]
    return data[:begin] + random.randbytes(end - begin) + data[end:]


def cut_short(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(min(len(data), 300))]


# Mutations of contents.


def any_json(random: Random, value: Any) -> Any:
    """``value`` with one part of it changed."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        changed, key = dict(value), random.choice(list(value))
        match random.randrange(8):
            case 0:
                del changed[key]
            case 1:
                changed[random.choice(TEXTS)] = changed.pop(key)
            case _:
                changed[key] = any_json(random, value[key])
        return changed
    if isinstance(value, list) and value and random.random() < 0.9:
        changed_list, place = list(value), random.randrange(len(value))
        match random.randrange(6):
            case 0:
                del changed_list[place]
            case 1:
                changed_list.append(value[place])
            case _:
                changed_list[place] = any_json(random, value[place])
        return changed_list
    choices: tuple[Any, ...] = (
        *(random.choice(NUMBERS), random.choice(FLOATS), random.choice(TEXTS)),
        *(None, True, [], {}, [value], 10**30, value),
    )
    return random.choice(choices)


def config_text(random: Random, data: bytes) -> bytes:
    values = json.loads(data)
    if random.random() < 0.2:
        key = random.choice(list(values))
        return data[: data.rindex(b"}")] + f', "{key}": {random.choice(NUMBERS)}}}'.encode()
    return json.dumps(any_json(random, values)).encode()


def any_array(random: Random, array: np.ndarray) -> np.ndarray:
    match random.randrange(5):
        case 0:
            return array.reshape(-1)[: random.randrange(array.size + 1)]
        case 1 if array.dtype.kind in "iuf":
            return array.astype(random.choice(("u1", "i1", "i4", "u8", "f4", "f8", "?", "c8")))
        case 2:
            return array.reshape((1, *array.shape))
        case 3:
            return np.array(random.choice((*NUMBERS[:-2], *FLOATS, *TEXTS)))
    flat = np.array(array).reshape(-1)
    if flat.nbytes:
        raw = flat.view(np.uint8)
        for _ in range(random.choice((1, 4, 64))):
            raw[random.randrange(raw.size)] = random.randrange(256)
    return flat.reshape(array.shape)


def arrays_in(data: bytes) -> dict[str, np.ndarray]:
    return ArrayFile(io.BytesIO(data)).read_all()


def some_array(random: Random, data: bytes) -> bytes:
    arrays = arrays_in(data)
    name = random.choice(list(arrays))
    match random.randrange(5):
        case 0:
            del arrays[name]
        case 1:
            arrays[random.choice(TEXTS)] = arrays.pop(name)
        case _:
            arrays[name] = any_array(random, arrays[name])
    return with_arrays(arrays)


def with_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    write_arrays(file, arrays, compressed=True)
    return file.getvalue()


def array_header(random: Random, data: bytes) -> bytes:
    """Change the type or shape in an array's header, in an otherwise valid archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", 8) as new:
        members = old.infolist()
        chosen = random.randrange(len(members))
        for place, item in enumerate(members):
            content = old.read(item)
            if place == chosen:
                size = random.choice((2**20, 2**33, 2**62, 3, 0, -1))
                kind = random.choice(("|u1", "<i8", "|O", "|V0", "<U9", "[('a', '<i4')]", "x"))
                text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({size},)}}\n"
                header = len(text).to_bytes(2, "little") + text.encode()
                content = b"\x93NUMPY\x01\x00" + header + content[128:]
                if random.random() < 0.3:
                    content += bytes(1 << 27)  # eight times the limit, compressed to almost nothing
            new.writestr(item.filename, content)
            if random.random() < 0.05:
                new.writestr(item.filename + ".npy", content)
    return file.getvalue()


def program(random: Random, data: bytes) -> bytes:
    """Mutate the instructions of an image."""
    arrays = arrays_in(data)
    first, count = int(arrays["insn_addr"]), int(arrays["insn_count"])
    dram = arrays["dram"].copy()
    for _ in range(random.choice((1, 2, 8))):
        at = first + 16 * random.randrange(count)
        dram[at + random.randrange(16)] ^= 1 << random.randrange(8)
    return with_arrays({**arrays, "dram": dram})


def compiled_network(random: Random, data: bytes) -> bytes:
    """Mutate the contents of a compiled network and correct its checksum."""
    arrays = arrays_in(data)
    header = json.loads(str(arrays.pop("header")))
    header.pop("checksum")
    if random.random() < 0.6:
        header = any_json(random, header)
        header = header if isinstance(header, dict) else {}
    else:
        name = random.choice(list(arrays))
        if name.startswith("model_") and random.random() < 0.8:
            model = any_model(random, arrays[name].tobytes())
            arrays[name] = np.frombuffer(model, np.uint8)
        else:
            arrays[name] = any_array(random, arrays[name])
    file = io.BytesIO()
    write_archive(file, KIND, header, arrays)
    return file.getvalue()


def messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                yield from messages(item)


def any_model(random: Random, data: bytes) -> bytes:
    model = onnx.load_model_from_string(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        changed = random.choice(list(messages(model)))
        fields = changed.ListFields()
        if fields:
            field, value = random.choice(fields)
            change_field(random, model, changed, field, value)
    return model.SerializeToString()


def change_field(random: Random, model: Any, message: Any, field: Any, value: Any) -> None:
    if field.is_repeated:
        place = random.randrange(len(value))
        match random.randrange(3):
            case 0:
                del value[place]
            case 1 if field.message_type is not None:
                value.add().CopyFrom(value[place])
            case _ if field.message_type is None:
                value[place] = scalar(random, model, value[place])
        return
    if field.message_type is not None or random.random() < 0.1:
        message.ClearField(field.name)
        return
    try:
        setattr(message, field.name, scalar(random, model, value))
    except (ValueError, TypeError):  # a number beyond the field's range
        message.ClearField(field.name)


def scalar(random: Random, model: Any, value: Any) -> Any:
    match value:
        case bool() | int():
            return random.choice(NUMBERS) if random.random() < 0.7 else value + 1
        case float():
            return random.choice(FLOATS)
        case str():
            names = [name for node in model.graph.node for name in (*node.input, *node.output)]
            operators = ("Loop", "ConstantOfShape", "Clip", "QLinearConv", "Reshape", "Expand")
            return random.choice((*names, *TEXTS, *operators))
        case bytes() if value:
            return move_bytes(random, value)
    return value


def lines_of_text(random: Random, data: bytes) -> bytes:
    lines = data.decode().splitlines()
    place = random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(random.randrange(len(lines)), lines[place])
        case _:
            words = lines[place].split(" ")
            other = random.choice(lines).split(" ")
            odd = (*map(str, NUMBERS), *TEXTS, *other)
            words[random.randrange(len(words))] = random.choice(odd)
            lines[place] = " ".join(words)
    return "\n".join(lines).encode()


# Good files.


def small_model(on_host: bool) -> onnx.ModelProto:
    network = QuantizedNetwork(1, "qdq", np.int8, (4, 6, 6))
    branch, deviation = network.dequantized(), network.deviation
    network.convolution(4, (3, 3), (1, 1), (1, 1, 1, 1), relu=True)
    network.add(branch, deviation, relu=True)
    if on_host:
        network.in_float("HardSigmoid", network.dequantized(), relu=False)
        network.convolution(4, (1, 1), (1, 1), (0, 0, 0, 0), relu=False)
    return network.model()


def small_image() -> bytes:
    """A program image of a matrix product."""
    config = PRESETS[CONFIG]
    load = isa.Load(memory=isa.Memory.INP, y_size=1, x_size=4, x_stride=4)
    uops = isa.Load(memory=isa.Memory.UOP, y_size=1, x_size=2, x_stride=2)
    gemm = isa.Gemm(uop_end=2, iter_out=2, iter_in=2, dst_factor_out=1, src_factor_in=1)
    stream = [load, uops, gemm, isa.Store(y_size=1, x_size=4, x_stride=4), isa.Finish()]
    image = ProgramImage.assemble(config, np.arange(4096, dtype=np.uint8), 2048, stream)
    file = io.BytesIO()
    arrays = {
        "config": np.array(config.to_json()),
        "dram": image.dram,
        "insn_addr": np.array(image.insn_addr, np.int64),
        "insn_count": np.array(image.insn_count, np.int64),
        "expected": image.dram,
        "origin": np.array(0, np.int64),
        "limits": np.array([2048, 0, 0, 0, 0]),
        "bases": np.zeros(len(isa.LIMITED), np.int64),
    }
    write_arrays(file, arrays, compressed=True)
    return file.getvalue()


def small_nest() -> bytes:
    text = io.StringIO()
    source = Path(__file__).parents[1] / "examples" / "schedules.py"
    with redirect_stdout(text):
        code = invoke(
            ["lower", f"{source}:vector_add", "--config", CONFIG, "--after", "copy_by_dma"]
        )
    assert code == 0, text.getvalue()
    return text.getvalue().encode()


def measured(network: Path) -> bytes:
    path = network.with_suffix(".measured")
    with redirect_stdout(io.StringIO()):
        code = invoke(["run", str(network), "--device", "estimate", "--json", str(path)])
    assert code == 0
    return path.read_bytes()


@cache
def kinds(folder: Path) -> dict[str, Kind]:
    """All kinds of files that commands read. Further files that the commands need are written to
    ``folder``.
    """
    models = tuple(small_model(on_host).SerializeToString() for on_host in (False, True))
    tflite = tuple(small_tflite(keeps_state) for keeps_state in (False, True))
    converted = read_model(tflite[1]).SerializeToString()
    compiled = [decoder_file(CONFIG)]
    for model in (*models, tflite[1]):
        file = io.BytesIO()
        write_network(compilation.compile(model, CONFIG).program, file)
        compiled.append(file.getvalue())
    sound = folder / "sound.vta"
    sound.write_bytes(compiled[1])
    inputs = with_arrays({"x": np.zeros((1, 4, 6, 6), np.float32)})
    raw = (flip_bits, move_bytes, cut_short)
    chosen = ("--config", CONFIG)
    reading = (
        ("run", "FILE", *chosen, "--check"),
        ("compile", "FILE", *chosen, "-o", "/dev/null"),
        ("lower", "FILE", *chosen),
        ("show", "FILE", *chosen),
    )
    return {
        "config": Kind(
            ".json",
            tuple(config.to_json().encode() for config in PRESETS.values()),
            (*raw, config_text, config_text, config_text),
            (("config", "FILE"), ("header", "--config", "FILE", "-o", "/dev/null")),
        ),
        "image": Kind(
            ".npz",
            (small_image(),),
            (*raw, some_array, some_array, array_header, program, program),
            (("replay", "FILE"), ("disasm", "FILE", "--uops")),
        ),
        "inputs": Kind(
            ".npz",
            (inputs,),
            (*raw, some_array, array_header),
            (("run", str(sound), "--inputs", "FILE"),),
        ),
        "model": Kind(
            ".onnx",
            (*models, converted),
            (*raw, any_model, any_model, any_model),
            reading,
        ),
        "tflite": Kind(
            ".tflite",
            tflite,
            (*raw, any_word, any_word, *(any_tflite,) * 4),
            reading,
        ),
        "compiled": Kind(
            ".vta",
            tuple(compiled),
            (*raw, some_array, array_header, *(compiled_network,) * 4),
            (("run", "FILE"), ("run", "FILE", "--device", "estimate", "--json", "/dev/null")),
        ),
        "measured": Kind(
            ".json",
            (measured(sound),),
            (*raw, config_text, config_text, config_text),
            (("compare", "FILE", "FILE", "--html", "/dev/null"),),
        ),
        "nest": Kind(
            ".txt",
            (small_nest(),),
            (flip_bits, move_bytes, *(lines_of_text,) * 4),
            (("lower", "FILE", *chosen, "--after", "copy_by_dma"),),
        ),
    }


# Runs.


def case(
    number: int, seed: int, folder: Path, only: str = ""
) -> tuple[bytes, str, tuple[str, ...]]:
    """The file of case ``number``, its suffix, and the command that reads it, of all kinds or
    ``only`` one."""
    random = Random(f"{seed} {number}")
    kind = random.choice([item for name, item in kinds(folder).items() if not only or name == only])
    data = random.choice(kind.changes)(random, random.choice(kind.seeds))
    return data, kind.suffix, random.choice(kind.commands)


def begun(number: int, seed: int, folder: Path, only: str = "") -> Run:
    """The run of a case, with its file written; the command has not started."""
    run = Run(number, *case(number, seed, folder, only), folder / f"{seed}-{number}")
    run.file.write_bytes(run.data)
    return run


def outcomes(
    numbers: Iterable[int], seed: int, folder: Path, jobs: int, only: str = ""
) -> Iterator[Outcome]:
    """Run cases, up to ``jobs`` at a time, each in its own process. The files of failing cases stay
    in ``folder``.
    """
    # No threads: forking a multithreaded process is unsafe.
    running: dict[int, Run] = {}
    for number in numbers:
        while len(running) >= jobs:
            yield _ended(running)
        run = begun(number, seed, folder, only)
        child = os.fork()
        if child == 0:
            _child(run.arguments, run.log)
        running[child] = run
    while running:
        yield _ended(running)


@dataclass(frozen=True)
class Run:
    number: int
    data: bytes
    suffix: str
    command: tuple[str, ...]
    place: Path

    @property
    def file(self) -> Path:
        return self.place.with_name(f"{self.place.name}{self.suffix}")

    @property
    def log(self) -> Path:
        return self.place.with_name(f"{self.place.name}.log")

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(str(self.file) if item == "FILE" else item for item in self.command)


def _ended(running: dict[int, Run]) -> Outcome:
    """The outcome of the next run that ends."""
    child, status, usage = os.wait3(0)
    run = running.pop(child)
    outcome = Outcome(
        run.number,
        run.arguments,
        os.waitstatus_to_exitcode(status),
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        run.log.read_text(errors="replace")[-2000:] if run.log.exists() else "",
    )
    run.log.unlink(missing_ok=True)
    if outcome.is_allowed:
        run.file.unlink()
    return outcome


def _child(arguments: tuple[str, ...], log: Path) -> None:
    code = 99
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        place = os.open(log, os.O_WRONLY | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(place, 2)
        code = invoke(arguments)
        sys.stderr.flush()
    finally:
        os._exit(code)


def prepare(folder: Path) -> None:
    """Do work shared by all runs once, so that a run measures only the work for its file."""
    for name, kind in kinds(folder).items():
        path = folder / f"sound-{name}{kind.suffix}"
        path.write_bytes(kind.seeds[-1])
        with open(os.devnull, "w") as nothing:
            before, sys.stdout = sys.stdout, nothing
            try:
                codes = [
                    invoke([str(path) if item == "FILE" else item for item in command])
                    for command in kind.commands
                ]
            finally:
                sys.stdout = before
        assert all(code in (0, 1) for code in codes), f"{name}: {codes}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", metavar="KIND", help="one kind of file")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args()
    started = perf_counter()
    os.environ["VTA_FILE_LIMIT"] = FILE_LIMIT
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        numbers = range(options.first, options.first + options.runs)
        found = list(outcomes(numbers, options.seed, folder, options.jobs, options.only))
    codes = Counter(outcome.code for outcome in found)
    print(f"{len(found):,} files in {perf_counter() - started:,.0f} s")
    print(", ".join(f"exit code {code}: {count:,}" for code, count in sorted(codes.items())))
    print(f"most processor time {max(outcome.seconds for outcome in found):.1f} s")
    print(f"most memory {max(outcome.megabytes for outcome in found):,.0f} MB")
    wrong = [outcome for outcome in found if not outcome.is_allowed]
    for outcome in wrong:
        print(
            f"\n{outcome.number}: vta {' '.join(outcome.arguments)}: exit code {outcome.code}, "
            f"{outcome.seconds:.1f} s, {outcome.megabytes:,.0f} MB\n{outcome.message}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
