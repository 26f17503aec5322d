"""Runs and measures a quantized network on a device: `Session`, `random_inputs`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.report.cycles_table import ESTIMATED, bounded, cycles_table
from amaranth_vta.report.host_summary import summary
from amaranth_vta.report.layer_report import LaunchReport, LayerReport
from amaranth_vta.report.layer_table import layer_table, per_run
from amaranth_vta.report.systems import system_report
from amaranth_vta.report.text_table import counted
from amaranth_vta.sim.devices import RunKeywords, RunOptions
from amaranth_vta.sw.runtime.counters import Spent
from amaranth_vta.sw.runtime.device import Device, Fault, RunResult, total
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_file import load_network, save_network
from amaranth_vta.sw.runtime.network.network_program import (
    LAUNCHES,
    NetworkProgram,
)
from amaranth_vta.sw.runtime.network.tile_layout import Array
from amaranth_vta.sw.runtime.network.token_inputs import padding_of
from amaranth_vta.sw.runtime.runtime import RuntimeFault

from .accuracy import LabelAccuracy, label_accuracy
from .batches import Batches, TensorInfo
from .comparison import CheckReport, compare
from .decoder_networks import DecoderNetworks
from .generation import Sampling, TokenDecoder, generate
from .layers import launch_reports, layer_reports
from .placed_network import PlacedNetwork

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.sim.energy.network_energy import NetworkEnergy
    from amaranth_vta.sw.compiler.graph.load.onnx_model import Source
    from amaranth_vta.sw.compiler.graph.network import Network
    from amaranth_vta.sw.compiler.graph.plan.compiled_network import CompiledNetwork
    from amaranth_vta.sw.compiler.passes.pipeline import PlacedPass
    from amaranth_vta.sw.compiler.tuner.records import Records
    from amaranth_vta.sw.runtime.network.runner import Runner

    from .shaped_networks import ShapedNetworks


class Session:
    """A network compiled for a machine and placed on a device.

    ``model`` is the path or the bytes of a file of ONNX or TensorFlow Lite, or an
    ``onnx.ModelProto``; ``config`` a `Config`, the name of a preset or the path of a file.
    ``images`` sets the batch size of a run for a model with an open one, so that weights are loaded
    once for all of these images; BATCH by default. ``passes``, ``tuned``, ``allow_rounding``,
    ``context`` and ``states`` are as in `compile`. ``launch`` is ``network``, which joins
    consecutive layers in one launch, or ``layer``, which launches each layer separately and so
    measures the counters of each.

    With ``prefill``, a decoder with a ``context`` processes prompts in blocks of that many tokens:
    it is compiled for a block too, and both networks have the same caches. Numbers and reports
    refer to runs of single tokens; ``prefill`` in `report` has runs and cycles of blocks.

    If dimensions other than the first are open, such as the length of a sequence, the network is
    compiled and cached for each new shape of inputs; ``dimensions`` has sizes by name, and if it
    has all, the network is compiled at once. Layers, numbers and reports refer to the latest shape.
    ``buckets``, by name, round sizes up to multiples, so that fewer shapes are compiled: inputs are
    padded with zeros and outputs cropped, if padding cannot change results.

    ``device`` is the name of a device, an open device, or a `RunOptions`. With a name, ``dram`` and
    the keywords ``waves``, ``timeline``, ``skip``, ``timing_only`` and ``progress`` are those of
    `RunOptions`. With several ``machines``, as many runs take place at once as a group; cycles
    count once per group, and layers within a launch have no cycles. With ``split`` all machines
    share the layers of each run instead.

    Threads may share a session: `run`, `check`, `report` and `close` hold a lock, since the machine
    and its memory run one program at a time. Parallel runs need one session each.

    Raises `ModelError`, `ConfigError`, `MissingExtra` if the packages of the extra ``networks`` are
    not installed, and what `open_device` raises.
    """

    # The networks of a model by shape, or a single one that was loaded compiled.
    _networks: ShapedNetworks | DecoderNetworks | PlacedNetwork

    def __init__(
        self,
        model: Source,
        config: Config | str = DEFAULT,
        device: RunOptions | Device | str = "functional",
        dram: str = "ideal",
        *,
        images: int | None = None,
        passes: Sequence[PlacedPass] = (),
        tuned: Records | str | Path | None = None,
        allow_rounding: bool = False,
        dimensions: Mapping[str, int] | None = None,
        buckets: Mapping[str, int] | None = None,
        context: int | None = None,
        states: Mapping[str, str] | None = None,
        prefill: int = 1,
        launch: str = "network",
        split: bool | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> None:
        options = RunOptions.of(device, dram, keywords)
        # Imported here only, so that saved networks run without the compiler.
        with explain_missing_extras():
            from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model

            from .compilation import compile, prepared, require_context
            from .shaped_networks import ShapedNetworks
        rounded = buckets or {}
        require_context(prefill, context)
        self._name = _name(model)
        self._images = images
        machine = Config.load(config) if isinstance(config, str) else config
        self._begin(machine, options, launch)

        def compiled(model: Source, **keywords: Any) -> CompiledNetwork:
            machines, bus = (options.machines, options.memory_bus) if split else (1, 0)
            return compile(
                *(model, machine, images, passes, tuned, allow_rounding),
                machines=machines,
                memory_bus=bus,
                **keywords,
            )

        if prefill > 1:
            if rounded:
                raise ValueError(
                    "buckets are not for a decoder with a context, whose sizes are fixed"
                )
            decoder = compiled(
                model, dimensions=dimensions, context=context, states=states, prefill=prefill
            )
            self._networks = DecoderNetworks(decoder.program, options, launch, decoder)
            return
        if context is not None or states:
            read, sizes = prepared(model, machine, dimensions, context, states), {}
        else:
            read, sizes = read_model(model), dict(dimensions or {})
        number = images or machine.batch
        self._networks = ShapedNetworks(read, sizes, compiled, options, launch, number, rounded)

    @classmethod
    def load(
        cls,
        path: str | Path,
        config: Config | str | None = None,
        device: RunOptions | Device | str = "functional",
        dram: str = "ideal",
        *,
        blocks: bool = True,
        launch: str = "network",
        **keywords: Unpack[RunKeywords],
    ) -> Self:
        """Opens a compiled network that `save` or ``vta compile`` wrote; needs no compiler.

        A decoder compiled with ``prefill`` processes prompts in blocks of that many tokens, or,
        without ``blocks``, in single tokens. With ``config``, the file must be for that machine.
        The other options are as in the constructor. Raises `ProgramError` if the file is not a
        compiled network, is damaged, has another format version or is for another machine.
        """
        options = RunOptions.of(device, dram, keywords)
        session = cls.__new__(cls)
        session._name = str(path)
        program = load_network(path, Config.load(config) if isinstance(config, str) else config)
        if not blocks:
            program = replace(program, block=None)
        session._begin(program.config, options, launch)
        place = PlacedNetwork.open if program.block is None else DecoderNetworks
        session._networks = place(program, options, launch)
        return session

    def _begin(self, config: Config, options: RunOptions, launch: str) -> None:
        if launch not in LAUNCHES:
            raise ValueError(f"launch is {' or '.join(LAUNCHES)}, not {launch!r}")
        self.config = config
        self.dram, self.contract = options.dram, options.contract
        self.system = SystemConfig(config, options.machines, options.memory_bus)
        self.machines = options.machines
        self._skip = options.skip
        # Held while the machine runs; reentrant, since `check` calls `run`.
        self._lock = RLock()
        self._wall_seconds = 0.0
        self._fault: Fault | None = None
        self._checked: CheckReport | None = None
        self.label_accuracy: LabelAccuracy | None = None

    @property
    def _placed(self) -> PlacedNetwork:
        return self._networks.require_current()

    @property
    def program(self) -> NetworkProgram:
        """The compiled network of the current shape."""
        return self._placed.program

    @property
    def device(self) -> Device:
        """The device of the current shape."""
        return self._placed.runtime.device

    @property
    def _batches(self) -> Batches:
        return self._placed.batches

    @property
    def _runner(self) -> Runner:
        return self._placed.runner

    @property
    def _model(self) -> onnx.ModelProto | None:
        return self._networks.model

    def __repr__(self) -> str:
        machine = self.config
        if self._networks.current is None:
            return f"<Session of {self._name}, whose dimensions are open until its first run>"
        layers = counted(self.program.layer_count, "layer")
        hosts = counted(self.program.host_operator_count, "operator")
        return (
            f"<Session of {self._name} on {self.device.name}: {layers} on the "
            f"machine of {machine.batch}×{machine.block_in}×{machine.block_out} MACs per cycle, "
            f"{hosts} on the host>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the device; may be called again."""
        with self._lock:
            self._networks.close()

    def save(self, path: str | Path) -> None:
        """Writes the compiled network for `load`, with ``prefill`` also the one for blocks,
        atomically; raises `ProgramError`.
        """
        save_network(self.program, path)

    # Running.

    @property
    def images_per_run(self) -> int:
        """Number of images per run; 1 if inputs and outputs have different first dimensions."""
        return self._batches.images_per_run or 1

    @property
    def tokens_per_block(self) -> int:
        """Number of tokens of a prompt per run; 1 unless the decoder is compiled for blocks."""
        return self.program.tokens_per_block

    @property
    def has_images(self) -> bool:
        """Whether inputs and outputs have a first dimension in common, that of images."""
        return self._batches.images_per_run > 0

    @property
    def runs_at_once(self) -> int:
        """Number of runs that take place at once: one per machine, or one that all share."""
        return self._runner.runs_at_once

    @property
    def inputs(self) -> dict[str, TensorInfo]:
        return {name: self._batches.info(name) for name in self.program.inputs}

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        return {name: self._batches.info(name) for name in self.program.outputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the network on ``inputs``, by name, and returns its outputs, by name; an output that
        is a sequence is a list of arrays.

        With an open first dimension, inputs may have any number of images, which are split into
        runs. Raises `InputError`, or `RuntimeFault` if the machine stops with a fault.
        """
        with self._lock:
            placed = self._networks.select(inputs)
            start = perf_counter()
            try:
                runner, padded = placed.runner, placed.padding.padded(inputs)
                outputs = placed.batches.run_in_groups(padded, runner.run_all, runner.runs_at_once)
                return placed.padding.cropped(outputs)
            except RuntimeFault as error:
                self._fault = error.fault
                raise
            finally:
                self._wall_seconds += perf_counter() - start

    def reset(self) -> None:
        """Sets the network's variables, such as the state of a streaming model, to their initial
        values.
        """
        with self._lock:
            self._runner.reset()

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
        stop_ids: Collection[int] = (),
    ) -> Iterator[int]:
        """Generates up to ``max_new_tokens`` tokens after a prompt, for a decoder in a session with
        a ``context``: yields each token once it is known, and stops after a token in ``stop_ids``.

        Calls `reset`, then runs the network once per token, of the prompt too; with ``prefill``,
        once per block of the prompt. At ``temperature`` 0 the token with the largest logit follows;
        otherwise tokens are drawn, by ``seed``, with the probabilities of Softmax of the logits
        divided by ``temperature``, among the ``top_k`` largest if that is not 0. Raises
        `InputError` for a prompt that is empty, has other tokens or exceeds the context, and
        `ModelError` for a network that is no decoder.
        """
        sampling, decoder = Sampling(temperature, top_k, seed), TokenDecoder(self.program)
        prompt = [int(token) for token in prompt_ids]
        decoder.require(prompt, max_new_tokens)
        block = self.tokens_per_block
        with self._lock:
            self._runner.reset(padding_of(len(prompt), block))
        return generate(decoder, self.run, prompt, block, max_new_tokens, sampling, stop_ids)

    def check(self, inputs: Mapping[str, Array]) -> CheckReport:
        """Runs the network, and compares the outputs with ONNX Runtime on the canonical form and on
        the file.

        Raises as `run` does, and `ModelError` for a network that was loaded compiled.
        """
        with self._lock:
            placed = self._networks.select(inputs)
            network, model = self._compiled(placed).network, placed.model
            assert model is not None
            self.reset()
            # All positions of the compiled network are compared, those of padding too.
            inputs = placed.padding.padded(inputs)
            outputs = self.run(inputs)
            images = self._images or self.config.batch
            report = compare(
                outputs, network, model, images, lambda run: placed.batches.run(inputs, run)
            )
            self._checked = report
            return replace(report, outputs=placed.padding.cropped(outputs))

    def accuracy(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        labels: Array | None = None,
        float_model: Source | None = None,
    ) -> LabelAccuracy:
        """The accuracy of ``outputs``, the result of `run` for ``inputs``, against ``labels``, one
        integer per image, and against the ``float_model``. Later reports include it.

        Raises `InputError` if labels or outputs do not match, and `ModelError`.
        """
        wanted = None
        if float_model is not None:
            with explain_missing_extras():
                from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
                from amaranth_vta.sw.runtime.network.onnx_runtime import (
                    default_session,
                    run_session,
                )
            reference = default_session(read_model(float_model).SerializeToString())
            names = [item.name for item in reference.get_outputs()]
            wanted = self._placed.padding.cropped(
                self._batches.run(
                    self._placed.padding.padded(inputs),
                    lambda feeds: run_session(reference, names, feeds),
                )
            )
        self.label_accuracy = label_accuracy(outputs, labels, wanted)
        return self.label_accuracy

    @property
    def compiled(self) -> CompiledNetwork:
        """The compiled network with its graph; raises `ModelError` for a session from `load`."""
        return self._compiled(self._placed)

    def _compiled(self, placed: PlacedNetwork) -> CompiledNetwork:
        if placed.compiled is None:
            raise ModelError(
                f"{self._name} is a compiled network without its model; this needs a Session of "
                f"the ONNX file"
            )
        return placed.compiled

    @property
    def network(self) -> Network:
        """The network in canonical form; raises as `compiled` does."""
        return self.compiled.network

    @property
    def note(self) -> str:
        """Changes made to the model before compilation, as one line; usually empty."""
        if self._model is None:
            return ""
        from amaranth_vta.sw.compiler.graph.load.opsets import conversion

        return conversion(self._model)

    @property
    def unquantized(self) -> str:
        """Why none of the model, or only its products, can run on the machine, phrased like "is a
        float model"; empty if the model is quantized with constant scales.
        """
        if self._model is None:
            return ""
        from amaranth_vta.sw.compiler.graph.load.quantization import FLOAT_MODEL, why_unquantized

        form = why_unquantized(self._model)
        # A user-registered operator may run floats on the machine.
        return "" if form == FLOAT_MODEL and self.has_layers else form

    @property
    def has_layers(self) -> bool:
        """Whether anything runs on the machine."""
        return self.program.layer_count > 0

    # Numbers.

    @property
    def layers(self) -> list[LayerReport]:
        """The operators in execution order, including layout conversions."""
        return layer_reports(self._runner, self.dram, self.system)

    @property
    def launches(self) -> list[LaunchReport]:
        """The launches of the machine in order, each with one or more layers."""
        return launch_reports(self._runner, self.dram, self.system)

    @property
    def cycles(self) -> int | None:
        """Cycles of the machine in all runs; None on a device without a clock."""
        return total(self._results).cycles

    @property
    def estimated(self) -> bool:
        """Whether the cycles are estimated."""
        return any(result.estimated for result in self._results)

    @property
    def macs(self) -> int:
        """The network's MACs on the machine in all runs."""
        return sum(layer.macs for layer in self.layers)

    @property
    def device_seconds(self) -> float:
        return sum(result.seconds for result in self._results)

    @property
    def _results(self) -> list[RunResult]:
        """The results of the launches of the machine."""
        return _results(self._runner)

    @property
    def spent(self) -> list[Spent]:
        """Breakdown of the cycles of each launch, on average over the machines that share it; empty
        on a device without a clock.
        """
        return [
            Spent(launched.name, result.counters, launched.measured.runs * launched.machines)
            for launched in self._runner.launched
            if (result := launched.measured.result) is not None and result.cycles is not None
        ]

    def energy(self, technology: str) -> NetworkEnergy:
        """The estimated energy of one run in a technology, one of `TECHNOLOGIES`; it does not
        depend on the device. Raises `ValueError` for another technology.
        """
        from amaranth_vta.sim.energy.network_energy import network_energy
        from amaranth_vta.sim.energy.technologies import TECHNOLOGIES

        if technology not in TECHNOLOGIES:
            raise ValueError(f"technology is one of {', '.join(TECHNOLOGIES)}, not {technology!r}")
        return network_energy(self.program, TECHNOLOGIES[technology], self.images_per_run)

    def report(self, technology: str | None = None) -> dict[str, Any]:
        """All numbers, for JSON; complete even after a fault. With a ``technology``, the `energy`
        of one run is included.
        """
        with self._lock:
            return self._report(technology)

    def _report(self, technology: str | None) -> dict[str, Any]:
        layers, launches = self.layers, self.launches
        cycles, seconds = self.cycles, self.device_seconds
        fault, peak = self._fault, self.system.macs_per_cycle
        return {
            **system_report(self.system, self.program.machines > 1),
            "cycles": cycles,
            "estimated": self.estimated,
            "memory_contract": self.contract and str(self.contract),
            "macs": self.macs,
            "peak_macs_per_cycle": peak,
            "utilization": self.macs / cycles / peak if cycles else None,
            "bound_cycles": sum(launch.bound_cycles for launch in launches),
            "wall_seconds": self._wall_seconds,
            "device_seconds": seconds,
            "simulated_cycles_per_second": cycles / seconds if cycles and seconds else None,
            "mismatches": self._checked.mismatches if self._checked else None,
            "file": self._checked.file_figures if self._checked else None,
            "accuracy": asdict(self.label_accuracy) if self.label_accuracy else None,
            "fault": asdict(fault) if fault else None,
            "skipped": self._skip,
            "images_per_run": self.images_per_run,
            "summary": summary(layers),
            "runs": max((layer.runs for layer in layers), default=0),
            "counters": total(self._results).counters,
            "layers": [asdict(layer) for layer in layers],
            "launches": [asdict(launch) for launch in launches],
            "energy": self.energy(technology).report() if technology else None,
            **self._prefill_report(),
        }

    def _prefill_report(self) -> dict[str, Any]:
        """Runs of blocks of a prompt, and their cycles, in a session that has blocks."""
        if not isinstance(self._networks, DecoderNetworks):
            return {}
        runner = self._networks.block.runner
        runs = max((item.measured.runs for item in runner.launched), default=0)
        cycles = total(_results(runner)).cycles
        return {"prefill": {"tokens": self.tokens_per_block, "runs": runs, "cycles": cycles}}

    def plan_table(self, width: int | None = 80, explain: bool = False) -> str:
        """One line per layer with its MACs and cycles per run, and the host's operators by reason.

        No line is longer than ``width``, unless that is None. A long sequence of host operators is
        folded into one line; ``explain`` lists each operator.
        """
        peak, images = self.system.macs_per_cycle, self.images_per_run
        table = layer_table(self.layers, self.launches, peak, images, width=width, explain=explain)
        if self.contract is not None and self.cycles is not None:
            return f"{table}\n{bounded(self.contract, width)}"
        return f"{table}\n{ESTIMATED}" if self.estimated else table

    def cycles_table(self, width: int | None = 80) -> str:
        """Breakdown of the cycles of each launch as text; empty on a device without a clock."""
        if not self.spent or self.contract is not None:
            return ""
        per = per_run(self.images_per_run, self.layers).lower()
        return cycles_table(self.spent, per, width, self.estimated)


def _results(runner: Runner) -> list[RunResult]:
    """The results of the launches of a machine."""
    measured = [launched.measured for launched in runner.launched]
    return [item.result for item in measured if item.result is not None]


def random_inputs(session: Session) -> dict[str, Array]:
    """Inputs of one run, or, if the network has images, of a run on each machine; the same at each
    call: floats from 0 to 1, 8-bit integers of the full range, and for wider integers 0 or 1, or
    only 1 if the name of the input contains ``mask``.
    """
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    runs = session.runs_at_once if session.has_images else 1
    for name, info in session.inputs.items():
        shape = tuple(session.images_per_run if size is None else size for size in info.shape)
        shape = (shape[0] * runs, *shape[1:]) if shape else ()
        if np.issubdtype(info.dtype, np.integer) and info.dtype.itemsize > 1:
            inputs[name] = random.integers("mask" in name.lower(), 2, shape, info.dtype)
        elif np.issubdtype(info.dtype, np.integer):
            limits = np.iinfo(info.dtype)
            inputs[name] = random.integers(limits.min, limits.max, shape, info.dtype, True)
        else:
            inputs[name] = random.random(shape).astype(info.dtype)
    return inputs


def _name(model: Source) -> str:
    """The name of the model in a repr."""
    if isinstance(model, str | Path):
        return str(model)
    return "bytes" if isinstance(model, bytes) else f"graph {model.graph.name!r}"
