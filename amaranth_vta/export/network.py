"""Exports a compiled network as C sources: its memory, its steps, and the runtime for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.registers import IDENTITY, REGISTERS
from amaranth_vta.reference.header import header
from amaranth_vta.sw.runtime.network.network_program import (
    NetworkProgram,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
)
from amaranth_vta.sw.runtime.network.packing import Packing, Window
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.program import PlacedProgram

from .c_names import c_name, c_names, is_network_name

_FOLDER = Path(__file__).parent
RUNTIME = ("vta_runtime.h", "vta_runtime.c")
_C_TYPES = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t"}
_BYTES_PER_LINE = 20
# The packing window for tensors with unpacked pixels.
_PIXEL = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
# Runs of more zeros than this are omitted: `vta_load` clears the memory.
_ZEROS = 256


class ExportError(VtaError, ValueError):
    """A network cannot be exported; the message says which part of it and why."""


def export(network: NetworkProgram, name: str = "network") -> dict[str, bytes]:
    """The files of the export, by name; the header, NAME.h, explains their use. Identifiers of the
    network, too, begin with ``name``.

    Raises `ExportError` if the host would have to do more than quantize and dequantize, if the
    machine holds scalars other than bytes, or if ``name`` is no prefix of identifiers.
    """
    if not is_network_name(name):
        raise ExportError(
            f"{name!r} cannot name a network in C: it takes letters, digits and underscores, with "
            f"a letter first, and does not begin with vta"
        )
    if network.states:
        raise ExportError(
            f"{network.states[0].source} is kept from run to run, which exported code does not do"
        )
    if network.constants:
        raise ExportError(f"tensor {next(iter(network.constants))} depends on no input")
    files = {file: (_FOLDER / file).read_text(encoding="utf-8") for file in RUNTIME}
    files["vta.h"] = header(network.config)
    writer = _Writer(network, name, files["vta_runtime.h"] + files["vta.h"])
    files[f"{name}.h"] = writer.header()
    files[f"{name}.c"] = writer.source()
    return {file: text.encode() for file, text in files.items()}


@dataclass(frozen=True)
class _Quantization:
    """A host step: quantization or dequantization with one scale and one zero point."""

    operator: str
    scale: float
    zero: int
    dtype: str


class _Writer:
    def __init__(self, network: NetworkProgram, name: str, declared: str) -> None:
        """``declared`` is the text of the headers that the network's files include."""
        self._network = network
        self._name, self._macro = name, name.upper()
        launched = network.launched("network")
        self._memory, self._placed = network.program.placed_at_zero(launched)
        # Index of each stream of the program in the C table of streams.
        self._numbers = {stream: number for number, stream in enumerate(self._placed.streams)}
        self._launches = {launch.streams.start: launch for launch in network.launches}
        # By host tensor: its type, and a C expression for a pointer to it.
        self._types: dict[str, TensorType] = dict(network.inputs)
        self._types |= network.outputs
        self._names = c_names([*network.inputs, *network.outputs], declared, name)
        self._pointers = dict(self._names)
        self._statics: list[str] = []
        self._tables: list[str] = []
        self._steps = [line for step in network.steps for line in self._step(step)]

    def header(self) -> str:
        network, name, macro = self._network, self._name, self._macro
        sizes = "".join(
            f"#define {macro}_{self._names[tensor].upper()}_SIZE {_size(info)} /* {info} */\n"
            for tensor, info in {**network.inputs, **network.outputs}.items()
        )
        return f"""\
/* A network for an amaranth-vta machine, made by `vta export`.
 *
 * {name}_init once, then {name}_run for each batch. They return what `vta_result` says. Compile
 * {name}.c and vta_runtime.c, which is the same for all networks.
 */
#ifndef {macro}_H
#define {macro}_H

#include "vta_runtime.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* Bytes behind `memory` of the port. */
#define {macro}_MEMORY_BYTES {self._memory.size}
/* Elements of each tensor. */
{sizes}
/* Puts the network into memory. If the machine is not the one that it was compiled for, `wrong`
 * gets the name of the parameter that differs; it may be NULL. */
vta_result {name}_init(const vta_port *port, const char **wrong);
vta_result {name}_run(const vta_port *port, {self._arguments()});

#ifdef __cplusplus
}}
#endif

#endif
"""

    def source(self) -> str:
        network = self._network
        segments = list(_segments(self._memory))
        data = "".join(
            f"static const uint8_t segment_{number}[] = {{\n{_bytes(values)}}};\n"
            for number, (_, values) in enumerate(segments)
        )
        rows = "".join(
            f"    {{{at}, {values.size}, segment_{number}}},\n"
            for number, (at, values) in enumerate(segments)
        )
        expectations = "".join(
            f'    {{"{name}", {register.offset:#x}, {value}u}},\n'
            for name, value in _expected(network)
            for register in (REGISTERS[name],)
        )
        streams = "".join(
            f"    {{{address}, {len(words)}}},\n"
            for address, words in self._placed.streams.values()
        )
        limits = ", ".join(
            f"{self._macro}_MEMORY_BYTES / {network.config.memory(memory).element_bytes}"
            for memory in isa.LIMITED
        )
        steps = "".join(f"    {line}\n" for line in self._steps)
        return f"""\
#include "{self._name}.h"

#include <stddef.h>

{data}
static const vta_segment segments[] = {{
{rows}}};
static const vta_expectation machine[] = {{
{expectations}}};
static const vta_stream streams[] = {{
{streams}}};
static const vta_limits limits = {{{limits}}};
{"".join(self._tables)}{"".join(self._statics)}
vta_result {self._name}_init(const vta_port *port, const char **wrong)
{{
    const vta_result result = vta_check(port, machine, sizeof machine / sizeof *machine, wrong);
    if (result == VTA_DONE)
        vta_load(port, {self._macro}_MEMORY_BYTES, segments, sizeof segments / sizeof *segments);
    return result;
}}

vta_result {self._name}_run(const vta_port *port, {self._arguments()})
{{
    vta_result result;
{steps}    return VTA_DONE;
}}
"""

    def _arguments(self) -> str:
        network = self._network
        inputs = [
            f"const {_c_type(name, info)} *{self._names[name]}"
            for name, info in network.inputs.items()
        ]
        outputs = [
            f"{_c_type(name, info)} *{self._names[name]}" for name, info in network.outputs.items()
        ]
        return ", ".join([*inputs, *outputs])

    def _step(self, step: Step) -> list[str]:
        match step:
            case RunLayer():
                first, count, name = step.streams.start, len(step.streams), c_name(step.name)
                if (launch := self._launches.get(first)) is not None:
                    first, count, name = launch.stream, 1, f"{name} and {len(launch.ends) - 1} more"
                elif first not in self._numbers:
                    return []  # part of an earlier launch
                first = self._numbers[first]
                return [
                    f"result = vta_run(port, &limits, streams + {first}, {count}); /* {name} */",
                    "if (result != VTA_DONE)",
                    "    return result;",
                ]
            case ToMachine(operand, buffer):
                source = self._pointer(operand.tensor)
                flip = self._types[operand.tensor].dtype == np.uint8
                packing = operand.packing
                if packing is not None and not isinstance(packing, Packing):
                    raise ExportError(
                        f"{operand.tensor} is a second factor computed by the network, which "
                        f"exported C cannot pack"
                    )
                table = self._table(operand, packing, flip)
                return [f"vta_pack({table}, (const uint8_t *){source}, {self._at(buffer)});"]
            case ToHost(tensor, info, operand, buffer):
                _c_type(tensor, info)
                self._types[tensor] = info
                table = self._table(operand, None, info.dtype == np.uint8)
                return [
                    f"vta_unpack({table}, {self._at(buffer)}, (uint8_t *){self._pointer(tensor)});"
                ]
            case RunHost():
                return self._quantization(step)

    def _quantization(self, step: RunHost) -> list[str]:
        found = _quantization_of(step)
        (source,), (target,) = step.inputs, step.outputs
        info, low = self._types[source], -128 if found.dtype == "int8" else 0
        quantizes = found.operator == "QuantizeLinear"
        dtype = np.dtype(found.dtype if quantizes else "float32")
        self._types[target] = TensorType(dtype, info.shape)
        function = "vta_quantize" if quantizes else "vta_dequantize"
        types = ("const float *", "uint8_t *") if quantizes else ("const uint8_t *", "float *")
        pointers = [
            f"({kind}){self._pointer(name)}"
            for kind, name in zip(types, (source, target), strict=True)
        ]
        constants = f"{_size(info)}, {found.scale.hex()}f, {found.zero}, {low}"
        return [f"{function}({', '.join(pointers)}, {constants});"]

    def _pointer(self, tensor: str) -> str:
        """The C expression for a pointer to a host tensor; a static array unless it is an input or
        an output.
        """
        if tensor not in self._pointers:
            name = self._pointers[tensor] = f"tensor_{len(self._statics)}"
            info = self._types[tensor]
            self._statics.append(f"static {_c_type(tensor, info)} {name}[{_size(info)}];\n")
        return self._pointers[tensor]

    def _at(self, buffer: str) -> str:
        return f"port->memory + {_address(self._placed, buffer)}"

    def _table(self, operand: TiledTensor, packing: Packing | None, flip: bool) -> str:
        layout = operand.layout
        if layout.dtype != "int8":
            raise ExportError(
                f"the machine holds {operand.tensor} as {layout.dtype}; only int8 can be exported"
            )
        window, pad = (packing.window, packing.value) if packing is not None else (_PIXEL, 0)
        values = [*operand.image, layout.batch, layout.block]
        parts = [window.kernel, window.strides, window.dilations, window.pads]
        texts = [*map(str, values), *("{" + ", ".join(map(str, part)) + "}" for part in parts)]
        name = f"layout_{len(self._tables)}"
        rest = f"{pad}, {0x80 if flip else 0}"
        self._tables.append(f"static const vta_tensor {name} = {{{', '.join(texts)}, {rest}}};\n")
        return f"&{name}"


