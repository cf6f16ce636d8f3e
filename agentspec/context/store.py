"""The tokens of a workspace kept on disk, so that a file is tokenised once and not per start.

Nothing here is needed for an answer: whatever fails costs speed and one warning. What is stored
stays below one folder that only its owner can enter.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Tokenizer
from agentspec.context import tokenfile
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.context.tokenfile import PART, PREFIX, SUFFIX, Record
from agentspec.context.workspace import Entry, Workspace
from agentspec.errors import InvalidRequestError
from agentspec.files import cache_folder

_log = logging.getLogger(__name__)

LIMIT_BYTES = 512 << 20
SESSION_TOKENS = 262_144
TOOL_TOKENS = 131_072

_OURS = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
_STALE_SECONDS = 3600.0
_RACY_NS = 2_000_000_000
"""A file modified this shortly before it was read may change again and keep its mtime."""
_UNSURE = -(1 << 62)


def default_directory() -> Path:
    """Where indexes are kept: below the user's cache folder."""
    return cache_folder("index")


def tokenizer_identity(tokenizer: Tokenizer) -> str:
    """A digest of every piece of the vocabulary; a few hundred milliseconds.

    Two tokenizers that share it may still cut text differently: where the model file's own digest
    is known, that is the better identity.
    """
    digest = hashlib.blake2b(digest_size=16)
    for token in range(tokenizer.vocab_size):
        piece = tokenizer.piece(token)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.hexdigest()


class IndexStore:
    """Indexes on disk, one file per workspace and tokenizer, below `directory`.

    `identity` must differ where `tokenizer` would give other ids. Over `limit_bytes` in all, the
    files that were used longest ago are removed, but none that this store has opened.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        identity: str,
        tokenizer: Tokenizer,
        *,
        limit_bytes: int = LIMIT_BYTES,
        session_tokens: int = SESSION_TOKENS,
        tool_tokens: int = TOOL_TOKENS,
    ) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()
        self.tokenizer = tokenizer
        self.caps = {"session": session_tokens, "tool": tool_tokens}
        self._identity = identity
        self._limit = limit_bytes
        self._open: set[str] = set()
        self._warned = False

    def path_of(self, workspace: Workspace) -> Path:
        key = self._key(workspace).encode("ascii")
        return self.directory / (hashlib.blake2b(key, digest_size=16).hexdigest() + SUFFIX)

    def open(self, workspace: Workspace, *, seconds: float | None = None) -> StoredIndex:
        """The index of `workspace`, up to date; new files are tokenised for up to `seconds`."""
        path = self.path_of(workspace)
        self._open.add(path.name)
        records: list[Record] = []
        damaged = False
        try:
            records = tokenfile.read(
                path, self._key(workspace), self.tokenizer.vocab_size, self._limit
            )
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            damaged = True
            _log.warning("the index %s is not used and is made again: %s", path, error)
        index = StoredIndex(self, workspace, records, unsaved=damaged)
        index.refresh(seconds=seconds)
        return index

    def write(self, workspace: Workspace, records: Sequence[Record]) -> bool:
        """Store the records; False, with one warning per store, where that cannot be done."""
        try:
            tokenfile.write(self.path_of(workspace), self._key(workspace), records, self._limit)
        except OSError as error:
            if not self._warned:
                _log.warning("the index cannot be kept in %s: %s", self.directory, error)
            self._warned = True
            return False
        self._sweep()
        return True

    def touch(self, workspace: Workspace) -> None:
        """Note the use: eviction, in other processes too, goes by the files' times."""
        with contextlib.suppress(OSError, NotImplementedError):  # Windows follows links only
            os.utime(self.path_of(workspace), follow_symlinks=False)

    def _key(self, workspace: Workspace) -> str:
        return json.dumps(
            [str(workspace.root), self._identity, self.tokenizer.vocab_size, tokenfile.VERSION]
        )

    def _sweep(self) -> None:
        """Remove what killed writers left, then the least recently used beyond the limit."""
        found: list[tuple[float, str, int]] = []
        with contextlib.suppress(OSError), os.scandir(self.directory) as listing:
            for entry in listing:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    left = entry.name.startswith(PREFIX) and entry.name.endswith(PART)
                    if left and time.time() - status.st_mtime > _STALE_SECONDS:
                        os.unlink(entry.path)
                    elif _OURS.fullmatch(entry.name):
                        found.append((status.st_mtime, entry.name, status.st_size))
        total = sum(size for _, _, size in found)
        for _, name, size in sorted(found):
            if total <= self._limit:
                break
            if name not in self._open:
                with contextlib.suppress(OSError):
                    os.unlink(self.directory / name)
                    total -= size


