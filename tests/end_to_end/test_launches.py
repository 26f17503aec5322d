"""Layers in one launch: the same results as one launch per layer, ordered by tokens, and faster."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import amaranth_vta as vta
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.archive import write_archive
from amaranth_vta.sw.runtime.device import Fault, RunResult
from amaranth_vta.sw.runtime.launches.join import Joiner
from amaranth_vta.sw.runtime.launches.scratchpad_offsets import ScratchpadOffsets
from amaranth_vta.sw.runtime.network.network_file import KIND, _parts
from amaranth_vta.sw.runtime.network.network_program import Launch, NetworkProgram
from amaranth_vta.sw.runtime.program import Program
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault
from amaranth_vta.sw.runtime.stream import POP, PUSH, Stream
from tests.support.random_networks import Layer, QuantizedNetwork, residual_network

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"


def small_network() -> QuantizedNetwork:
    """A network with overlapping rows, a stride, and a layer whose tiles differ from its
    predecessor's.
    """
    network = QuantizedNetwork(3, "qdq", np.int8, (8, 9, 7), steady=True)
    for layer in (Layer(12, 3), Layer(8, 1), Layer(16, 3, 2)):
        network.layer(layer)
    return network


def compiled(config: str) -> NetworkProgram:
    """A compiled network; it runs entirely on machines that support its scales."""
    extended = PRESETS[config].requantize
    program = vta.compile(small_network().model() if extended else DIGITS, config).program
    assert all(len(launch.ends) > 1 for launch in program.launches)
    assert program.launches
    return program


def memory_after(
    program: Program, streams: list[int], device: FunctionalDevice
) -> npt.NDArray[np.uint8]:
    """Memory after running ``streams`` on random activations; no access depends on their values."""
    chosen = sorted({*streams, *range(len(program.streams))})
    placed = program.place(Runtime(device), chosen)
    random = np.random.default_rng(5)
    for buffer in program.buffers:
        if buffer.role != "constant":
            placed.buffer(buffer.name).write(random.integers(0, 256, buffer.size, np.uint8))
    for stream in streams:
        placed.run_one(stream)
    return device.read(0, device.memory_bytes)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "pynq-extended"])
@pytest.mark.parametrize("order", ["program", "last:load", "last:store", "random:3"])
def test_memory_is_that_of_a_launch_per_layer(config: str, order: str) -> None:
    network = compiled(config)
    size = network.program.placed_bytes()
    for launch in network.launches:
        alone = memory_after(
            network.program, list(launch.streams), FunctionalDevice(network.config, size)
        )
        device = FunctionalDevice(
            network.config,
            size,
            order,
            report_races=True,
            report_false_claims=True,
            report_uninitialized=True,
        )
        joined = memory_after(network.program, [launch.stream], device)
        assert (joined == alone).all()
        assert not device.races
        assert not device.false_claims
        assert not device.uninitialized_reads


def test_each_stream_of_a_layer_stands_alone() -> None:
    network = compiled("tiny-extended")
    for stream in network.launches[0].streams:
        device = FunctionalDevice(
            network.config, network.program.placed_bytes(), report_uninitialized=True
        )
        memory_after(network.program, [stream], device)
        assert not device.uninitialized_reads


def test_weights_of_a_layer_lie_behind_those_of_the_one_before() -> None:
    network = compiled("pynq-extended")
    instructions = isa.instruction_set(network.config)
    end = 0
    for stream in network.launches[0].streams:
        words = network.program.streams[stream].words.tolist()
        decoded = [instructions.decode(high << 64 | low) for low, high in words]
        loads = [i for i in decoded if isinstance(i, isa.Load) and i.memory == isa.Memory.WGT]
        assert min(load.sram_base for load in loads) == end
        end = max(load.sram_base + load.elements for load in loads)


def test_a_layer_that_does_not_fit_behind_the_one_before_is_at_the_beginning() -> None:
    inp, wgt = isa.Memory.INP, isa.Memory.WGT
    config = PRESETS["tiny"]
    offsets, half = ScratchpadOffsets(config), config.inp.depth // 2
    assert offsets.next({inp: half, wgt: 0}) == {inp: 0, wgt: 0}
    assert offsets.next({inp: half, wgt: 3}) == {inp: half, wgt: 0}
    assert offsets.next({inp: 1, wgt: config.wgt.depth - 3}) == {inp: 0, wgt: 3}
    assert offsets.next({inp: 1, wgt: 1}) == {inp: 1, wgt: 0}


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "small-buffers"])
def test_what_nothing_earlier_concerns_is_joined_as_if_followed_one_by_one(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = PRESETS.get(config) or replace(PRESETS["tiny-extended"], log_uop_buff_size=6)
    quantized = small_network()
    for layer in (Layer(16, 3), Layer(16, 3)):
        quantized.layer(layer)
    model = quantized.model() if machine.requantize else DIGITS

    instructions = isa.instruction_set(machine)

    def joined() -> list[list[int]]:
        """Per launch, the instructions of each module in order: loads come earlier one by one."""
        # A custom pass keeps the network out of the cache.
        program = vta.compile(model, machine, passes=[("after fold_loops", lambda n, _: n)]).program
        streams = [program.program.streams[launch.stream] for launch in program.launches]
        return [
            sorted(
                (int(low) | int(high) << 64 for low, high in stream.words.tolist()),
                key=lambda bits: isa.module_of(instructions.decode(bits)),
            )
            for stream in streams
        ]

    appended: list[int] = []
    append = Joiner._append_unchanged

    def noted(self: Joiner, part: Stream, *rest: Any) -> None:
        appended.append(len(part.words))
        append(self, part, *rest)

    monkeypatch.setattr(Joiner, "_append_unchanged", noted)
    found = joined()
    assert len(appended) >= 3
    monkeypatch.setattr(Joiner, "_is_conflict_free", lambda _: False)
    assert joined() == found


def tokens_between_layers(network: NetworkProgram, launch: Launch) -> Iterator[tuple[int, ...]]:
    """For each token between two layers: the instruction that pushes it with its flag, and the
    instruction that pops it with its flag.
    """
    words = network.program.streams[launch.stream].words
    instructions = [
        isa.instruction_set(network.config).decode(int(low) | int(high) << 64)
        for low, high in words.tolist()
    ]
    for giver, taker in isa.TOKEN_QUEUES:
        pushes, pops = (
            [
                number
                for number, instruction in enumerate(instructions)
                if isa.module_of(instruction) is module and getattr(instruction, f"{action}_{side}")
            ]
            for module, other, action in ((giver, taker, "push"), (taker, giver, "pop"))
            for side, neighbour in isa.neighbours(module).items()
            if neighbour is other
        )
        for push, pop in zip(pushes, pops, strict=True):
            layers = np.searchsorted(launch.ends, (push, pop), side="right")
            if layers[0] != layers[1]:
                yield push, PUSH[giver, taker], pop, POP[giver, taker]


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_a_token_less_between_layers_is_a_race(config: str) -> None:
    network = compiled(config)
    (launch,) = network.launches
    found = list(tokens_between_layers(network, launch))
    assert len(found) >= len(launch.ends) - 1
    stream = network.program.streams[launch.stream]
    for push, given, pop, taken in found:
        words = stream.words.copy()
        words[push, 0] &= np.uint64(~given & (1 << 64) - 1)
        words[pop, 0] &= np.uint64(~taken & (1 << 64) - 1)
        streams = [*network.program.streams]
        streams[launch.stream] = replace(stream, words=words)
        device = FunctionalDevice(network.config, network.program.placed_bytes(), report_races=True)
        memory_after(replace(network.program, streams=tuple(streams)), [launch.stream], device)
        assert device.races, (push, pop)


def test_cycles_of_layers_add_up_and_are_fewer_than_in_launches_of_their_own() -> None:
    model = residual_network(np.int8, (3, 32, 32), [(8, 1), (8, 1)], 5).model()
    cycles: dict[tuple[str, str], list[int]] = {}
    for device in ("rtl", "estimate"):
        for launch in ("layer", "network"):
            with vta.Session(model, "tiny-extended", device, "ddr", launch=launch) as session:
                report = session.check({"x": np.zeros((1, 3, 32, 32), np.float32)})
                assert report.ok
                layers = [layer for layer in session.layers if layer.placed_on == "machine"]
                counts = cycles[device, launch] = [layer.cycles or 0 for layer in layers]
                assert all(counts)
                assert sum(counts) == session.cycles
    assert sum(cycles["rtl", "network"]) < sum(cycles["rtl", "layer"])
    for counted, estimated in zip(
        cycles["rtl", "network"], cycles["estimate", "network"], strict=True
    ):
        assert abs(counted - estimated) < 0.02 * counted + 20


def launch_reports(config: str, device: str) -> dict[str, dict[str, Any]]:
    """The reports of the digits network for each kind of launch."""
    with np.load(DIGITS.with_name("images.npz")) as file:
        inputs = {"image": file["image"][:8]}
    reports = {}
    for launch in ("layer", "network"):
        with vta.Session(DIGITS, config, device, "ddr", launch=launch, images=8) as session:
            session.run(inputs)
            reports[launch] = session.report()
    return reports


@pytest.mark.parametrize(
    ("config", "device"), [("tiny-extended", "rtl"), ("pynq-extended", "estimate")]
)
def test_no_bound_exceeds_the_cycles(config: str, device: str) -> None:
    reports = launch_reports(config, device)
    for report in reports.values():
        for item in (report, *report["layers"], *report["launches"]):
            if item["cycles"] is not None and item["bound_cycles"] is not None:
                assert 0 < item["bound_cycles"] <= item["cycles"]
        assert report["cycles"] == sum(item["cycles"] for item in report["launches"])
        assert report["bound_cycles"] == sum(item["bound_cycles"] for item in report["launches"])
    assert [item["layers"] for item in reports["layer"]["launches"]] == [1, 1, 1, 1]
    assert [item["layers"] for item in reports["network"]["launches"]] == [4]


def test_a_layer_whose_weights_are_prefetched_has_no_bound() -> None:
    """The last layer takes fewer cycles than the bus needs for its weights."""
    reports = launch_reports("pynq-extended", "estimate")
    (alone,), (joined,) = (
        [layer for layer in report["layers"] if layer["name"] == "dense"]
        for report in reports.values()
    )
    assert joined["cycles"] < alone["bound_cycles"]
    assert joined["bound_cycles"] is None


class FaultyDevice(FunctionalDevice):
    """Reports a fault at the instruction ``at``."""

    at = 0

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: object = (),
    ) -> RunResult:
        return RunResult(None, Fault("load", self.at, "bus_error"))


def test_a_fault_names_the_layer_that_it_is_in() -> None:
    model = small_network().model()
    device = FaultyDevice(PRESETS["tiny-extended"], 1 << 20)
    with vta.Session(model, "tiny-extended", device) as session:
        (launch,) = session.program.launches
        names = [layer.name for layer in session.layers if layer.placed_on == "machine"]
        begins = (0, *launch.ends[:-1])
        for name, begin, end in zip(names, begins, launch.ends, strict=True):
            for at in (begin, end - 1):
                device.at = at
                with pytest.raises(RuntimeFault, match=f"^{name}: the machine stopped: bus_error"):
                    session.run({"x": np.zeros((1, 8, 9, 7), np.float32)})


def test_files_of_earlier_releases_run_with_a_launch_per_layer(tmp_path: Path) -> None:
    network = compiled("tiny-extended")
    header, arrays = _parts(network)
    del header["launches"]
    file = io.BytesIO()
    write_archive(file, KIND, header, arrays)
    path = tmp_path / "old.vta"
    path.write_bytes(file.getvalue())
    inputs = {"x": small_network().images(1)}
    with (
        vta.Session.load(path) as old,
        vta.Session(small_network().model(), "tiny-extended") as new,
    ):
        for name, values in new.run(inputs).items():
            np.testing.assert_array_equal(old.run(inputs)[name], values)
        assert old._runner.launched != []
        assert len(old._runner.launched) > len(new._runner.launched) == 1
