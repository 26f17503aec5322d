from __future__ import annotations

import pytest
from find_libpython import find_libpython


@pytest.fixture(autouse=True)
def _python_library() -> None:
    """The simulator loads Python as a shared library, which some installations lack."""
    if find_libpython() is None:
        pytest.skip("this Python has no shared library (Debian: apt install libpython3.11)")
