"""Examples shipped with the package, and their paths: `example_path`."""

from __future__ import annotations

from pathlib import Path

# By name: the file or folder, its subject, and a command to start with.
EXAMPLES = {
    "digits": (
        "digits",
        "a network from its training to the machine, handwritten digits",
        "python digits/demo.py",
    ),
    "own-network": (
        "own_network.py",
        "a float model, from PyTorch if there, to a report of its run",
        "python own_network.py",
    ),
    "exploration": (
        "exploration",
        "a sweep over twelve machines, with a report",
        "vta explore exploration/digits.toml -o out",
    ),
    "own-operator": (
        "own_operator.py",
        "an operator added to the compiler of networks",
        "python own_operator.py",
    ),
    "schedules": (
        "schedules.py",
        "operators as expressions with schedules, as in VTA's tutorials",
        "vta lower schedules.py:vector_add",
    ),
    "own-instruction": (
        "tutorials/6_instruction.ipynb",
        "an instruction: instruction set, model, hardware, compiler, test",
        "jupyter lab 6_instruction.ipynb",
    ),
    "cocotb-bench": (
        "tutorials/7_cocotb_bench.ipynb",
        "a bench of a module, and a planted bug that it finds",
        "jupyter lab 7_cocotb_bench.ipynb",
    ),
    "firmware": (
        "firmware",
        "C that classifies a digit without an operating system",
        "vta compile digits/digits.onnx --config tiny -o digits.vta",
    ),
    "litex-soc": ("litex_soc.py", "the machine in a LiteX SoC", "python litex_soc.py -o soc.v"),
}
# For each example, the other examples whose files it needs.
REQUIRED = {"exploration": ("digits",), "firmware": ("digits",)}


def example_path(name: str) -> Path:
    """Path of the file or folder of the example ``name``, in the installed package or in the
    checkout.

    `vta examples` lists the names. Raises `ValueError` for an unknown name.
    """
    if name not in EXAMPLES:
        raise ValueError(f"no example is called {name}; there are {', '.join(EXAMPLES)}")
    file = EXAMPLES[name][0]
    package = Path(__file__).parent
    installed = package / "examples" / file
    if installed.exists():
        return installed
    folder = "docs" if file.startswith("tutorials/") else "examples"
    return package.parent / folder / file