class StoredIndex:
    """What is indexed of one workspace: its files, tool outputs and earlier sessions.

    Not for several threads at once. Changes are kept by the next `save` or `refresh`.
    """

    def __init__(
        self,
        store: IndexStore,
        workspace: Workspace,
        records: Iterable[Record] = (),
        *,
        unsaved: bool = False,
    ) -> None:
        self.workspace = workspace
        self.pending = 0
        """Files that `refresh` had no time for."""
        self._store = store
        self._records: dict[str, dict[str, Record]] = {kind: {} for kind in tokenfile.KINDS}
        for record in records:
            self._records[record.kind][record.name] = record
        self._unsaved = unsaved
        self._index = TokenIndex()
        self._stale = True
        self._starts: list[int] = []
        self._sources: list[str] = []
        self._placed: dict[tuple[str, str], npt.NDArray[np.int32]] = {}

    def documents(self) -> list[tuple[str, npt.NDArray[np.int32]]]:
        """Source name and tokens of every document: sessions, tool outputs, then files.

        Within each kind the newest is last. Names are "session:ID", "tool:ID", "file:PATH".
        """
        return [(_source(record), record.tokens) for record in self._filled()]

    def index(self) -> TokenIndex:
        """Every document with a SEPARATOR after it; the caller must not add to it.

        Documents that changed since the last call are appended, and their old tokens stay until
        they are more than half: then the index is a new object. Until then places stay valid.
        """
        if self._stale:
            records = self._filled()
            held = self._placed
            self._placed = {
                key: run
                for key, run in ((_key(record), record.tokens) for record in records)
                if held.get(key) is run  # another version is another array
            }
            live = sum(len(record.tokens) + 1 for record in records)
            waste = len(self._index) - sum(len(run) + 1 for run in self._placed.values())
            if waste > live or not self._placed:
                self._index = TokenIndex()
                self._starts, self._sources, self._placed = [], [], {}
            self._append([record for record in records if _key(record) not in self._placed])
            self._stale = False
        return self._index

    def source_at(self, place: int) -> str:
        """The source name of a place of the last `index`; "" beyond its end."""
        if not 0 <= place < len(self._index):
            return ""
        return self._sources[bisect_right(self._starts, place) - 1]

    @property
    def nbytes(self) -> int:
        """Bytes held by the documents' tokens and the last `index`."""
        owners = [r.tokens if r.tokens.base is None else r.tokens.base for r in self._filled()]
        held = {id(owner): int(owner.nbytes) for owner in owners}
        return sum(held.values()) + self._index.nbytes

    def add_session(self, session: str, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Keep an earlier session, in place of one with this ID; the oldest give way to it.

        Raises InvalidRequestError for ids outside the vocabulary.
        """
        self._add("session", session, tokens)

    def add_tool(self, output: str, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Keep a tool's output, as `add_session` keeps a session."""
        self._add("tool", output, tokens)

    def refresh(self, *, seconds: float | None = None) -> int:
        """Bring the files up to date and save; how many documents were added, changed or dropped.

        Costs a walk with one stat per file; only files whose size or mtime changed are read, and
        only new content is tokenised, the latest first, for up to `seconds`.
        """
        old = self._records["file"]
        known_content = {record.digest: record for record in old.values() if record.digest}
        until = time.monotonic() + seconds if seconds is not None else None
        fresh: dict[str, Record] = {}
        changed = self.pending = 0
        for entry in reversed(self.workspace.files()):
            path, known = entry.path, old.get(entry.path)
            if known and (known.size, known.mtime_ns) == (entry.size, entry.mtime_ns):
                fresh[path] = known
            elif until is None or time.monotonic() < until:
                fresh[path] = self._read(entry, known, known_content)
                changed += known is None or known.tokens is not fresh[path].tokens
            else:
                self.pending += 1
                if known:
                    fresh[path] = known
        changed += len(old.keys() - fresh.keys())
        files = dict(reversed(fresh.items()))
        if list(files.values()) != list(old.values()):
            self._unsaved = True
        if changed or list(files) != list(old):
            self._stale = True
        self._records["file"] = files
        self.save()
        self._store.touch(self.workspace)
        return changed

    def save(self) -> None:
        """Write what changed; where that fails, a warning says so and the next call tries again."""
        if self._unsaved:
            records = [r for kind in tokenfile.KINDS for r in self._records[kind].values()]
            self._unsaved = not self._store.write(self.workspace, records)

    def _read(self, entry: Entry, known: Record | None, known_content: dict[str, Record]) -> Record:
        """The record of a file as it is now, without tokens where it may not be indexed."""
        before = time.time_ns() - _RACY_NS
        digest, tokens = "", _EMPTY
        found = self.workspace.read(entry.path)
        if found is not None:
            entry, text = found
            digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
            if digest in known_content:
                tokens = known_content[digest].tokens
            else:
                try:
                    tokens = np.asarray(self._store.tokenizer.encode(text), dtype=np.int32)
                except InvalidRequestError:  # one odd file must not cost the others
                    digest = ""
        mtime_ns = entry.mtime_ns if entry.mtime_ns < before else _UNSURE
        version = (entry.size, mtime_ns, digest)
        if known and (known.size, known.mtime_ns, known.digest) == version:
            return known
        record = Record("file", entry.path, tokens, *version)
        if digest:
            known_content[digest] = record
        return record

    def _add(self, kind: str, name: str, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        cap = self._store.caps[kind]
        run = np.asarray(tokens)[-cap:] if cap and len(tokens) else _EMPTY
        vocab = self._store.tokenizer.vocab_size
        if run.ndim != 1 or run.dtype.kind not in "iu" or ((run < 0) | (run >= vocab)).any():
            raise InvalidRequestError(
                f"the tokens of {kind} {name!r} hold ids outside the vocabulary; "
                "give ids of the tokenizer that the store was made for",
                param="tokens",
            )
        kept = self._records[kind]
        kept.pop(name, None)
        kept[name] = Record(kind, name, run.astype(np.int32))
        total = sum(len(record.tokens) for record in kept.values())
        while total > cap:
            oldest = next(iter(kept))
            total -= len(kept.pop(oldest).tokens)
        self._stale = self._unsaved = True

    def _append(self, records: Sequence[Record]) -> None:
        end = len(self._index)
        runs: list[npt.NDArray[np.int32]] = []
        for record in records:
            self._starts.append(end)
            self._sources.append(_source(record))
            self._placed[_key(record)] = record.tokens
            runs += [record.tokens, _BORDER]
            end += len(record.tokens) + 1
        if runs:
            self._index.load(np.concatenate(runs))

    def _filled(self) -> list[Record]:
        return [
            record
            for kind in tokenfile.KINDS
            for record in self._records[kind].values()
            if len(record.tokens)
        ]


_EMPTY = np.empty(0, dtype=np.int32)
_BORDER = np.array([SEPARATOR], dtype=np.int32)


def _key(record: Record) -> tuple[str, str]:
    return record.kind, record.name


def _source(record: Record) -> str:
    """A name that can be printed: in a path, what is no text is escaped."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in record.name)
    return f"{record.kind}:{''.join(shown)}"
