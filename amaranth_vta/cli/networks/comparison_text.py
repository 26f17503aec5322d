"""Text output of ``vta run --check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amaranth_vta.report.text_table import counted

if TYPE_CHECKING:
    from amaranth_vta.session import CheckReport
    from amaranth_vta.session.file_comparison import FileComparison

# Maximum number of distinct differences that a comparison lists.
_MOST_FREQUENT = 8


def comparison_lines(checked: CheckReport, explain: bool) -> Iterator[str]:
    """Lines on how results differ from the canonical form and from the file; with ``explain`` also
    from the file in a default session.
    """
    reference = "TensorFlow Lite's reference kernels" if checked.of_tflite else "ONNX Runtime"
    text = f"{reference}: {checked.mismatches:,} of {checked.elements:,} output elements differ"
    if checked.mismatches:
        frequent = sorted(checked.histogram.items(), key=lambda item: -item[1])[:_MOST_FREQUENT]
        rest = ", …" if len(checked.histogram) > _MOST_FREQUENT else ""
        text += f" (by {', '.join(f'{by:+g}: {count:,}' for by, count in frequent)}{rest})"
    if checked.of_tflite:
        yield text
        return
    yield f"{text} from the network in canonical form"
    if checked.file is None:
        yield "The file itself: not compared, since ONNX Runtime cannot run it unchanged"
    else:
        yield f"The file itself, without optimizations: {_outputs(checked.file)}"
        if checked.file.layers:
            yield f"Its layers, each run on the file's tensors: {_layers(checked.file)}"
    if explain and checked.differs_from_default is not None:
        yield (
            f"The file in a default session, which optimizes: {checked.differs_from_default:,} of "
            f"{checked.elements:,} output elements differ, which is not a failure"
        )


def _outputs(file: FileComparison) -> str:
    from amaranth_vta.session.file_comparison import MOST_STEPS

    items = file.outputs.items()
    name, most = max(items, key=lambda item: (not item[1].ok, item[1].of_range))
    text = "no output element differs"
    if most.of_range:
        share = "less than 0.01%" if most.of_range < 1e-4 else f"at most {most.of_range:.2%}"
        text = f"{name} differs by {share} of its range"
        text += "" if most.steps is None else f" ({_steps(most.steps)})"
    samples = sum(item.samples for item in file.outputs.values() if item.same_class is not None)
    if samples:
        same = sum(item.same_class or 0 for item in file.outputs.values())
        text += f"; the same greatest element in {same:,} of {samples:,} samples"
    return text if most.ok else f"{text}; the limit is {most.limit:.0%}, or {MOST_STEPS} steps"


def _layers(file: FileComparison) -> str:
    failed = [(name, item) for name, item in file.layers.items() if not item.ok]
    for name, item in failed:
        if item.unrounded is None:
            return f"{name} differs by {_steps(item.steps)}"
        return (
            f"{name} is up to {item.unrounded:.3f} steps from what the file rounds; the limit is "
            f"{item.limit:.3f}"
        )
    steps = max(item.steps for item in file.layers.values())
    text = f"{counted(len(file.layers), 'tensor')}, none of which differs"
    if steps:
        text += f" by more than {_steps(steps)}"
    distances = [item.unrounded for item in file.layers.values() if item.unrounded is not None]
    if distances:
        text += f"; at most {max(distances):.3f} steps from what the file rounds"
    return text


def _steps(number: float) -> str:
    return f"{number:.4g} step{'s' * (round(number, 3) != 1)}"
