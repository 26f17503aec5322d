"""Classifies handwritten digits on the simulated machine: ``make demo``.

The whole test split goes through the functional model; the first images also go through the
cycle-accurate RTL, and after each run, which takes eight, the two memories are compared, byte for
byte. Ends with 1 if they differ, or if a result differs from ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from amaranth_vta.hw.config import DEFAULT
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import default_session

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits.onnx"
SHADES = " ░▒▓█"
SHOWN = 8
# Images per run of the machine: weights are loaded once for all of them.
TOGETHER = 8

Images = npt.NDArray[np.float32]
Logits = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=64, help="how many go through the RTL (64)")
    parser.add_argument(
        "--config", default=DEFAULT, help=f"preset, or file of parameters ({DEFAULT})"
    )
    arguments = parser.parse_args()
    with np.load(HERE / "images.npz") as file:
        images: Images = file["image"]
    with np.load(HERE / "labels.npz") as file:
        labels: Labels = file["label"]
    console = Console(highlight=False)
    console.print("[bold]Handwritten digits on the simulated machine[/bold]\n")
    rtl = open_rtl(console, arguments.config)
    with rtl, Session(MODEL, arguments.config, "functional", images=TOGETHER) as functional:
        count = min(max(arguments.images, 1), len(images))
        on_rtl, on_functional, unequal = classify(console, rtl, functional, images, count)
        console.print(f"[bold]Layer by layer on the RTL[/bold]\n{rtl.plan_table()}\n")
        console.print(f"{rtl.cycles_table()}\n")
        wrong = compare(console, on_rtl, on_functional, images, labels)
        report_speed(console, rtl, functional)
    show(console, images, on_rtl)
    if unequal:
        console.print(f"[red]RTL and functional model differ in {unequal:,} bytes of DRAM")
    else:
        console.print(
            f"[green]RTL and functional model agree in every byte of DRAM[/green]: "
            f"{rtl.device.memory_bytes:,} bytes, after each of {-(-count // TOGETHER)} runs"
        )
    return 1 if unequal or wrong else 0


def open_rtl(console: Console, config: str) -> Session:
    """A session on the RTL, whose simulator is built the first time."""
    start = perf_counter()
    session = Session(MODEL, config, "rtl", images=TOGETHER)
    machine = session.config
    console.print(
        f"{machine.batch}×{machine.block_in}×{machine.block_out} multiply-accumulates per cycle, "
        f"{8 * machine.bus_bytes}-bit bus; simulator ready after {perf_counter() - start:.1f} s\n"
    )
    return session


def classify(
    console: Console, rtl: Session, functional: Session, images: Images, count: int
) -> tuple[Logits, Logits, int]:
    """Logits of the first ``count`` images on the RTL and of all on the functional model, and how
    many bytes of their memories differed."""
    on_rtl, on_functional, unequal = [], [], 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        rtl_task = progress.add_task("RTL and functional model", total=count)
        functional_task = progress.add_task("functional model", total=len(images) - count)
        for start in range(0, count, TOGETHER):
            part = images[start : min(start + TOGETHER, count)]
            on_rtl.append(rtl.run({"image": part})["logits"])
            on_functional.append(functional.run({"image": part})["logits"])
            size = rtl.device.memory_bytes
            unequal += int((rtl.device.read(0, size) != functional.device.read(0, size)).sum())
            progress.advance(rtl_task, len(part))
        for start in range(count, len(images), TOGETHER):
            part = images[start : start + TOGETHER]
            on_functional.append(functional.run({"image": part})["logits"])
            progress.advance(functional_task, len(part))
    return np.concatenate(on_rtl), np.concatenate(on_functional), unequal


def compare(
    console: Console, on_rtl: Logits, on_functional: Logits, images: Images, labels: Labels
) -> int:
    """Prints accuracies next to ONNX Runtime's; returns how many logits differ."""
    (expected,) = default_session(MODEL.read_bytes()).run(None, {"image": images})
    table = Table(title="Accuracy", title_justify="left")
    table.add_column("on")
    for heading in ("images", "correct", "ONNX Runtime", "logits that differ"):
        table.add_column(heading, justify="right")
    wrong = 0
    for name, logits in (("RTL", on_rtl), ("functional model", on_functional)):
        count = len(logits)
        differ = int((logits != expected[:count]).sum())
        table.add_row(
            name,
            f"{count}",
            f"{(logits.argmax(axis=1) == labels[:count]).mean():.2%}",
            f"{(expected[:count].argmax(axis=1) == labels[:count]).mean():.2%}",
            f"{differ} of {logits.size:,}",
        )
        wrong += differ
    console.print(table)
    return wrong


def report_speed(console: Console, rtl: Session, functional: Session) -> None:
    report, model = rtl.report(), functional.report()
    console.print(
        f"RTL: {report['cycles']:,} cycles in {report['device_seconds']:.1f} s, "
        f"[bold]{report['simulated_cycles_per_second']:,.0f} simulated cycles per second[/bold]; "
        f"functional model: {model['macs'] / model['device_seconds']:,.0f} MACs per second\n"
    )


def show(console: Console, images: Images, logits: Logits) -> None:
    """The first images as text, each with the class that the RTL gave it."""
    shades = np.array(list(SHADES))
    # Two characters per pixel are about square; as many pictures as fit side by side.
    count = min(SHOWN, len(logits), max(console.width // 18, 1))
    pictures = [
        ["".join(shade * 2 for shade in row) for row in shades[np.rint(image * 4).astype(int)]]
        for image in images[:count, 0]
    ]
    for row in zip(*pictures, strict=True):
        console.print("  ".join(row), markup=False)
    answers = logits[:count].argmax(axis=1)
    console.print("  ".join(f"{answer:^16}" for answer in answers) + "\n", markup=False)


if __name__ == "__main__":
    sys.exit(main())
