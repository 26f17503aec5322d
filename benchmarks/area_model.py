"""Fit the model of `vta estimate-area` to synthesis results: ``make area-model``.

    python benchmarks/area_model.py [--family xc7|ecp5 ...] [--minutes N] [--jobs N]

Synthesizes machines that differ in each parameter, flattened, as ``area.py`` does. Keeps the counts
in ``bitstreams/area_samples.json``, so that an interrupted run resumes, and synthesizes a machine
again when its Verilog has changed. Then fits LUTs and flip-flops by least squares of relative
errors, regularized towards the current weights, writes the new weights into
``amaranth_vta/fpga/area_model.json``, and prints for each machine the error of the fit and the
leave-one-out error. Multipliers and block RAMs follow from the structure of the design: exits with
1 if they are not exact for a machine. Needs the extra ``fpga``; takes one to four minutes of
processor time per machine, half an hour for all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from area import COLUMNS, measure
from pages import REPOSITORY

from amaranth_vta.fpga.area import FAMILIES, FITTED, MODEL, block_rams, features, multipliers
from amaranth_vta.fpga.synthesis import merged_modules
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.machine.elaborate import verilog

SAMPLES = REPOSITORY / "bitstreams" / "area_samples.json"
_EXTENSIONS = sorted(PRESETS["tiny-extended"].extensions)
_MEASURED = dict(zip(FITTED, ("luts", "ffs"), strict=True))
# Ridge term, as a relative error: keeps weights that the samples do not determine at their current
# value.
_RIDGE = 1e-2

Sample = dict[str, Any]


def machines(family: str) -> dict[str, Config]:
    """The machines to synthesize for a family, by name, the most informative first.

    The largest take minutes each and need more multipliers than an ECP5 has.
    """
    small, all_of = PRESETS["tiny"], dict.fromkeys(_EXTENSIONS, 1)
    # Results cannot be forwarded as inputs if input and output elements differ in size.
    of_any_shape = {**all_of, "forward": 0}
    without_table = {**of_any_shape, "lookup": 0}
    found = {
        "tiny": small,
        "tiny-extended": PRESETS["tiny-extended"],
        "8×8 extended, 128-bit bus": replace(_sized(3, 3), **all_of, log_bus_width=7),
        "8×8": _sized(3, 3),
    }
    if family == "xc7":
        found |= {"pynq-extended": PRESETS["pynq-extended"], "pynq": PRESETS["pynq"]}
    else:
        found |= {"ecp5-25f": PRESETS["ecp5-25f"]}
    found |= {
        "32×4 extended": replace(_sized(5, 2), **of_any_shape),
        "4×16 extended": replace(_sized(2, 4), **without_table),
        "16×4 extended": replace(_sized(4, 2), **of_any_shape),
        "4×4 extended": replace(small, **without_table),
        "4×8 extended, larger buffers": replace(
            _sized(2, 3), **of_any_shape, log_wgt_buff_size=16, log_acc_buff_size=15
        ),
        "4×4 overlap, no counters": replace(small, overlap=1, counters=0),
        "4×4 requantize, 128-bit bus": replace(small, requantize=1, log_bus_width=7),
        "8×4 lookup": replace(_sized(3, 2), lookup=1),
        "4×4, 16 MiB, no counters": replace(small, log_dram_size=24, counters=0),
        "4×4 depthwise": replace(small, depthwise=1),
        "4×4 forward": replace(small, forward=1),
        "8×8 depthwise, forward": replace(_sized(3, 3), depthwise=1, forward=1),
    }
    if family == "xc7":
        found["16×8 extended"] = replace(_sized(4, 3), **of_any_shape)
    else:
        found |= {
            "16×4": _sized(4, 2),
            "4×8": _sized(2, 3),
            "8×4 extended": replace(_sized(3, 2), **of_any_shape),
            "8×8 requantize": replace(_sized(3, 3), requantize=1),
        }
    return found


def _sized(log_in: int, log_out: int) -> Config:
    """A machine of 2^``log_in`` inputs and 2^``log_out`` outputs, with scratchpads that suit it."""
    return replace(
        PRESETS["tiny"],
        log_block_in=log_in,
        log_block_out=log_out,
        log_uop_buff_size=12,
        log_inp_buff_size=10 + log_in,
        log_wgt_buff_size=8 + log_in + log_out,
        log_acc_buff_size=11 + log_out,
    )


def synthesize(families: list[str], minutes: float, jobs: int) -> dict[str, Sample]:
    """The samples whose machines are unchanged, and as many new ones as the time allows."""
    samples: dict[str, Sample] = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}
    todo = {
        f"{name}, {family}": (number, config, family)
        for family in families
        for number, (name, config) in enumerate(machines(family).items())
    }
    known = {f"{name}, {family}" for family in FAMILIES for name in machines(family)}
    samples = {key: value for key, value in samples.items() if key in known}
    keys = sorted(todo, key=lambda key: todo[key][0])
    deadline = time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [(samples.get(key), *todo[key][1:], deadline) for key in keys]
        for key, sample in zip(keys, pool.map(sampled, tasks), strict=True):
            if sample is None:
                samples.pop(key, None)  # of a previous design
                continue
            samples[key] = sample
            print(f"{key:<40}{[sample[column] for column in COLUMNS]}", flush=True)
            SAMPLES.write_text(json.dumps(samples, indent=1, sort_keys=True) + "\n")
    return samples


def sampled(task: tuple[Sample | None, Config, str, float]) -> Sample | None:
    """The sample of a machine: the known sample if its design is unchanged, None after the
    deadline.
    """
    known, config, family, deadline = task
    design = design_of(config)
    if known is not None and known.get("design") == design:
        return known
    if time.monotonic() > deadline:
        return None
    return {"config": config.to_dict(), "design": design, **measure(config, family)}


def design_of(config: Config) -> str:
    """A digest of the machine's Verilog, without attributes and comments on source locations."""
    text = re.sub(r"\(\* .*? \*\)|//.*", "", merged_modules(verilog(config)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fit(
    rows: list[dict[str, float]], counts: npt.NDArray[np.float64], before: Mapping[str, float]
) -> dict[str, float]:
    """Fit weights of the features of ``rows`` to ``counts`` by relative error. Weights that the
    rows do not determine stay as in ``before``.
    """
    if not rows:
        return dict(before)
    names, mean = list(rows[0]), float(counts.mean())
    known = np.array([before.get(name, 0.0) for name in names])
    matrix = np.array([[row[name] for name in names] for row in rows])
    scale = np.abs(matrix).max(axis=0) + 1e-9
    regular = np.eye(len(names)) * _RIDGE
    regular[0, 0] = 0
    changes, *_ = np.linalg.lstsq(
        np.vstack([matrix / scale * mean / counts[:, None], regular]),
        np.concatenate([1 - matrix @ known / counts, np.zeros(len(names))]),
        rcond=None,
    )
    found = zip(names, known + changes / scale * mean, strict=True)
    return {name: float(f"{weight:.5g}") for name, weight in found}


def predicted(weights: dict[str, float], row: dict[str, float]) -> float:
    return sum(weight * row[name] for name, weight in weights.items())


def fit_family(family: str, samples: dict[str, Sample]) -> tuple[dict[str, Any], list[str]]:
    """The model of a family, and a line for each machine whose DSP or BRAM36 is not exact."""
    own = {k.rpartition(", ")[0]: s for k, s in samples.items() if k.endswith(f", {family}")}
    configs = {name: Config.from_dict(sample["config"]) for name, sample in own.items()}
    problems = []
    for name, config in configs.items():
        expected = multipliers(config, family), block_rams(config, family)
        found = own[name]["dsps"], own[name]["brams"] / (1 if family == "xc7" else 2)
        if expected != found:
            problems.append(f"{name}, {family}: DSP and BRAM36 {expected}, not {found}")
    model: dict[str, Any] = {"samples": len(own)}
    rows = [features(config) for config in configs.values()]
    before = json.loads(MODEL.read_text(encoding="utf-8"))[family]
    for column, measured in _MEASURED.items():
        counts = np.array([sample[measured] for sample in own.values()])
        known = before[column]["weights"]
        weights = fit(rows, counts, known)
        errors, without = [], []
        for number, row in enumerate(rows):
            errors.append(predicted(weights, row) / counts[number] - 1)
            # Leave-one-out starts without weights, since the previous ones may stem from the
            # omitted machine.
            rest = fit(rows[:number] + rows[number + 1 :], np.delete(counts, number), {})
            without.append(predicted(rest, row) / counts[number] - 1)
            print(f"  {family} {column:<4}{list(own)[number]:<32}{counts[number]:>8,.0f}"
                  f"{errors[-1]:>8.1%}{without[-1]:>8.1%}")  # fmt: skip
        model[column] = {
            "weights": weights,
            "mean_error": round(float(np.mean(np.abs(errors))), 4),
            "worst_error": round(float(np.max(np.abs(errors))), 4),
            "mean_error_of_others": round(float(np.mean(np.abs(without))), 4),
        }
        print(f"{family} {column}: mean error {model[column]['mean_error']:.1%}, worst "
              f"{model[column]['worst_error']:.1%}; of machines that are not fitted to, mean "
              f"{model[column]['mean_error_of_others']:.1%}")  # fmt: skip
    return model, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no machine after these")
    parser.add_argument("--jobs", type=int, default=1, help="machines at a time")
    arguments = parser.parse_args()
    families = arguments.family or list(FAMILIES)
    samples = synthesize(families, arguments.minutes, arguments.jobs)
    model, problems = {}, []
    for family in FAMILIES:
        model[family], inexact = fit_family(family, samples)
        problems += inexact
    MODEL.write_text(json.dumps(model, indent=2) + "\n")
    if problems:
        sys.exit("not exact:\n" + "\n".join(problems))


if __name__ == "__main__":
    main()
