"""The text of an argument between tags, in formats that escape nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.chat.tools.machine import SPACE, Machine, Reading


def tagged_value(
    machine: Machine, ends: Mapping[str, Sequence[str]], nested: Mapping[str, str]
) -> Reading[tuple[str, str, str]]:
    """Text up to the closing tag; with it the tag, and the tag behind it.

    A tag of `ends` closes the value only when one of its followers comes next, so one that is
    spelt out in the text does not; nor does any inside a call that is spelt out as a whole, whose
    tags `nested` pairs.
    """
    text: list[str] = []
    waits: list[str] = []  # closing tags of what was opened inside the text
    marks = tuple(dict.fromkeys((*ends, *nested, *nested.values())))
    while True:
        char = yield
        if char != "<":
            text.append(char)
            continue
        mark = yield from machine.one_of(*marks, held=char)
        if not mark:
            text.append(char)
        elif waits and mark == waits[-1]:
            waits.pop()
            text.append(mark)
        elif mark in nested and (not text or text[-1][-1] in "\n>"):
            waits.append(nested[mark])
            text.append(mark)
        elif mark in ends and mark not in waits:
            space: list[str] = []
            while (char := (yield)) in SPACE:
                space.append(char)
            machine.read_again(char)
            follower = yield from machine.one_of(*ends[mark])
            if follower:
                return "".join(text), mark, follower
            text += [mark, *space]
        else:
            text.append(mark)
