"""A change as it is shown: a diff in colours."""

from __future__ import annotations

from rich.text import Text

from agentspec.assistant.results import plain

_MOST_LINES = 400
_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def diff_text(diff: str, *, most: int = _MOST_LINES) -> Text:
    """A unified diff in colours, one that is very long only as far as it is read."""
    lines = plain(diff).splitlines()
    text = Text()
    for line in lines[:most]:
        text.append(line + "\n", next((s for mark, s in _STYLES if line.startswith(mark)), "dim"))
    if len(lines) > most:
        text.append(f"[{len(lines) - most:,} more lines]\n", "dim")
    text.rstrip()
    return text
