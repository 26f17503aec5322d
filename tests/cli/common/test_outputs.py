from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest

from amaranth_vta.cli.common.outputs import OutputError, Outputs


def write(data: bytes, path: Path) -> None:
    with Outputs() as outputs:
        outputs.reserve("-o", str(path))
        outputs.save("-o", lambda file: file.write(data))


def test_a_saved_file_is_all_that_is_left(tmp_path: Path) -> None:
    write(b"new", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with Outputs() as outputs:
        outputs.reserve("-o", str(path))

        def look(file: IO[bytes]) -> None:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"

        outputs.save("-o", look)
    assert path.read_bytes() == b"new"


def test_work_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def work() -> None:
        with Outputs() as outputs:
            outputs.reserve("-o", str(path))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fill(file: IO[bytes]) -> None:
        file.write(b"ne")
        raise OSError(28, "No space left on device")

    with Outputs() as outputs:
        outputs.reserve("-o", str(path))
        with pytest.raises(OutputError, match="x cannot be written: No space left on device"):
            outputs.save("-o", fill)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "link").symlink_to("x")
    write(b"new", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "x").read_bytes() == b"new"


def test_what_is_not_a_regular_file_is_written_to_and_stays() -> None:
    write(b"new", Path("/dev/null"))
    assert not Path("/dev/null").is_file()
    with pytest.raises(OutputError, match="/dev/full cannot be written: No space left"):
        write(b"new", Path("/dev/full"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file/folder/x", "Not a directory"),
        (".", "Is a directory"),
        ("new/", "Is a directory"),
        (f"{'n' * 300}/x", "File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_found_before_the_work(
    tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with Outputs() as outputs, pytest.raises(OutputError, match=f"cannot be written: {reason}"):
        outputs.reserve("-o", f"{tmp_path}/{path}")
    assert os.listdir(tmp_path) == ["file"]


def test_two_options_cannot_name_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    with Outputs() as outputs:
        outputs.reserve("--outputs", str(tmp_path / "x"))
        with pytest.raises(OutputError, match="--outputs and --json name the same file"):
            outputs.reserve("--json", str(tmp_path / "link"))
    assert os.listdir(tmp_path) == ["link"]


def test_folders_on_the_way_are_created(tmp_path: Path) -> None:
    write(b"new", tmp_path / "a" / "b" / "x")
    assert (tmp_path / "a" / "b" / "x").read_bytes() == b"new"
    with Outputs() as outputs:
        outputs.reserve_folder("--split", str(tmp_path / "c" / "d" / "e"), "vta.f")
        outputs.save_folder("--split", {"vta.f": b"list"})
    assert (tmp_path / "c" / "d" / "e" / "vta.f").read_bytes() == b"list"


def test_created_folders_stay_only_if_something_is_in_them(tmp_path: Path) -> None:
    with Outputs() as outputs:
        outputs.reserve("--json", str(tmp_path / "new" / "a" / "x"))
        outputs.reserve("--outputs", str(tmp_path / "new" / "b" / "y"))
        outputs.keep_folder("--keep", str(tmp_path / "new" / "c"))
        outputs.save("--outputs", lambda file: file.write(b"kept"))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "new",
        "new/b",
        "new/b/y",
    ]


def test_a_file_in_a_folder_that_is_replaced_is_refused(tmp_path: Path) -> None:
    """The folder is replaced as a whole, so the file would be lost."""
    with Outputs() as outputs:
        outputs.reserve_folder("--report", str(tmp_path / "out"), "report.html")
        with pytest.raises(OutputError, match="lies in the folder of --report"):
            outputs.reserve("--trace", str(tmp_path / "out" / "trace.json"))
    with Outputs() as outputs:
        outputs.reserve("--json", str(tmp_path / "out" / "run.json"))
        with pytest.raises(OutputError, match="the file of --json lies in it"):
            outputs.reserve_folder("--report", str(tmp_path / "out"), "report.html")
    assert os.listdir(tmp_path) == []
