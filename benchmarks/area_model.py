"""Fits the model of `vta estimate-area` to synthesis: ``make area-model``.

    python benchmarks/area_model.py [--family xc7|ecp5 ...] [--minutes N]

Synthesizes machines that differ in each parameter, flattened, as ``area.py`` does, and keeps what
it has measured in ``bitstreams/area_samples.json``, so that it goes on where it was stopped; what
was measured of other sources is measured again. Then fits LUTs and flip-flops by least squares of
relative errors, writes the weights into ``amaranth_vta/fpga/area_model.json``, and prints the
errors, also those of each machine by a fit without it. Multipliers and block RAMs follow from the
structure of the design: a machine for which they are not exact ends it with 1. Needs the extra
``fpga``; takes one to four minutes for each machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from area import measure
from resources import REPOSITORY

from amaranth_vta.fpga.area import FAMILIES, FITTED, MODEL, block_rams, features, multipliers
from amaranth_vta.fpga.build import sources_hash
from amaranth_vta.hw.config import PRESETS, Config

SAMPLES = REPOSITORY / "bitstreams" / "area_samples.json"
_EXTENSIONS = sorted(PRESETS["tiny-extended"].extensions)
_MEASURED = dict(zip(FITTED, ("luts", "ffs"), strict=True))
# What keeps a weight near 0 that the samples do not tell, in relative errors.
_RIDGE = 1e-2

Sample = dict[str, Any]


def machines() -> dict[str, Config]:
    """What is synthesized, the most telling first, by a name."""
    small, all_of = PRESETS["tiny"], dict.fromkeys(_EXTENSIONS, 1)
    all_of["lookup"] = 0  # which the presets have
    larger = {"log_uop_buff_size": 11, "log_inp_buff_size": 12}
    medium = replace(
        small,
        log_block_in=3,
        log_block_out=3,
        log_wgt_buff_size=14,
        log_acc_buff_size=14,
        **larger,
    )
    return {
        "tiny": small,
        "tiny-extended": PRESETS["tiny-extended"],
        "4×4 extended": replace(small, **all_of),
        "8×8": medium,
        "8×8 extended": replace(medium, **all_of),
        "8×8 extended, 128-bit bus": replace(medium, **all_of, log_bus_width=7),
        "pynq-extended": PRESETS["pynq-extended"],
        "16×16 extended": replace(PRESETS["pynq"], **all_of),
        "4×8 extended": replace(medium, **all_of, log_block_in=2),
        "8×4 extended": replace(medium, **all_of, log_block_out=2),
        "ecp5-25f": PRESETS["ecp5-25f"],
        "batch2": PRESETS["batch2"],
        "pynq": PRESETS["pynq"],
        **{f"4×4 {name}": replace(small, **{name: 1}) for name in _EXTENSIONS},
        "4×4 extended, 128-bit bus": replace(small, **all_of, log_bus_width=7),
        "4×4 extended, larger buffers": replace(
            small, **all_of, log_wgt_buff_size=14, log_acc_buff_size=14, **larger
        ),
        "16×8 extended": replace(
            medium, **all_of, log_block_in=4, log_inp_buff_size=14, log_wgt_buff_size=16
        ),
        "8×16 extended": replace(
            medium, **all_of, log_block_out=4, log_wgt_buff_size=16, log_acc_buff_size=15
        ),
        "int4": PRESETS["int4"],
    }


def synthesize(families: list[str], minutes: float) -> dict[str, Sample]:
    """What is known of the machines of these sources, with as many more as the time allows."""
    deadline, version = time.monotonic() + 60 * minutes, sources_hash()
    samples: dict[str, Sample] = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}
    for name, config in machines().items():
        for family in families:
            key = f"{name}, {family}"
            known = samples.get(key)
            if known is not None and known["sources"] == version[:16]:
                continue
            if time.monotonic() > deadline:
                continue
            area = measure(config, family)
            samples[key] = {"config": config.to_dict(), "sources": version[:16], **area}
            print(f"{key:<40}{area}", flush=True)
            SAMPLES.write_text(json.dumps(samples, indent=1, sort_keys=True) + "\n")
    return samples


def fit(rows: list[dict[str, float]], counts: npt.NDArray[np.float64]) -> dict[str, float]:
    """Weights of the features of ``rows`` for ``counts``, by relative error."""
    names, mean = list(rows[0]), float(counts.mean())
    matrix = np.array([[row[name] for name in names] for row in rows])
    scale = np.abs(matrix).max(axis=0) + 1e-9
    regular = np.eye(len(names)) * _RIDGE
    regular[0, 0] = 0
    weights, *_ = np.linalg.lstsq(
        np.vstack([matrix / scale * mean / counts[:, None], regular]),
        np.concatenate([np.ones(len(counts)), np.zeros(len(names))]),
        rcond=None,
    )
    found = zip(names, weights / scale * mean, strict=True)
    return {name: float(f"{weight:.5g}") for name, weight in found}


def predicted(weights: dict[str, float], row: dict[str, float]) -> float:
    return sum(weights[name] * row[name] for name in weights)


def fit_family(family: str, samples: dict[str, Sample]) -> tuple[dict[str, Any], list[str]]:
    """The model of a family, and what is not exact."""
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
    for column, measured in _MEASURED.items():
        counts = np.array([sample[measured] for sample in own.values()])
        weights = fit(rows, counts)
        errors, without = [], []
        for number, row in enumerate(rows):
            errors.append(predicted(weights, row) / counts[number] - 1)
            rest = fit(rows[:number] + rows[number + 1 :], np.delete(counts, number))
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
    arguments = parser.parse_args()
    samples = synthesize(arguments.family or list(FAMILIES), arguments.minutes)
    model, problems = {}, []
    for family in FAMILIES:
        model[family], inexact = fit_family(family, samples)
        problems += inexact
    MODEL.write_text(json.dumps(model, indent=2) + "\n")
    if problems:
        sys.exit("not exact:\n" + "\n".join(problems))


if __name__ == "__main__":
    main()
