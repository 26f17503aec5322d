"""Variables keep their values from run to run, and `Session.reset` clears them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile, TfliteTensor
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import RunLayer, ToHost, ToMachine
from tests.support.tflite_graphs import stateful_graph

CONFIG = "tiny-extended"
SHAPE = (1, 4)


class Counter:
    """A file whose variable starts at ``start``; ``order`` says in which order it is read (r) and
    assigned the sum of its value, or of the input, and the input (w)."""

    def __init__(self, order: str, start: int = 10, calls: bool = True) -> None:
        file = TfliteFile()
        x = file.input(SHAPE, 0.5, name="x")
        if calls:
            with file.subgraph("fill") as fill:
                first = file.constant(np.full(SHAPE, start, np.int8), 0.5)
                file.operator("ASSIGN_VARIABLE", [self.handle(file), first], [])
            file.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
        handle, value = self.handle(file), x
        for step in order:
            if step == "r":
                value = file.tensor(SHAPE, 0.5)
                file.operator("READ_VARIABLE", [handle], [value])
            else:
                total = file.tensor(SHAPE, 0.5)
                file.operator("ADD", [value, x], [total])
                file.operator("ASSIGN_VARIABLE", [handle, total], [])
        y = file.tensor(SHAPE, 0.5, name="y")
        file.operator("RELU", [value], [y])
        file.output(y)
        self.data = file.bytes()

    @staticmethod
    def handle(file: TfliteFile) -> TfliteTensor:
        handle = file.tensor((), dtype="resource")
        file.operator("VAR_HANDLE", [], [handle], container="", shared_name="count")
        return handle


def results(session: Session, runs: int) -> list[int]:
    x = np.full(SHAPE, 3, np.int8)
    return [int(session.run({"x": x})["y"][0, 0]) for _ in range(runs)]


def test_a_variable_that_is_read_first_holds_the_value_of_the_last_run() -> None:
    with Session(Counter("rw").data, CONFIG) as session:
        assert list(session.inputs) == ["x"]
        assert list(session.outputs) == ["y"]
        assert results(session, 3) == [10, 13, 16]


def test_a_variable_that_is_read_after_its_assignment_holds_the_new_value() -> None:
    with Session(Counter("rwr").data, CONFIG) as session:
        assert results(session, 3) == [13, 16, 19]


def test_a_variable_that_is_assigned_before_it_is_read_is_no_state() -> None:
    network = Network.from_onnx(read_model(Counter("wr", calls=False).data))
    assert network.states == ()
    with Session(Counter("wr").data, CONFIG) as session:
        assert results(session, 2) == [6, 6]


def test_reset_sets_the_initial_value() -> None:
    with Session(Counter("rw", start=20).data, CONFIG) as session:
        assert results(session, 2) == [20, 23]
        session.reset()
        assert results(session, 2) == [20, 23]


def moved_tensors(session: Session) -> set[str]:
    """The tensors that pass between host and machine."""
    return {
        step.operand.tensor
        for step in session.program.steps
        if isinstance(step, ToMachine | ToHost)
    }


def layers(session: Session) -> list[str]:
    return [step.name for step in session.program.steps if isinstance(step, RunLayer)]


def test_a_variable_that_layers_write_and_read_stays_in_device_memory() -> None:
    with Session(stateful_graph(0).model, CONFIG) as session:
        (variable,) = session.program.kept
        assert session.program.states == ()
        assert variable.operand.tensor == "state/window"
        assert "state/window" not in moved_tensors(session)
        # Its reader comes first, so the new value overwrites the old one.
        assert "state/window, next value" not in layers(session)


def test_a_variable_that_its_writer_reads_is_copied_on_the_machine() -> None:
    with Session(Counter("rw").data, CONFIG) as session:
        assert [item.operand.tensor for item in session.program.kept] == ["state/count"]
        assert layers(session)[-1] == "state/count, next value"
        assert results(session, 3) == [10, 13, 16]


def test_a_variable_keeps_its_old_value_for_readers_of_a_later_layer() -> None:
    """y depends on the new value of one variable and the old value of the other."""
    file = TfliteFile()
    x = file.input(SHAPE, 0.5, name="x")
    handles = []
    for name in ("first", "second"):
        with file.subgraph(f"fill {name}") as fill:
            start = file.constant(np.zeros(SHAPE, np.int8), 0.5)
            place = file.tensor((), dtype="resource")
            file.operator("VAR_HANDLE", [], [place], container="", shared_name=name)
            file.operator("ASSIGN_VARIABLE", [place, start], [])
        file.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
        handles.append(file.tensor((), dtype="resource"))
        file.operator("VAR_HANDLE", [], [handles[-1]], container="", shared_name=name)
    old = [file.tensor(SHAPE, 0.5) for _ in handles]
    for handle, value in zip(handles, old, strict=True):
        file.operator("READ_VARIABLE", [handle], [value])
    # first' = first + x, second' = first' + x, y = second' + second
    fresh = file.tensor(SHAPE, 0.5)
    file.operator("ADD", [old[0], x], [fresh])
    later = file.tensor(SHAPE, 0.5)
    file.operator("ADD", [fresh, x], [later])
    y = file.tensor(SHAPE, 0.5, name="y")
    file.operator("ADD", [later, old[1]], [y])
    for handle, value in zip(handles, (fresh, later), strict=True):
        file.operator("ASSIGN_VARIABLE", [handle, value], [])
    file.output(y)
    with Session(file.bytes(), CONFIG) as session:
        assert len(session.program.kept) == 2
        # first: 3 6 9, second: 6 9 12.
        assert results(session, 3) == [6, 15, 21]


def test_a_variable_without_a_first_value_is_refused() -> None:
    with pytest.raises(ModelError, match="reads the variable count, which has no value"):
        read_model(Counter("rw", calls=False).data)


def test_a_call_of_a_missing_subgraph_is_refused() -> None:
    file = TfliteFile()
    x, y = file.input(SHAPE, 0.5), file.tensor(SHAPE, 0.5)
    file.operator("CALL_ONCE", [], [], init_subgraph_index=5)
    file.operator("RELU", [x], [y])
    file.output(y)
    with pytest.raises(ModelError, match="call_once_0 calls subgraph 5, which is missing"):
        read_model(file.bytes())


def test_a_subgraph_that_calls_itself_is_refused() -> None:
    file = TfliteFile()
    x, y = file.input(SHAPE, 0.5), file.tensor(SHAPE, 0.5)
    with file.subgraph("fill") as fill:
        file.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
    file.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
    file.operator("RELU", [x], [y])
    file.output(y)
    with pytest.raises(ModelError, match="CALL_ONCE among initial assignments is not supported"):
        read_model(file.bytes())


def test_a_handle_of_no_variable_is_refused() -> None:
    file = TfliteFile()
    x, y = file.input(SHAPE, 0.5), file.tensor(SHAPE, 0.5)
    file.operator("READ_VARIABLE", [file.tensor((), dtype="resource")], [y])
    file.output(y)
    with pytest.raises(ModelError, match="read_variable_0 has no handle of a variable"):
        read_model(file.bytes())
    assert x.index == 0


def test_states_survive_the_form_of_onnx() -> None:
    network = load_network(read_model(Counter("rw", start=7).data), 1)
    (state,) = Network.from_onnx(network.with_roundings()).states
    assert (state.source, state.result) == (network.states[0].source, network.states[0].result)
    np.testing.assert_array_equal(state.initial, np.full(SHAPE, 7, np.int8))
    assert network.public_inputs == ["x"]
    assert network.public_outputs == ["y"]


def test_a_saved_network_keeps_its_variables(tmp_path: Path) -> None:
    case = stateful_graph(2)
    with Session(case.model, CONFIG) as session:
        session.save(tmp_path / "state.vta")
    with Session.load(tmp_path / "state.vta") as session:
        for _ in range(2):
            for run, wanted in zip(case.runs, case.wanted, strict=True):
                found = session.run(dict(zip(session.inputs, run, strict=True)))
                np.testing.assert_array_equal(found[next(iter(session.outputs))], wanted[0])
            session.reset()


def test_a_check_compares_with_the_reference_kernels_and_finds_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = {"x": np.arange(4, dtype=np.int8).reshape(SHAPE)}
    with Session(Counter("rw").data, CONFIG) as session:
        report = session.check(x)
        assert report.ok
        assert report.of_tflite
        assert report.elements == 4
        run = session.run
        monkeypatch.setattr(session, "run", lambda given: {"y": run(given)["y"] + np.int8(1)})
        assert session.check(x).mismatches == 4
