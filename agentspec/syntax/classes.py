"""The words for a place in generated text: its class, and everything that is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodeClass(StrEnum):
    """What the cursor is in, or just behind."""

    PROSE_WORD = "prose-word"
    PROSE_SPACE = "prose-space"
    PROSE_PUNCTUATION = "prose-punctuation"
    PROSE_LINE = "prose-line"
    MARKUP = "markup"
    """A fence, a heading's mark, a tag such as ``<tool_call>``."""
    IDENTIFIER = "identifier"
    DEFINITION = "definition"
    ATTRIBUTE = "attribute"
    TYPE = "type"
    PARAMETER = "parameter"
    KEYWORD = "keyword"
    LITERAL = "literal"
    STRING = "string"
    COMMENT = "comment"
    OPERATOR = "operator"
    OPEN_BRACKET = "open-bracket"
    CLOSE_BRACKET = "close-bracket"
    SEPARATOR = "separator"
    SPACE = "space"
    LINE_START = "line-start"
    """Behind a newline that does not end a statement."""
    INDENTATION = "indentation"
    STATEMENT = "statement"
    """Behind the newline that ends a statement."""
    BLOCK = "block"
    """Behind the newline that opens or closes a block."""
    DIFF_MARKER = "diff-marker"
    DIFF_HEADER = "diff-header"
    JSON_KEY = "json-key"
    JSON_PUNCTUATION = "json-punctuation"


@dataclass(frozen=True, slots=True)
class SyntaxPosition:
    """Where in its own text the model is, behind the last committed byte.

    `region` is what the innermost text is: prose, code, json, call_string, search, replace, diff,
    heredoc, call. `language` is "" where it is unknown. `depth` counts brackets and, where
    indentation is syntax, indentation levels of that text. `open` names what is open from the
    outside in (at most the 16 innermost brackets of each text): brackets, "string", "comment",
    "fence", "tool_call", "parameter", "call_string", "heredoc", "search", "replace", "diff",
    "patch", "key" (JSON wants one), "escape" (half an escape of a JSON string), "info" (the
    line that opens a fence). `quote` closes the string or comment the cursor is in.
    """

    region: str = "prose"
    language: str = ""
    kind: NodeClass = NodeClass.PROSE_LINE
    depth: int = 0
    open: tuple[str, ...] = ()
    quote: str = ""


START = SyntaxPosition()
