"""Tools that propose changes of files; nothing is written here."""

from __future__ import annotations

from agentspec.assistant.blocks import parse_blocks
from agentspec.assistant.change import Change
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.match import find
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import Arguments, Spec
from agentspec.assistant.text_file import TextFile


def edit_tools(repository: Repository) -> list[Spec]:
    """`edit_file`, `edit_blocks` and `write_file` of a repository."""

    def edit_file(given: Arguments) -> Change:
        return replaced(
            repository,
            given.text("path"),
            [(given.text("old"), given.text("new"))],
            every=given.flag("every"),
        )

    def edit_blocks(given: Arguments) -> Change:
        blocks = parse_blocks(given.text("blocks"))
        return replaced(
            repository, given.text("path"), [(block.search, block.replace) for block in blocks]
        )

    def write_file(given: Arguments) -> Change:
        return written(repository, given.text("path"), given.text("content"))

    path = ("string", "File, from the root.", True)
    return [
        Spec(
            "edit_file",
            "edit",
            "Replace a text in a file. `old` must stand in the file exactly once, quoted with its "
            "whitespace and without line numbers.",
            {
                "path": ("string", "File, from the root.", True),
                "old": ("string", "The text to replace.", True),
                "new": ("string", "The text in its place.", True),
                "every": ("boolean", "Replace every occurrence.", False),
            },
            edit_file,
        ),
        Spec(
            "edit_blocks",
            "edit",
            "Make several replacements in a file. Each block is: a line <<<<<<< SEARCH, the old "
            "lines, a line =======, the new lines, a line >>>>>>> REPLACE.",
            {
                "path": ("string", "File, from the root.", True),
                "blocks": ("string", "The blocks.", True),
            },
            edit_blocks,
        ),
        Spec(
            "write_file",
            "edit",
            "Write a new file, or the whole of one. To change a part of a file, edit it instead.",
            {
                "path": ("string", path[1], True),
                "content": ("string", "The whole content.", True),
            },
            write_file,
        ),
    ]


def replaced(
    repository: Repository, path: str, edits: list[tuple[str, str]], *, every: bool = False
) -> Change:
    """The change that makes each replacement in turn; raises RefusedError naming the wrong one."""
    name = repository.check_writable(path)
    before = repository.read(name).data
    file = TextFile.decode(before, name)
    notes: list[str] = []
    after = before
    for number, (old, new) in enumerate(edits, 1):
        file = TextFile.decode(after, name)
        try:
            matches = find(file.text, _plain(old), _plain(new), every=every)
        except RefusedError as error:
            which = f"block {number}: " if len(edits) > 1 else ""
            why = str(error)
            if new.strip() and _plain(new) in file.text and _plain(old) not in file.text:
                why = (
                    "the new text is there and the old one is not: this change was made before; "
                    "go on with the next thing, or say that you are done"
                )
            raise RefusedError(f"{shown(name)}: {which}{why}") from None
        after = file.edited([(match.begin, match.end, match.new) for match in matches])
        notes += [match.note for match in matches if match.note]
    if after == before:
        raise RefusedError(f"{shown(name)} would stay as it is")
    return Change(name, before, after, "; ".join(dict.fromkeys(notes)))


def written(repository: Repository, path: str, content: str) -> Change:
    """The change that gives a file another content, or makes it.

    An existing file keeps its encoding mark and line endings. Raises RefusedError where it may not
    be written or would stay as it is.
    """
    name = repository.check_writable(path)
    before = repository.current(name)
    if before is None:
        after = _encoded(content)
    else:
        repository.read(name)  # what may not be read may not be replaced unseen either
        _encoded(content)
        after = TextFile.decode(before, name).rewritten(content)
        if after == before:
            raise RefusedError(f"{shown(name)} has this content already")
    if len(after) > repository.max_file:
        raise RefusedError(f"{shown(name)} would have more than {repository.max_file:,} bytes")
    return Change(name, before, after)


def _plain(text: str) -> str:
    _encoded(text)
    return text.replace("\r\n", "\n")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError("the text holds a lone surrogate, which is not valid Unicode") from None
