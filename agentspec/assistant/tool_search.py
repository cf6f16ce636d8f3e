"""The tool that searches the repository: ripgrep where it is installed, else our own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import Arguments, Result, Spec, capped, line_of

_MAX_HITS = 200
_MAX_PATTERN = 1_000
_SECONDS = 15.0
_LINE = 300
_MAX_TEXT = 64 << 20

# Patterns come from the model: one that never ends is ended with the process that runs it.
_WORKER = """
import json, re, sys
pattern, flags, most = json.loads(sys.stdin.readline())
try:
    found = re.compile(pattern, flags)
except re.error as error:
    print(json.dumps([str(error)])); raise SystemExit
for line in sys.stdin:
    path, text = json.loads(line)
    for number, line in enumerate(text.split("\\n"), 1):
        if found.search(line[:10000]):
            print(json.dumps([path, number, line[:1000]]), flush=False)
            most -= 1
            if most <= 0:
                raise SystemExit
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that matches; numbers begin at 1."""

    path: str
    number: int
    line: str


def search_tools(repository: Repository) -> list[Spec]:
    """`search` of a repository."""

    def search(given: Arguments) -> Result:
        hits = find_lines(
            repository,
            given.text("pattern"),
            folder=given.text("path", "."),
            regex=given.flag("regex"),
            ignore_case=given.flag("ignore_case"),
        )
        if not hits:
            return Result("nothing found")
        lines = [f"{shown(hit.path)}:{hit.number}: {line_of(hit.line, _LINE)}" for hit in hits]
        if len(hits) >= _MAX_HITS:
            lines.append(f"[only the first {_MAX_HITS} matches; narrow the pattern or the path]")
        return Result(capped("\n".join(lines), "narrow the pattern or the path"))

    return [
        Spec(
            "search",
            "read",
            "Find lines of the repository's files that contain a text.",
            {
                "pattern": ("string", "What to look for.", True),
                "path": ("string", "Only in this file or folder.", False),
                "regex": ("boolean", "The pattern is a regular expression.", False),
                "ignore_case": ("boolean", "Capitals do not matter.", False),
            },
            search,
        )
    ]


def find_lines(
    repository: Repository,
    pattern: str,
    *,
    folder: str = ".",
    regex: bool = False,
    ignore_case: bool = False,
    most: int = _MAX_HITS,
) -> list[Hit]:
    """At most `most` lines that match, by file. Raises RefusedError for a pattern that is none."""
    if not pattern or len(pattern) > _MAX_PATTERN or "\0" in pattern or "\n" in pattern:
        raise RefusedError(f"the pattern must be one line of 1 to {_MAX_PATTERN} characters")
    name = repository.name(folder)
    paths = [
        entry.path
        for entry in repository.texts()
        if not name or entry.path == name or entry.path.startswith(name + "/")
    ]
    if not paths:
        raise RefusedError(f"there are no files below {shown(folder)}")
    program = shutil.which("rg")
    if program is not None:
        return _ripgrep(program, repository, pattern, paths, regex, ignore_case, most)
    if not regex:
        return list(_literal(_texts(repository, paths), pattern, ignore_case, most))
    return _regex(_texts(repository, paths), pattern, ignore_case, most)


def _texts(repository: Repository, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        try:
            data = repository.read(path).data
        except RefusedError:
            continue
        if b"\0" not in data[:8192]:
            yield path, data.decode("utf-8", "replace").replace("\r\n", "\n")


def _literal(
    texts: Iterable[tuple[str, str]], pattern: str, ignore_case: bool, most: int
) -> Iterator[Hit]:
    wanted = pattern.casefold() if ignore_case else pattern
    for path, text in texts:
        if wanted not in (text.casefold() if ignore_case else text):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if wanted in (line.casefold() if ignore_case else line):
                yield Hit(path, number, line)
                most -= 1
                if most <= 0:
                    return


def _regex(
    texts: Iterable[tuple[str, str]], pattern: str, ignore_case: bool, most: int
) -> list[Hit]:
    flags = int(re.IGNORECASE) if ignore_case else 0
    lines = [json.dumps([pattern, flags, most])]
    room = _MAX_TEXT
    for pair in texts:
        lines.append(json.dumps(pair))
        room -= len(lines[-1])
        if room < 0:
            raise RefusedError("there is too much to search; name a folder")
    out = _run([sys.executable, "-I", "-S", "-c", _WORKER], "\n".join(lines).encode())
    hits = []
    for line in out.splitlines():
        found = json.loads(line)
        if len(found) == 1:
            raise RefusedError(f"the pattern is no regular expression: {found[0]}")
        hits.append(Hit(*found))
    return hits


def _ripgrep(
    program: str,
    repository: Repository,
    pattern: str,
    paths: list[str],
    regex: bool,
    ignore_case: bool,
    most: int,
) -> list[Hit]:
    """Hits of ripgrep in files that may be read; it may look at others, they are left out."""
    command = [
        program, "--no-config", "--no-messages", "--no-follow", "--hidden", "--no-heading",
        "--color=never", "--null", "--line-number", "--no-ignore-dot", "--no-require-git",
        "--with-filename", "--glob=!.git",
        f"--max-filesize={repository.max_file}", "--max-columns=1000",
        "--max-columns-preview", f"--max-count={most}",
        "--sort=path", *(["--ignore-case"] if ignore_case else ["--case-sensitive"]),
        *([] if regex else ["--fixed-strings"]), f"--regexp={pattern}", "--", ".",
    ]  # fmt: skip
    # a whole tree is quicker to search at once than by names, and names have a limit of length
    if len(paths) <= 200:
        command[-1:] = [f"./{path}" for path in paths]
    out = _run(command, b"", cwd=str(repository.root))
    permitted = set(paths)
    hits: list[Hit] = []
    for raw in out.split(b"\n"):
        name, nul, rest = raw.partition(b"\0")
        number, colon, line = rest.partition(b":")
        path = os.fsdecode(name.removeprefix(b"./"))
        if nul and colon and number.isdigit() and path in permitted:
            hits.append(Hit(path, int(number), line.decode("utf-8", "replace")))
            if len(hits) >= most:
                break
    return hits


def _run(command: list[str], data: bytes, cwd: str | None = None) -> bytes:
    try:
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(
            f"the search took more than {_SECONDS:.0f} seconds; use a simpler pattern"
        ) from None
    except OSError as error:
        raise RefusedError(f"the search could not be run: {error.strerror or error}") from error
    if done.returncode not in (0, 1) and not done.stdout:
        why = done.stderr.decode("utf-8", "replace").strip().replace("\n", " ")[:300]
        raise RefusedError(f"the pattern cannot be searched for: {why or 'the search failed'}")
    return done.stdout
