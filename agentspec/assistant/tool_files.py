"""Tools that list and read files."""

from __future__ import annotations

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import MAX_TEXT, Arguments, Result, Spec, capped, line_of
from agentspec.assistant.text_file import TextFile

_MAX_LISTED = 500
_MAX_LINES = 2_000


def file_tools(repository: Repository, most: int = MAX_TEXT) -> list[Spec]:
    """`list_files` and `read_file` of a repository; results have at most `most` characters."""

    def list_files(given: Arguments) -> Result:
        return Result(listing(repository, given.text("path", ".")))

    def read_file(given: Arguments) -> Result:
        return Result(
            reading(
                repository,
                given.text("path"),
                given.number("first", 1),
                given.number("last", 0),
                most,
            )
        )

    return [
        Spec(
            "list_files",
            "read",
            "List the files of the repository, or of one folder in it.",
            {"path": ("string", "Folder, from the root. Default: the root.", False)},
            list_files,
        ),
        Spec(
            "read_file",
            "read",
            "Read a text file. Each line is shown with its number, which is not part of the file.",
            {
                "path": ("string", "File, from the root.", True),
                "first": ("integer", "First line to show, from 1.", False),
                "last": ("integer", "Last line to show.", False),
            },
            read_file,
        ),
    ]


def listing(repository: Repository, folder: str) -> str:
    """The files below a folder, one a line; folders alone where there are too many files.

    Raises RefusedError when there is nothing.
    """
    prefix = repository.name(folder) + "/"
    found = [e.path for e in repository.files() if prefix == "/" or e.path.startswith(prefix)]
    if not found:
        if any(e.path == prefix[:-1] for e in repository.files()):
            raise RefusedError(f"{shown(prefix[:-1])} is a file; read it")
        raise RefusedError(
            f"there are no files below {shown(folder)} (links and ignored files are not listed)"
        )
    if len(found) <= _MAX_LISTED:
        text = "\n".join(shown(path) for path in found)
        return capped(text, "name a folder below", MAX_TEXT)
    skip = len(prefix) if prefix != "/" else 0
    counts: dict[str, int] = {}
    for path in found:
        head, slash, _ = path[skip:].partition("/")
        counts[head + slash] = counts.get(head + slash, 0) + 1
    lines = [
        f"{shown(name)} ({n} files)" if name.endswith("/") else shown(name)
        for name, n in counts.items()
    ]
    return capped(
        f"{len(found):,} files; name one of the folders to see them\n" + "\n".join(lines),
        "name a folder below",
    )


def reading(
    repository: Repository, path: str, first: int = 1, last: int = 0, most: int = MAX_TEXT
) -> str:
    """Lines of a file with their numbers, from `first` to `last` (0: as many as fit).

    Raises RefusedError where the file may not be read or has no such lines.
    """
    text = TextFile.decode(repository.read(path).data, path).text
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return "[the file is empty]"
    total = len(lines)
    first = max(first, 1)
    if first > total or 0 < last < first:
        raise RefusedError(f"{shown(path)} has {total} lines; ask for lines between 1 and {total}")
    last = min(last, total) if last > 0 else total
    shown_lines: list[str] = []
    room = most
    for number in range(first, min(last, first + _MAX_LINES - 1) + 1):
        line = f"{number:>5}  {line_of(lines[number - 1])}"
        room -= len(line) + 1
        if room < 0 and shown_lines:
            break
        shown_lines.append(line)
    end = first + len(shown_lines) - 1
    if end < total:
        shown_lines.append(f"[lines {first}-{end} of {total}; ask for more with first and last]")
    elif text and not text.endswith("\n"):
        shown_lines.append("[no newline at the end of the file]")
    return "\n".join(shown_lines)
