"""What a source file defines and what it refers to, by its syntax tree."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from agentspec.syntax.languages import by_path, grammar

if TYPE_CHECKING:
    from tree_sitter import Node

_SIGNATURE = 160

# Node type -> the field that holds the name; None where the name is found below a declarator.
_DEFINES: dict[str, dict[str, str | None]] = {
    "python": {"class_definition": "name", "function_definition": "name"},
    "javascript": {
        "class_declaration": "name", "function_declaration": "name", "method_definition": "name",
        "generator_function_declaration": "name",
    },
    "typescript": {
        "class_declaration": "name", "function_declaration": "name", "method_definition": "name",
        "interface_declaration": "name", "type_alias_declaration": "name",
        "enum_declaration": "name", "abstract_class_declaration": "name",
        "generator_function_declaration": "name",
    },
    "go": {
        "function_declaration": "name", "method_declaration": "name", "type_spec": "name",
    },
    "rust": {
        "function_item": "name", "struct_item": "name", "enum_item": "name", "trait_item": "name",
        "mod_item": "name", "type_item": "name", "macro_definition": "name", "const_item": "name",
    },
    "c": {
        "function_definition": None, "struct_specifier": "name", "enum_specifier": "name",
        "type_definition": None,
    },
    "cpp": {
        "function_definition": None, "struct_specifier": "name", "class_specifier": "name",
        "enum_specifier": "name", "type_definition": None, "namespace_definition": "name",
    },
    "java": {
        "class_declaration": "name", "interface_declaration": "name", "enum_declaration": "name",
        "method_declaration": "name", "record_declaration": "name",
    },
    "bash": {"function_definition": "name"},
}  # fmt: skip
_NAMES = frozenset((
    "identifier", "type_identifier", "field_identifier", "property_identifier", "word",
    "shorthand_property_identifier", "namespace_identifier", "command_name",
))  # fmt: skip
# A body is needed where the same node also names a type that is defined elsewhere.
_NEEDS_BODY = frozenset(("struct_specifier", "enum_specifier", "class_specifier"))
_MOST_LOOSE = 1_000
_WORD = re.compile(r"[A-Za-z_]\w{2,}")


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that a file defines: its line (from 1), how deep it lies, and that line's text."""

    name: str
    line: int
    depth: int
    text: str


@dataclass(slots=True)
class Symbols:
    """The definitions of a file in order, and how often it refers to each name."""

    definitions: list[Definition] = field(default_factory=list)
    references: Counter[str] = field(default_factory=Counter)


def symbols(path: str, text: str) -> Symbols:
    """The symbols of a file; for a language without a grammar, its words are references."""
    language = by_path(path)
    loaded = grammar(language) if language in _DEFINES else None
    if loaded is None:
        return _words(text) if language else Symbols()
    from tree_sitter import Parser

    data = text.encode()
    root = Parser(loaded).parse(data).root_node
    if _shattered(root):
        return _words(text)
    found = Symbols()
    lines = text.split("\n")
    captured = _captures(language, root)
    named: set[int] = set()
    open_: list[int] = []
    for node in sorted(captured.get("def", ()), key=lambda node: (node.start_byte, -node.end_byte)):
        name = _name(node, _DEFINES[language][node.type])
        if name is None or (node.type in _NEEDS_BODY and _child(node, "body") is None):
            continue
        while open_ and open_[-1] <= node.start_byte:
            open_.pop()
        row = name.start_point[0]
        word = data[name.start_byte : name.end_byte].decode("utf-8", "replace")
        found.definitions.append(Definition(word, row + 1, len(open_), _cut(lines[row])))
        named.add(name.start_byte)
        open_.append(node.end_byte)
    found.references.update(
        data[node.start_byte : node.end_byte].decode("utf-8", "replace")
        for node in captured.get("ref", ())
        if node.start_byte not in named
    )
    return found


def _words(text: str) -> Symbols:
    # documentation refers to code too, but a name that many words equal says little
    return Symbols([], Counter(_WORD.findall(text[:200_000])))


def _shattered(root: Node) -> bool:
    """Whether the parser found no structure in much of a text, such as brackets never closed.

    A query over that takes time by the square: 80 KB took 12 seconds.
    """
    broken = [root] if root.has_error else []
    while broken:
        node = broken.pop()
        if node.is_error and node.child_count > _MOST_LOOSE:
            return True
        broken += [child for child in node.children if child.has_error]
    return False


def _captures(language: str, root: Node) -> dict[str, list[Node]]:
    query = _query(language)
    try:
        from tree_sitter import QueryCursor
    except ImportError:  # before 0.25 a query runs itself
        found: dict[str, list[Node]] = query.captures(root)
        return found
    return QueryCursor(query).captures(root)


@cache
def _query(language: str) -> Any:
    """The query that captures definitions as `def` and every other name as `ref`."""
    from tree_sitter import Query

    loaded = grammar(language)
    assert loaded is not None
    parts = [f"({kind}) @def" for kind in _DEFINES[language] if loaded.id_for_node_kind(kind, True)]
    parts += [f"({kind}) @ref" for kind in sorted(_NAMES) if loaded.id_for_node_kind(kind, True)]
    return Query(loaded, "\n".join(parts))


def _name(node: Node, at: str | None) -> Node | None:
    if at is not None:
        return _child(node, at)
    below = _child(node, "declarator")
    for _ in range(20):
        if below is None or below.child_count == 0:
            return below
        if below.type == "qualified_identifier":
            below = _child(below, "name")
        else:
            below = _child(below, "declarator")
    return None


def _child(node: Node, at: str) -> Node | None:
    return node.child_by_field_name(at)


def _cut(line: str) -> str:
    line = line.rstrip().expandtabs(4)
    return line if len(line) <= _SIGNATURE else line[:_SIGNATURE] + " …"