def _quantization_of(step: RunHost) -> _Quantization:
    """The quantization of a step; raises `ExportError` for any other step."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(step.model).graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    if len(graph.node) == 1 and graph.node[0].op_type in ("QuantizeLinear", "DequantizeLinear"):
        node = graph.node[0]
        scale, zero = (constants.get(name) for name in (*node.input[1:3], "", "")[:2])
        if scale is not None and zero is not None and scale.size == zero.size == 1:
            dtype = str(zero.dtype)
            if dtype in ("int8", "uint8") and scale.dtype == np.float32:
                return _Quantization(node.op_type, float(scale.item()), int(zero.item()), dtype)
    first = step.operators[0]
    raise ExportError(
        f"{first.operator} {first.name} runs on the host; exported C can only quantize and "
        f"dequantize there, with one scale and zero point per tensor"
    )


def _expected(network: NetworkProgram) -> Iterator[tuple[str, int]]:
    yield "IDENTITY", IDENTITY
    for item in fields(network.config):
        yield item.name.upper(), int(getattr(network.config, item.name))


def _segments(memory: npt.NDArray[np.uint8]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The non-zero parts of a memory, each with its address."""
    (used,) = np.nonzero(memory)
    if not used.size:
        return
    gaps = np.flatnonzero(np.diff(used) > _ZEROS)
    for first, last in zip((0, *(gaps + 1)), (*gaps, used.size - 1), strict=True):
        yield int(used[first]), memory[used[first] : used[last] + 1]


def _bytes(values: npt.NDArray[np.uint8]) -> str:
    numbers = values.tolist()
    return "".join(
        "    " + ", ".join(map(str, numbers[at : at + _BYTES_PER_LINE])) + ",\n"
        for at in range(0, len(numbers), _BYTES_PER_LINE)
    )


def _address(placed: PlacedProgram, buffer: str) -> int:
    return placed.buffer(buffer).address


def _c_type(name: str, info: TensorType) -> str:
    if str(info.dtype) not in _C_TYPES or info.shape is None:
        raise ExportError(f"{name} is {info}; exported C supports {', '.join(_C_TYPES)}")
    return _C_TYPES[str(info.dtype)]


def _size(info: TensorType) -> int:
    return prod(info.shape or ())
