from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import amaranth_vta


@pytest.mark.parametrize("name", amaranth_vta.__all__)
def test_a_public_name_is_there_when_it_is_asked_for(name: str) -> None:
    assert getattr(amaranth_vta, name) is getattr(amaranth_vta, name)
    assert name in dir(amaranth_vta)


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'amaranth_vta' has no attribute 'Tensor'"):
        _ = amaranth_vta.Tensor


def test_the_package_alone_loads_nothing_heavy() -> None:
    code = "import sys, amaranth_vta; print({'amaranth', 'numpy', 'onnx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_package_runs_as_a_module_and_says_its_version() -> None:
    command = [sys.executable, "-m", "amaranth_vta", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"vta, version {amaranth_vta.__version__}\n"
    assert amaranth_vta.__version__ == metadata.version("amaranth-vta")
