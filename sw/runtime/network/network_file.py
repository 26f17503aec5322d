"""Files of compiled networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.archive import check_config, load_archive, save_archive, write_archive
from amaranth_vta.sw.runtime.program import Program
from amaranth_vta.sw.runtime.work import Work

from .factors import FactorBias, FactorWeights
from .network_program import (
    KeptTensor,
    KnownRuns,
    Launch,
    MoveWindows,
    NetworkProgram,
    OnHost,
    RunHost,
    RunLayer,
    State,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from .packing import Packing, Window
from .shared_arrays import second_arrays, share
from .tensor_type import TensorType
from .tile_layout import Array, TileLayout
from .tiled_tensor import HostPacking, TiledTensor
from .validation import validate, validate_memory

KIND = "network"
# Array names, distinct from those of the program.
_MODEL, _CONSTANT, _STATE, _KNOWN = "model_{}", "constant_{}", "state_{}", "known_{}"


def save_network(network: NetworkProgram, path: str | Path) -> None:
    """Write a file for `load_network`, atomically; raises `ProgramError`."""
    save_archive(path, KIND, *_parts(network))


def write_network(network: NetworkProgram, file: IO[bytes]) -> None:
    """Write the contents of such a file to an open file."""
    write_archive(file, KIND, *_parts(network))


def load_network(path: str | Path, config: Config | None = None) -> NetworkProgram:
    """Load a network from a file.

    Raises `ProgramError` if the file is not a network, is damaged, has another format version, or
    was compiled for another machine than ``config``.
    """
    network = load_archive(path, KIND, _from_parts)
    if config is not None:
        check_config(str(path), network.config, config)
    return network


def _parts(network: NetworkProgram) -> tuple[dict[str, Any], dict[str, Array]]:
    header, arrays = _parts_of_one(network)
    if network.block is not None:
        # Releases that do not know this key run single tokens.
        block, of_block = _parts_of_one(network.block)
        del block["config"]
        pieces, added = share(arrays, of_block, lambda name: name.startswith(_MODEL.format("")))
        header["block"] = {**block, "pieces": pieces}
        arrays |= added
    return header, arrays


def _parts_of_one(network: NetworkProgram) -> tuple[dict[str, Any], dict[str, Array]]:
    header, arrays = network.program.parts()
    models = [step.model for step in network.steps if isinstance(step, RunHost)]
    for index, model in enumerate(models):
        arrays[_MODEL.format(index)] = np.frombuffer(model, np.uint8)
    for index, value in enumerate(_known_arrays(network)):
        arrays[_KNOWN.format(index)] = value
    for index, value in enumerate(network.constants.values()):
        arrays[_CONSTANT.format(index)] = value
    for index, state in enumerate(network.states):
        arrays[_STATE.format(index)] = state.initial
    header |= {
        "steps": [_step_to_json(step) for step in network.steps],
        "inputs": {name: _type_to_json(info) for name, info in network.inputs.items()},
        "outputs": {name: _type_to_json(info) for name, info in network.outputs.items()},
        "constants": list(network.constants),
        "open_batch": network.open_batch,
        "launches": [
            {
                "stream": launch.stream,
                "streams": [launch.streams.start, launch.streams.stop],
                "ends": list(launch.ends),
            }
            for launch in network.launches
        ],
        "states": [_state_to_json(item) for item in network.states],
        "kept": [{"operand": asdict(item.operand), "buffer": item.buffer} for item in network.kept],
        **({"machines": network.machines} if network.machines > 1 else {}),
    }
    return header, arrays


def _known_arrays(network: NetworkProgram) -> Iterator[Array]:
    for step in network.steps:
        if isinstance(step, RunHost) and step.known is not None:
            yield from step.known.inputs.values()
            yield from step.known.outputs.values()


def _state_to_json(state: State) -> dict[str, Any]:
    places = {"places": state.places} if state.places else {}
    return {"source": state.source, "result": state.result, **places}


def _from_parts(header: dict[str, Any], arrays: Mapping[str, Array]) -> NetworkProgram:
    network = _from_parts_of_one(header, arrays)
    if "block" not in header:
        return network
    block = {**header["block"], "config": header["config"]}
    result = network.with_block(_from_parts_of_one(block, second_arrays(block["pieces"], arrays)))
    validate_memory(result)
    return result


def _from_parts_of_one(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> NetworkProgram:
    program = Program.from_parts(header, arrays)
    models = iter(
        [
            arrays[_MODEL.format(index)].tobytes()
            for index in range(sum(item["kind"] == "host" for item in header["steps"]))
        ]
    )
    known = (arrays[_KNOWN.format(index)] for index in count())
    network = NetworkProgram(
        program=program,
        steps=tuple(_step(item, program.config, models, known) for item in header["steps"]),
        inputs={name: _type(item) for name, item in header["inputs"].items()},
        outputs={name: _type(item) for name, item in header["outputs"].items()},
        constants={
            name: arrays[_CONSTANT.format(index)] for index, name in enumerate(header["constants"])
        },
        open_batch=header["open_batch"],
        # Without launches, as in files of the first releases, each layer is a launch.
        launches=tuple(
            Launch(item["stream"], range(*item["streams"]), tuple(item["ends"]))
            for item in header.get("launches", ())
        ),
        states=tuple(
            State(
                item["source"],
                item["result"],
                arrays[_STATE.format(index)],
                item.get("places", 0),
            )
            for index, item in enumerate(header.get("states", ()))
        ),
        kept=tuple(
            KeptTensor(_operand(item["operand"]), item["buffer"]) for item in header.get("kept", ())
        ),
        machines=header.get("machines", 1),
    )
    validate(network)
    return network


def _step_to_json(step: Step) -> dict[str, Any]:
    match step:
        case RunHost():
            operators = [asdict(item) for item in step.operators]
            inputs, outputs = list(step.inputs), list(step.outputs)
            host: dict[str, Any] = {"kind": "host", "operators": operators}
            host |= {"inputs": inputs, "outputs": outputs}
            if step.known is None:
                return host
            # Releases that do not know this key run the operators.
            of_known = {"inputs": list(step.known.inputs), "outputs": list(step.known.outputs)}
            return host | {"known": of_known}
        case RunLayer():
            work = {name: n for name, n in vars(step.work).items() if name != "config"}
            streams = [step.streams.start, step.streams.stop]
            names = {"name": step.name, "operator": step.operator}
            layer = {"kind": "layer", **names, "macs": step.macs, "streams": streams, "work": work}
            if not step.beside:
                return layer
            beside = [[streams.start, streams.stop] for streams in step.beside]
            return layer | {"kind": "shared_layer", "beside": beside}
        case ToMachine():
            return {"kind": "to_machine", "operand": asdict(step.operand), "buffer": step.buffer}
        case WriteRows():
            return {"kind": "write_rows", **asdict(step)}
        case MoveWindows():
            return {"kind": "move_windows", **asdict(step)}
        case ToHost():
            return {
                "kind": "to_host",
                "tensor": step.tensor,
                "type": _type_to_json(step.type),
                "operand": asdict(step.operand),
                "buffer": step.buffer,
            }


def _step(
    item: Mapping[str, Any], config: Config, models: Iterator[bytes], known: Iterator[Array]
) -> Step:
    match item["kind"]:
        case "host":
            return RunHost(
                model=next(models),
                inputs=tuple(item["inputs"]),
                outputs=tuple(item["outputs"]),
                operators=tuple(OnHost(**operator) for operator in item["operators"]),
                known=_known(item["known"], known) if "known" in item else None,
            )
        case "layer" | "shared_layer":
            return RunLayer(
                name=item["name"],
                operator=item["operator"],
                macs=item["macs"],
                streams=range(*item["streams"]),
                work=Work(config, **item["work"]),
                beside=tuple(range(*streams) for streams in item.get("beside", ())),
            )
        case "to_machine":
            return ToMachine(_operand(item["operand"]), item["buffer"])
        case "to_host":
            operand = _operand(item["operand"])
            return ToHost(item["tensor"], _type(item["type"]), operand, item["buffer"])
        case "write_rows":
            names = {name: item[name] for name in ("buffer", "rows", "places", "axis")}
            return WriteRows(_operand(item["operand"]), **names, stacked=item.get("stacked", 0))
        case "move_windows":
            return MoveWindows(tuple(item["windows"]), item["place"], item["count"])
    raise ValueError(f"{item['kind']} is not a kind of step")


def _known(names: Mapping[str, Sequence[str]], arrays: Iterator[Array]) -> KnownRuns:
    """The known runs of a host step, with the next ``arrays``."""
    inputs, outputs = (
        {name: next(arrays) for name in names[which]} for which in ("inputs", "outputs")
    )
    return KnownRuns(inputs, outputs)


def _operand(item: Mapping[str, Any]) -> TiledTensor:
    packing = None if item["packing"] is None else _packing(item["packing"])
    n, c, h, w = item["image"]
    return TiledTensor(item["tensor"], (n, c, h, w), TileLayout(**item["layout"]), packing)


def _packing(item: Mapping[str, Any]) -> HostPacking:
    """The packing; its kind follows from its keys."""
    if "window" in item:
        window = {name: tuple(values) for name, values in item["window"].items()}
        return Packing(Window(**window), item["value"])
    if "terms" in item:
        return FactorWeights(**item)
    return FactorBias(**{**item, "rest": tuple(item["rest"])})


def _type_to_json(info: TensorType) -> dict[str, Any]:
    if info.member is not None:
        return {"sequence": info.member.name}
    return {"dtype": info.dtype.name, "shape": info.shape}


def _type(item: Mapping[str, Any]) -> TensorType:
    if "sequence" in item:
        return TensorType.sequence(np.dtype(item["sequence"]))
    shape = item["shape"]
    return TensorType(np.dtype(item["dtype"]), None if shape is None else tuple(shape))
