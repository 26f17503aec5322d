"""Exports a compiled network as C sources: its memory, its steps, and the runtime for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.registers import IDENTITY, REGISTERS
from amaranth_vta.reference.header import header
from amaranth_vta.sw.runtime.network.factors import FactorBias, FactorWeights
from amaranth_vta.sw.runtime.network.network_program import (
    MoveWindows,
    NetworkProgram,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from amaranth_vta.sw.runtime.network.packing import Packing, Window
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import TileLayout, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.program import PlacedProgram

from .c_names import c_name, c_names, is_network_name
from .export_error import ExportError
from .host_calls import host_calls
from .host_operators import host_operators
from .host_tensors import HostTensors, c_type, size, strides_of
from .network_memory import NetworkMemory

_FOLDER = Path(__file__).parent
RUNTIME = ("vta_runtime.h", "vta_runtime.c")
_BYTES_PER_LINE = 20
# The packing window for tensors with unpacked pixels.
_PIXEL = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


def export(network: NetworkProgram, name: str = "network") -> dict[str, bytes]:
    """The files of the export, by name; the header, NAME.h, explains their use. Identifiers of the
    network, too, begin with ``name``.

    Raises `ExportError` if several machines share the network, if it has a block for several
    tokens, if the host would run operators that exported C does not have, if the machine holds
    scalars other than bytes, or if ``name`` is no prefix of identifiers.
    """
    if not is_network_name(name):
        raise ExportError(
            f"{name!r} cannot name a network in C: it takes letters, digits and underscores, with "
            f"a letter first, and does not begin with vta"
        )
    if network.machines > 1:
        raise ExportError(
            f"the network is compiled for {network.machines} machines, which share each image; "
            "exported C drives a single machine"
        )
    if network.block is not None:
        raise ExportError(
            f"the network is compiled for blocks of {network.tokens_per_block} tokens too; "
            "exported C runs a single token at a time: compile the decoder without --prefill"
        )
    if network.constants:
        name = next(iter(network.constants))
        raise ExportError(f"output {name} depends on no input: export the network without it")
    files = {file: (_FOLDER / file).read_text(encoding="utf-8") for file in RUNTIME}
    files["vta.h"] = header(network.config)
    writer = _Writer(network, name, files["vta_runtime.h"] + files["vta.h"])
    if not network.layer_count:
        raise ExportError(
            "no operator of the network runs on the machine: `vta show` says for each of them why"
        )
    files[f"{name}.h"] = writer.header()
    files[f"{name}.c"] = writer.source()
    return {file: text.encode() for file, text in files.items()}


class _Writer:
    def __init__(self, network: NetworkProgram, name: str, declared: str) -> None:
        """``declared`` is the text of the headers that the network's files include."""
        self._network = network
        self._name, self._macro = name, name.upper()
        self._memory = NetworkMemory(network)
        # Index of each stream of the program in the C table of streams.
        self._numbers = {stream: number for number, stream in enumerate(self._placed.streams)}
        self._launches = {launch.streams.start: launch for launch in network.launches}
        self._names = c_names([*network.inputs, *network.outputs], declared, name)
        hosts, constants = host_operators(
            [step for step in network.steps if isinstance(step, RunHost)]
        )
        read = {name for operators in hosts for item in operators for name in item.inputs}
        self._tensors = _tensors(network, self._names, self._memory, read, constants)
        self._tables: list[str] = []
        self._host_calls = iter(host_calls(hosts, self._tensors))
        self._steps = [line for step in network.steps for line in self._step(step)]
        self._steps += [self._tensors.copy(state.source, state.result) for state in network.states]

    @property
    def _placed(self) -> PlacedProgram:
        return self._memory.placed

    def header(self) -> str:
        network, name, macro = self._network, self._name, self._macro
        sizes = "".join(
            f"#define {macro}_{self._names[tensor].upper()}_SIZE {size(info)} /* {info} */\n"
            for tensor, info in {**network.inputs, **network.outputs}.items()
        )
        reset = f"""\
/* Sets the network's variables to their initial values, as {name}_init does. */
void {name}_reset(const vta_port *port);
"""
        return f"""\
/* A network for an amaranth-vta machine, made by `vta export`.
 *
 * Call {name}_init once, then {name}_run for each batch. Compile {name}.c and vta_runtime.c, which
 * is the same for all networks.
 */
#ifndef {macro}_H
#define {macro}_H

#include "vta_runtime.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* Size of `memory` of the port, in bytes. */
#define {macro}_MEMORY_BYTES {self._memory.size}
/* Elements of each tensor. */
{sizes}
/* Puts the network into memory. If the machine is not the one that it was compiled for, `wrong`
 * gets the name of the parameter that differs; it may be NULL. */
vta_result {name}_init(const vta_port *port, const char **wrong);
vta_result {name}_run(const vta_port *port, {self._arguments()});
{reset if self._memory.variables else ""}
#ifdef __cplusplus
}}
#endif

#endif
"""

    def source(self) -> str:
        network = self._network
        segments = list(self._memory.segments())
        data = "".join(
            _array(f"segment_{number}", values) for number, (_, values) in enumerate(segments)
        )
        rows = "".join(
            f"    {{{at}, {values.size}, segment_{number}}},\n"
            for number, (at, values) in enumerate(segments)
        )
        expectations = "".join(
            f'    {{"{name}", {REGISTERS[name].offset:#x}, {value}u}},\n'
            for name, value in _expected(network)
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
        reset, load_variables = "", ""
        if self._memory.variables:
            reset, load_variables = self._reset(), f"        {self._name}_reset(port);\n"
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
{"".join(self._tensors.definitions)}{"".join(self._tables)}{reset}
vta_result {self._name}_init(const vta_port *port, const char **wrong)
{{
    const vta_result result = vta_check(port, machine, sizeof machine / sizeof *machine, wrong);
    if (result == VTA_DONE) {{
        vta_load(port, {self._macro}_MEMORY_BYTES, segments, sizeof segments / sizeof *segments);
{load_variables}    }}
    return result;
}}

vta_result {self._name}_run(const vta_port *port, {self._arguments()})
{{
    vta_result result;
{steps}    return VTA_DONE;
}}
"""

    def _reset(self) -> str:
        """The function that sets the variables to their initial values."""
        data, rows = "", ""
        for number, (name, item) in enumerate(self._memory.variables.items()):
            values = "NULL"
            if item.initial.any():
                values = f"variable_{number}"
                data += _array(values, item.initial)
            rows += f"    {{{item.offset}, {item.initial.size}, {values}}}, /* {c_name(name)} */\n"
        return f"""\
{data}static const vta_segment variables[] = {{
{rows}}};

void {self._name}_reset(const vta_port *port)
{{
    vta_store(port, variables, sizeof variables / sizeof *variables);
}}
"""

    def _arguments(self) -> str:
        network = self._network
        inputs = [
            f"const {c_type(name, info)} *{self._names[name]}"
            for name, info in network.inputs.items()
        ]
        outputs = [
            f"{c_type(name, info)} *{self._names[name]}" for name, info in network.outputs.items()
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
                info, packing = self._tensors.types[operand.tensor], operand.packing
                if str(info.dtype) not in ("int8", "uint8"):
                    raise ExportError(
                        f"{operand.tensor} is {info}; exported C packs 8-bit tensors: quantize it "
                        f"to 8 bits"
                    )
                source, distances = self._tensors.to_pack(operand.tensor, operand.image)
                flip = info.dtype == np.uint8
                if isinstance(packing, FactorWeights | FactorBias):
                    function, table = self._factors(operand, packing, flip, distances)
                else:
                    function = "vta_pack"
                    image: tuple[int, ...] = operand.image
                    if packing is None:
                        image, distances = _in_fewest_tiles(operand, distances)
                    table = self._table(operand, image, packing, flip, distances)
                source = f"(const uint8_t *){source}"
                return [f"{function}({table}, {source}, {self._memory.at(buffer)});"]
            case WriteRows() | MoveWindows():
                caches = ", ".join(item.operand.tensor for item in self._network.kept[:1])
                raise ExportError(
                    f"{caches} is a cache to which runs append rows, which exported C "
                    f"cannot: make the cache an input and an output of the network, and append "
                    f"the rows in your program"
                )
            case ToHost(tensor, info, operand, buffer):
                flip, distances = info.dtype == np.uint8, strides_of(operand.image)
                table = self._table(operand, operand.image, None, flip, distances)
                target = f"(uint8_t *){self._tensors.pointer(tensor)}"
                return [f"vta_unpack({table}, {self._memory.at(buffer)}, {target});"]
            case RunHost():
                return next(self._host_calls)

    def _table(
        self,
        operand: TiledTensor,
        image: tuple[int, ...],
        packing: Packing | None,
        flip: bool,
        distances: tuple[int, ...],
    ) -> str:
        layout = _bytes_of(operand, "int8")
        window, pad = (packing.window, packing.value) if packing is not None else (_PIXEL, 0)
        values = [*image, layout.batch, layout.block]
        parts = [window.kernel, window.strides, window.dilations, window.pads, distances]
        texts = [*map(str, values), *("{" + ", ".join(map(str, part)) + "}" for part in parts)]
        name = f"layout_{len(self._tables)}"
        rest = f"{pad}, {0x80 if flip else 0}"
        self._tables.append(f"static const vta_tensor {name} = {{{', '.join(texts)}, {rest}}};\n")
        return f"&{name}"

    def _factors(
        self,
        operand: TiledTensor,
        packing: FactorWeights | FactorBias,
        flip: bool,
        distances: tuple[int, ...],
    ) -> tuple[str, str]:
        """The function that packs a computed second factor, and its first argument."""
        groups, inputs, outputs, _ = operand.image
        of_weights = isinstance(packing, FactorWeights)
        layout = _bytes_of(operand, "int8" if of_weights else "int32")
        padded = tiles(outputs, packing.block) * packing.block
        name, rest = f"layout_{len(self._tables)}", "NULL"
        if isinstance(packing, FactorWeights):
            function, own = "vta_pack_factor", [packing.terms, 0, 0, 0, 0]
        else:
            function = "vta_pack_factor_bias"
            rest = self._tensors.table("int32_t", packing.rest) if packing.rest else rest
            own = [0, packing.batch, -packing.first_zero_point, packing.added, len(packing.rest)]
        sizes = [groups, inputs, outputs, padded, layout.batch, layout.block]
        sides = "{" + ", ".join(map(str, distances[:3])) + "}"
        values = [*sizes, sides, packing.zero_point, 0x80 if flip else 0, *own, rest]
        self._tables.append(
            f"static const vta_factor {name} = {{{', '.join(map(str, values))}}};\n"
        )
        return function, f"&{name}"


def _bytes_of(operand: TiledTensor, dtype: str) -> TileLayout:
    """The layout of ``operand``, of whole scalars of ``dtype``; raises `ExportError` otherwise."""
    layout = operand.layout
    if layout.dtype != dtype or layout.parts > 1:
        raise ExportError(
            f"the machine holds {operand.tensor} in {layout}, not plain {dtype}: compile the "
            f"network for a machine with 8-bit operands"
        )
    return layout


def _in_fewest_tiles(
    operand: TiledTensor, distances: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The image of ``operand`` and its ``distances``. Channels of a single pixel that fill whole
    tiles become pixels of one tile of channels, with the same bytes: `vta_pack` has a fixed cost
    per tile of channels.
    """
    (n, channels, *pixels), block = operand.image, operand.layout.block
    if pixels != [1, 1] or channels % block:
        return operand.image, distances
    return (n, block, 1, channels // block), (*distances[:2], 0, block * distances[1])


def _tensors(
    network: NetworkProgram,
    names: Mapping[str, str],
    memory: NetworkMemory,
    read: Set[str],
    constants: dict[str, npt.NDArray[Any]],
) -> HostTensors:
    """The tensors on the host's side, of which the host's operators ``read`` some."""
    types = {**network.inputs, **network.outputs}
    for name, values in constants.items():
        types[name] = TensorType(values.dtype, values.shape)
    for step in network.steps:
        if isinstance(step, ToHost):
            types[step.tensor] = step.type
    for state in network.states:
        types[state.source] = TensorType(state.initial.dtype, state.initial.shape)
    results = {state.result for state in network.states}
    packed = {
        step.operand.tensor: step.operand.image
        for step in network.steps
        if isinstance(step, ToMachine)
        and step.operand.tensor not in {*read, *results, *network.outputs}
    }
    places = {state.source: memory.at_variable(state.source) for state in network.states}
    return HostTensors(types, names, places, constants, packed)


def _expected(network: NetworkProgram) -> Iterator[tuple[str, int]]:
    yield "IDENTITY", IDENTITY
    for item in fields(network.config):
        yield item.name.upper(), int(getattr(network.config, item.name))


def _array(name: str, values: npt.NDArray[np.uint8]) -> str:
    """The definition of data that `vta_load` or `vta_store` copies."""
    numbers = values.tolist()
    lines = "".join(
        "    " + ", ".join(map(str, numbers[at : at + _BYTES_PER_LINE])) + ",\n"
        for at in range(0, len(numbers), _BYTES_PER_LINE)
    )
    return f"VTA_ALIGNED static const uint8_t {name}[] = {{\n{lines}}};\n"
