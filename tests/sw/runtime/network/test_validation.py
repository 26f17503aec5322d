"""Soundness checks of compiled networks at their limits: a value at the limit is accepted, one
beyond it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.memory import Motion
from amaranth_vta.sw.runtime.network.factors import FactorBias, FactorWeights
from amaranth_vta.sw.runtime.network.network_program import (
    KeptTensor,
    KnownRuns,
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
from amaranth_vta.sw.runtime.network.validation import validate
from tests.support.decoders import growing, of_integers
from tests.support.tflite_graphs import kept_by_host, stateful_graph

DIGITS = Path(__file__).parents[4] / "examples" / "digits" / "digits.onnx"
INT8 = np.dtype(np.int8)
Part = TypeVar("Part")


@pytest.fixture(scope="module")
def digits() -> NetworkProgram:
    """Four layers in streams 0 to 3, which stream 4 joins into one launch."""
    with Session(DIGITS, "tiny") as session:
        program = session.program
    validate(program)
    return program


def with_step(network: NetworkProgram, kind: type[Part], change: Callable[[Part], Part]) -> Any:
    """``network`` with ``change`` made to its last step of a ``kind``."""
    steps: list[Any] = list(network.steps)
    at = max(index for index, step in enumerate(steps) if isinstance(step, kind))
    steps[at] = change(steps[at])
    return replace(network, steps=tuple(steps))


def is_valid(network: NetworkProgram) -> bool:
    try:
        validate(network)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("machines", "valid"), [(1, True), (0, False), (-1, False), ("2", False)])
def test_a_network_is_for_at_least_one_machine(
    digits: NetworkProgram, machines: Any, valid: bool
) -> None:
    changed = replace(digits, machines=machines)
    assert is_valid(changed) == valid
    if not valid:
        with pytest.raises(ValueError, match=f"it is for {machines!r} machines"):
            validate(changed)


@pytest.mark.parametrize(
    ("beside", "machines", "valid"),
    [
        ((range(1), range(1, 2)), 3, True),
        ((range(1), range(1, 2)), 2, False),
        ((range(5, 6),), 2, False),
        ((range(-1, 0),), 2, False),
        ((range(2),), 2, False),  # two streams beside one
        ((), 0, False),
        ((), True, False),
        ((), 1.0, False),
    ],
)
def test_machines_that_share_a_layer_run_streams_of_the_program(
    digits: NetworkProgram, beside: tuple[range, ...], machines: Any, valid: bool
) -> None:
    alone = replace(digits, launches=(), machines=machines)
    assert is_valid(with_step(alone, RunLayer, lambda step: replace(step, beside=beside))) == valid


@pytest.mark.parametrize(
    ("streams", "valid"),
    [
        (range(3, 4), True),
        (range(5, 5), True),  # no streams
        (range(3, 6), False),
        (range(4, 6), False),
        (range(6, 6), False),
        (range(-1, 4), False),
        (range(-1, -1), False),
        (range(3, 2), False),
    ],
)
def test_a_layer_runs_streams_of_the_program(
    digits: NetworkProgram, streams: range, valid: bool
) -> None:
    # Without launches, which would not include a layer with other streams.
    alone = replace(digits, launches=())
    changed = with_step(alone, RunLayer, lambda layer: replace(layer, streams=streams))
    assert is_valid(changed) == valid


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"stream": 4}, True),
        ({"stream": 5}, False),
        ({"stream": -1}, False),
        ({"streams": range(4, 4), "ends": ()}, False),
        ({"streams": range(3), "ends": (85, 314, 566)}, True),
        ({"streams": range(1, 4), "ends": (314, 566, 627)}, True),
        ({"streams": range(5)}, False),
        ({"streams": range(-1, 3)}, False),
        ({"ends": (85, 314, 566, 628)}, True),
        ({"ends": (85, 314, 566, 629)}, False),
        ({"ends": (85, 314, 566)}, False),
        ({"ends": (85, 314, 566, 627, 628)}, False),
        ({"ends": (85, 85, 566, 627)}, False),
        ({"ends": (-1, 314, 566, 627)}, False),
    ],
)
def test_a_launch_joins_layers_that_follow_one_another(
    digits: NetworkProgram, change: dict[str, Any], valid: bool
) -> None:
    (launch,) = digits.launches
    assert len(digits.program.streams[launch.stream].words) == 628
    assert is_valid(replace(digits, launches=(replace(launch, **change),))) == valid


def test_a_launch_keeps_the_order_of_layers(digits: NetworkProgram) -> None:
    steps = list(digits.steps)
    layers = [at for at, step in enumerate(steps) if isinstance(step, RunLayer)]
    steps[layers[0]], steps[layers[1]] = steps[layers[1]], steps[layers[0]]
    assert not is_valid(replace(digits, steps=tuple(steps)))
    assert is_valid(replace(digits, steps=tuple(steps), launches=()))


@pytest.mark.parametrize("kind", [ToMachine, ToHost])
def test_a_tensor_just_fits_its_buffer(digits: NetworkProgram, kind: type[Any]) -> None:
    step = next(item for item in digits.steps if isinstance(item, kind))

    def resized(size: int) -> NetworkProgram:
        buffers = tuple(
            replace(item, size=size) if item.name == step.buffer else item
            for item in digits.program.buffers
        )
        return replace(digits, program=replace(digits.program, buffers=buffers))

    others = [
        item.operand.nbytes
        for item in digits.steps
        if isinstance(item, ToMachine | ToHost) and item.buffer == step.buffer
    ]
    assert is_valid(resized(max(others)))
    assert not is_valid(resized(max(others) - 1))
    renamed = with_step(digits, kind, lambda item: replace(item, buffer="none"))
    assert not is_valid(renamed)


@pytest.mark.parametrize(
    ("type_", "valid"),
    [
        (TensorType(INT8, (1, 10)), True),
        (TensorType(INT8, (10,)), True),
        (TensorType(INT8, (1, 9)), False),
        (TensorType(INT8, (1, 11)), False),
        (TensorType(INT8, (-1, -10)), False),
        (TensorType(INT8, None), False),
        (TensorType(np.dtype(object), (1, 10)), False),
    ],
)
def test_what_comes_to_the_host_has_the_elements_of_its_tiles(
    digits: NetworkProgram, type_: TensorType, valid: bool
) -> None:
    assert is_valid(with_step(digits, ToHost, lambda step: replace(step, type=type_))) == valid


WINDOW = Window((1, 3), (1, 1), (1, 1), (0, 1, 0, 1))


@pytest.mark.parametrize(
    ("packing", "valid"),
    [
        (Packing(WINDOW, -128), True),
        (Packing(WINDOW, 127), True),
        (Packing(WINDOW, -129), False),
        (Packing(WINDOW, 128), False),
        (Packing(replace(WINDOW, pads=(0, 0, 0, 0)), 0), True),
        (Packing(replace(WINDOW, pads=(0, -1, 0, 3)), 0), False),
        (Packing(replace(WINDOW, strides=(0, 1)), 0), False),
        (Packing(replace(WINDOW, dilations=(1, 0)), 0), False),
        (Packing(replace(WINDOW, kernel=(1, 0)), 0), False),
        (Packing(replace(WINDOW, kernel=(1, 10)), 0), True),
        (Packing(replace(WINDOW, kernel=(1, 11)), 0), False),  # wider than the padded image
        (FactorWeights(-128, 1, 4), True),
        (FactorWeights(127, 1, 4), True),
        (FactorWeights(-129, 1, 4), False),
        (FactorWeights(128, 1, 4), False),
        (FactorWeights(0, 0, 4), False),
        (FactorWeights(0, 1, 0), False),
        (FactorBias(-128, 127, (1 << 31) - 1, (-1 << 31,), 1, 4), True),
        (FactorBias(-129, 0, 0, (), 1, 4), False),
        (FactorBias(0, 128, 0, (), 1, 4), False),
        (FactorBias(0, 0, 1 << 31, (), 1, 4), False),
        (FactorBias(0, 0, 0, ((-1 << 31) - 1,), 1, 4), False),
        (FactorBias(0, 0, 0, (), 0, 4), False),
        (FactorBias(0, 0, 0, (), 1, 0), False),
    ],
)
def test_what_the_host_packs_is_within_its_ranges(
    digits: NetworkProgram, packing: Any, valid: bool
) -> None:
    is_matrix = not isinstance(packing, Packing)

    def change(step: ToMachine) -> ToMachine:
        image = (1, 8, 8, 1) if is_matrix else step.operand.image
        return replace(step, operand=replace(step.operand, image=image, packing=packing))

    buffers = tuple(replace(item, size=1 << 20) for item in digits.program.buffers)
    roomy = replace(digits, program=replace(digits.program, buffers=buffers))
    assert is_valid(with_step(roomy, ToMachine, change)) == valid
    if is_matrix:

        def is_image(step: ToMachine) -> ToMachine:
            return replace(step, operand=replace(step.operand, packing=packing))

        assert not is_valid(with_step(roomy, ToMachine, is_image))


@pytest.mark.parametrize(("macs", "valid"), [(0, True), (-1, False), ((1 << 62) - 1, True)])
def test_counts_are_natural_numbers_of_62_bits(
    digits: NetworkProgram, macs: int, valid: bool
) -> None:
    for count, expected in ((macs, valid), (1 << 62, False), (1.0, False), (True, False)):
        changed = with_step(digits, RunLayer, lambda step, n=count: replace(step, macs=n))  # type: ignore[misc]
        assert is_valid(changed) == expected, count


def test_a_tensor_is_made_before_it_is_used(digits: NetworkProgram) -> None:
    """The first host segment produces the machine's input, the last one the network's output."""
    assert not is_valid(replace(digits, steps=digits.steps[1:]))
    assert not is_valid(replace(digits, steps=digits.steps[:-1]))
    for names in ({"inputs": ("absent",)}, {"outputs": ("absent",)}):
        assert not is_valid(with_step(digits, RunHost, lambda step, n=names: replace(step, **n)))  # type: ignore[misc]


def test_known_results_are_of_the_tensors_of_their_step(digits: NetworkProgram) -> None:
    def with_known(make: Callable[[RunHost], KnownRuns]) -> NetworkProgram:
        return with_step(digits, RunHost, lambda step: replace(step, known=make(step)))

    def runs(step: RunHost, inputs: int = 2, outputs: int = 2, dtype: str = "int8") -> KnownRuns:
        return KnownRuns(
            {name: np.zeros((inputs, 1), dtype) for name in step.inputs},
            {name: np.zeros((outputs, 1), dtype) for name in step.outputs},
        )

    assert is_valid(with_known(runs))
    for given in ({"inputs": 3}, {"inputs": 0, "outputs": 0}, {"dtype": "U1"}):
        assert not is_valid(with_known(lambda step, n=given: runs(step, **n)))  # type: ignore[misc]
    assert not is_valid(with_known(lambda step: replace(runs(step), inputs={})))
    assert not is_valid(with_known(lambda step: replace(runs(step), outputs={})))


@pytest.fixture(scope="module")
def kept_on_host() -> NetworkProgram:
    return program_of(kept_by_host())


def program_of(model: bytes) -> NetworkProgram:
    with Session(model, "tiny-extended") as session:
        program = session.program
    validate(program)
    return program


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": "main/0"}, "a variable is an input too"),
        ({"source": 3}, "3 is not a name"),
        ({"source": "other"}, "nothing makes state/window"),
        ({"result": "other"}, "nothing makes other, which it keeps"),
        (
            {"result": "main/0", "initial": np.zeros(6, np.int8)},
            "is not of the shape and type of its initial value",
        ),
        ({"initial": np.zeros((1, 7), np.int8)}, "state/window is not an image"),
        ({"initial": np.array(["a"])}, "state/window is of <U1"),
        ({"places": -1}, "state/window has a size or count of -1"),
    ],
)
def test_the_host_keeps_a_variable_from_run_to_run(
    kept_on_host: NetworkProgram, change: dict[str, Any], problem: str
) -> None:
    (state,) = kept_on_host.states
    assert kept_on_host.kept == ()
    with pytest.raises(ValueError, match=problem):
        validate(replace(kept_on_host, states=(replace(state, **change),)))


@pytest.fixture(scope="module")
def kept_on_machine() -> NetworkProgram:
    return program_of(stateful_graph(1).model)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"buffer": "other"}, "there is no buffer other"),
        ({"tensor": 3}, "3 is not a name"),
        ({"image": (1, 200, 6, 1)}, "state/window does not fit"),
        ({"packing": FactorWeights(0, 1, 4)}, "is not a stack of matrices|is packed"),
    ],
)
def test_the_machine_keeps_a_variable_from_run_to_run(
    kept_on_machine: NetworkProgram, change: dict[str, Any], problem: str
) -> None:
    (kept,) = kept_on_machine.kept
    assert kept_on_machine.states == ()
    of_operand = {name: value for name, value in change.items() if name != "buffer"}
    changed = KeptTensor(replace(kept.operand, **of_operand), change.get("buffer", kept.buffer))
    with pytest.raises(ValueError, match=problem):
        validate(replace(kept_on_machine, kept=(changed,)))


def test_a_kept_variable_has_an_initial_value(kept_on_machine: NetworkProgram) -> None:
    (kept,) = kept_on_machine.kept
    contents = dict(kept_on_machine.program.contents)
    for value in (contents[kept.buffer][:-1], None):
        changed = {name: data for name, data in contents.items() if name != kept.buffer}
        if value is not None:
            changed[kept.buffer] = value
        program = replace(kept_on_machine.program, contents=changed)
        with pytest.raises(ValueError, match="state/window has no initial value"):
            validate(replace(kept_on_machine, program=program))


@pytest.fixture(scope="module")
def with_caches() -> NetworkProgram:
    with Session(growing(), "pynq-extended", context=64) as session:
        program = session.program
    validate(program)
    return program


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"axis": 0}, "has no rows in dimension 0"),
        ({"axis": 3}, "has no rows in dimension 3"),
        ({"axis": "1"}, "has no rows in dimension '1'"),
        ({"buffer": "other"}, "there is no buffer other"),
        ({"rows": "other"}, "nothing makes other, which is written as rows"),
        ({"places": 3}, "nothing makes 3, which is written as rows"),
        ({"image": (2, 64, 320, 1)}, "does not fit"),
        ({"packing": None}, "is no stack of matrices as int8 weights"),
        ({"packing": FactorWeights(0, 2, 16)}, "does not fit|as int8 weights"),
        ({"packing": FactorWeights(1, 1, 16)}, "as int8 weights"),
        ({"packing": FactorWeights(0, 1, 0)}, "has a size or count of 0"),
        ({"stacked": -1}, "has a size or count of -1"),
        ({"stacked": 2}, "is no 2 matrices side by side"),
    ],
)
def test_rows_are_written_to_weights_in_a_buffer(
    with_caches: NetworkProgram, change: dict[str, Any], problem: str
) -> None:
    def changed(step: WriteRows) -> WriteRows:
        own = {name: value for name, value in change.items() if name in vars(step)}
        others = {name: value for name, value in change.items() if name not in own}
        return replace(step, operand=replace(step.operand, **others), **own)

    with pytest.raises(ValueError, match=problem):
        validate(with_step(with_caches, WriteRows, changed))


@pytest.fixture(scope="module")
def with_windows() -> NetworkProgram:
    with Session(of_integers(16), "pynq-extended", context=16) as session:
        program = session.program
    validate(program)
    return program


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"windows": ("other",)}, "there is no window other"),
        ({"place": "other"}, "nothing makes other, the place of windows"),
        ({"count": 0}, "has a size or count of 0"),
    ],
)
def test_windows_move_within_their_buffers(
    with_windows: NetworkProgram, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        validate(with_step(with_windows, MoveWindows, lambda step: replace(step, **change)))


def test_windows_have_no_more_places_than_rows(with_windows: NetworkProgram) -> None:
    for place in {step.place for step in with_windows.steps if isinstance(step, MoveWindows)}:

        def changed(step: Step, place: str = place) -> Step:
            if not isinstance(step, MoveWindows) or step.place != place:
                return step
            return replace(step, count=step.count + 1)

        steps = tuple(map(changed, with_windows.steps))
        with pytest.raises(ValueError, match="moves beyond"):
            validate(replace(with_windows, steps=steps))


# At the last place, and at the end of the last whole block.
@pytest.mark.parametrize("motion", [Motion(16, 0, 1 << 20), Motion(15, 0, 1 << 20)])
def test_no_place_of_a_window_is_outside(with_windows: NetworkProgram, motion: Motion) -> None:
    program = with_windows.program
    windows = (replace(program.windows[0], motion=motion), *program.windows[1:])
    with pytest.raises(ValueError, match="moves beyond"):
        validate(replace(with_windows, program=replace(program, windows=windows)))
