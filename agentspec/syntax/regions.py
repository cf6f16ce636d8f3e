"""What the texts that lie in one another have in common.

A layer is fed one byte at a time. A byte at a line's start that may begin a marker is held back
until the line says what it is, so that markers never reach the code around them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import by_path

LINE_KEPT = 300


@dataclass(slots=True)
class Place:
    """What a layer says about the cursor; `open` is filled from the outside in."""

    region: str
    language: str
    kind: N
    depth: int
    quote: str
    open: list[str]


class Memory:
    """What one session has learned about its texts: the language of the last path."""

    def __init__(self) -> None:
        self.language = ""


class Layer(Protocol):
    """A text inside a text."""

    done: bool

    def feed(self, byte: int) -> None: ...

    def describe(self, open_: list[str]) -> Place: ...


_PATH = re.compile(r"[\w./\\@+ -]*[\w-]+\.\w{1,8}|[\w./-]*(Makefile|Dockerfile)")
_INTERPRETER = (
    (re.compile(rb"\b(python\d?|python3\.\d+)\b"), "python"),
    (re.compile(rb"\b(node|deno|bun)\b"), "javascript"),
    (re.compile(rb"\b(apply_patch|git apply|patch)\b"), "diff"),
    (re.compile(rb"\b(bash|sh|zsh)\b"), "bash"),
)
_REDIRECT = re.compile(rb"(?:>>?|\btee(?: -a)?)[ \t]*[\"']?([\w./~@+-]+)")


def path_language(line: str) -> str:
    """The language of a line that is a file's name, perhaps marked up; "" for any other line."""
    if len(line) > LINE_KEPT:
        return ""
    line = line.strip().strip("#*`: \t").removeprefix("File:").removeprefix("file:").strip(" `*")
    return by_path(line) if _PATH.fullmatch(line) else ""


def heredoc_language(command: bytes) -> str:
    """The language of a heredoc by the command it is given to."""
    written = _REDIRECT.search(command)
    if written:
        return by_path(written[1].decode("utf-8", "replace"))
    for rule, language in _INTERPRETER:
        if rule.search(command):
            return language
    return ""


def layer_of(language: str, region: str, memory: Memory) -> Layer:
    """The layer that follows a text of this language."""
    # the kinds of text hold one another
    from agentspec.syntax.calls import Json
    from agentspec.syntax.code import Code
    from agentspec.syntax.patch import Diff
    from agentspec.syntax.prose import Prose

    if language == "markdown":
        return Prose(memory, "prose" if region == "code" else region)
    if language == "diff":
        return Diff(memory, region)
    if language == "json":
        return Json(memory, region, embeds=False)
    return Code(language, region, memory)
