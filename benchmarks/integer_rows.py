"""How often integer graphs of rows differ from ONNX Runtime's float operators.

    python benchmarks/integer_rows.py [--rows 100000] [--sizes 64 192 768]

Quantizes random int8 rows of different means and deviations by Softmax, LayerNormalization, RMS
normalization and rotary position embedding, at random positions, in float without optimizations and
as `vta quantize --integer-only` writes them.
Prints the share of elements that differ and the largest difference in steps of the result.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.integer_rows import integer_rows, qdq_rows, random_rows
from tests.support.rotations import POSITIONS, integer_rotation, qdq_rotation

# Scale and zero point of the results, by function.
_RESULTS = {
    "Softmax": (2**-8, -128),
    "LayerNormalization": (0.04, 5),
    "rms": (0.04, 0),
    "rotary": (0.06, 0),
}
_INPUT_SCALE = 0.05
# Rows per run.
_ROWS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 192, 768])
    arguments = parser.parse_args()
    print("function                size  elements that differ  largest difference")
    for function, (scale, zero) in _RESULTS.items():
        for size in arguments.sizes:
            shape = (_ROWS, size)
            sessions = _sessions(function, shape, (_INPUT_SCALE, scale), zero)
            different, largest, count = 0, 0, -(-arguments.rows // _ROWS)
            for seed in range(count):
                rows, rng = random_rows(shape, np.int8, seed), np.random.default_rng(seed)
                given = {"x": rows, "xi": rows, "places": rng.integers(0, POSITIONS, _ROWS)}
                results = [_result(session, given) for session in sessions]
                distance = np.abs(results[0] - results[1])
                different += int((distance > 0).sum())
                largest = max(largest, int(distance.max()))
            share = different / (count * _ROWS * size)
            print(f"{function:22} {size:5}  {share:20.4%}  {largest:18}", flush=True)


def _sessions(
    function: str, shape: tuple[int, int], scales: tuple[float, float], zero: int
) -> list[Any]:
    """ONNX Runtime with the float operators and with the integer graph of a ``function``."""
    if function == "rotary":
        models = [make(shape, scales=scales) for make in (qdq_rotation, integer_rotation)]
    else:
        given = (function, shape, scales, np.int8, (0, zero))
        models = [make(*given) for make in (qdq_rows, integer_rows)]
    return [exact_session(model.SerializeToString()) for model in models]


def _result(session: Any, given: dict[str, Any]) -> Any:
    names = [item.name for item in session.get_inputs()]
    (output,) = (item.name for item in session.get_outputs())
    found = run_session(session, [output], {name: given[name] for name in names})
    return found[output].astype(np.int64)


if __name__ == "__main__":
    main()
