from __future__ import annotations

from importlib import import_module

import pytest

from amaranth_vta.cli.problems import FAULTS, INPUT_ERRORS


@pytest.mark.parametrize("name", sorted(INPUT_ERRORS | FAULTS))
def test_an_error_that_is_listed_by_name_exists_where_the_list_says(name: str) -> None:
    module, _, error = name.rpartition(".")
    kind = getattr(import_module(module), error)
    assert issubclass(kind, Exception)
    assert f"{kind.__module__}.{kind.__qualname__}" == name
