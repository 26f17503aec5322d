from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.hw.config import DEFAULT, PRESETS, ConfigError
from amaranth_vta.sw.compiler.environment import Environment, get_env


def test_an_environment_is_made_from_a_name_a_file_or_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(PRESETS["tiny"].to_json())
    for config in ("tiny", path, str(path), PRESETS["tiny"]):
        env = Environment(config)
        assert env.config == PRESETS["tiny"]
        assert env.BLOCK_OUT == 4


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("pinq", "pinq is neither a preset .*pynq-extended.* nor a file"),
        (16, "a Config, the name of a preset or a file, not 16"),
        (None, "not None"),
    ],
)
def test_anything_else_is_refused(config: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Environment(config)


def test_the_innermost_environment_is_current_and_the_default_without_one() -> None:
    assert get_env().config == PRESETS[DEFAULT]
    with Environment("tiny") as outer:
        with Environment("tiny-extended") as inner:
            assert get_env() is inner
        assert get_env() is outer
    assert get_env().config == PRESETS[DEFAULT]
