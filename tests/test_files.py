"""Files are replaced as a whole: what fails half-way leaves the old one and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentspec.files import replacing


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "a"
    for content in (b"one", b"two"):
        with replacing(path) as file:
            file.write(content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_rest(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")
def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "a"
    with replacing(path, folder_mode=0o700) as file:
        file.write(b"x")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
