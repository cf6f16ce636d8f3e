"""tree-sitter over the last lines of a code text: what its lexical rules cannot tell.

Only a window is kept, cut at line starts where no string, comment or parenthesis is open, so the
work is bounded whatever the size of the file. The tree of the complete lines is a function of the
window, the tree at the cursor a function of both: how bytes were grouped into tokens never shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentspec.syntax.classes import NodeClass
from agentspec.syntax.languages import Language, grammar, names

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

WINDOW = 1024
_KEPT = WINDOW // 2
_LONGEST = 4 * WINDOW

_TYPES = {
    "type_identifier": NodeClass.TYPE,
    "primitive_type": NodeClass.TYPE,
    "predefined_type": NodeClass.TYPE,
    "sized_type_specifier": NodeClass.TYPE,
    "property_identifier": NodeClass.ATTRIBUTE,
    "field_identifier": NodeClass.ATTRIBUTE,
    "variable_name": NodeClass.IDENTIFIER,
}
_POINTERS = ("pointer_declarator", "reference_declarator", "array_declarator")
_PARAMETERS = names(
    "parameter parameters parameter_declaration optional_parameter_declaration required_parameter "
    "optional_parameter formal_parameter formal_parameters typed_parameter default_parameter "
    "typed_default_parameter lambda_parameters"
)
_DEFINES = ("definition", "declaration", "declarator", "_item", "function_signature", "parameter")
_TOP = names(
    "module program source_file translation_unit block statement_block class_body "
    "declaration_list field_declaration_list compound_statement statement_list do_group "
    "interface_body enum_body"
)


class Window:
    """The end of a code text, and what tree-sitter says about its last byte."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._grammar = grammar(language.name)
        self._text = bytearray()
        # (offset of a line start where a parse may begin, depth there)
        self._anchors: list[tuple[int, int]] = [(0, 0)]
        self._blind = False
        self._line = 0
        self._lines: Tree | None = None
        self._before = b""

    def feed(self, byte: int) -> None:
        if self._grammar is None or self._blind:
            return
        self._text.append(byte)
        if len(self._text) - self._line > _LONGEST:
            self._forget()

    def line(self, depth: int | None) -> None:
        """A line ended; a parse may begin behind it unless `depth` is None."""
        if self._grammar is None:
            return
        if self._blind:
            if depth is None:
                return
            self._blind = False
            self._anchors = [(0, depth)]
        elif depth is not None:
            self._anchors.append((len(self._text), depth))
        self._line = len(self._text)
        self._lines = None
        if self._line > WINDOW:
            self._cut()

    def _forget(self) -> None:
        self._text.clear()
        self._anchors.clear()
        self._blind, self._line, self._lines = True, 0, None

    def _cut(self) -> None:
        least = len(self._text) - _KEPT
        # the outermost of the places behind which enough is kept
        late = [
            (depth, at) for at, depth in self._anchors if least // 2 <= at <= least + _KEPT // 2
        ]
        if not late:
            later = [(depth, at) for at, depth in self._anchors if at > 0]
            if later:
                late = [max(later, key=lambda anchor: anchor[1])]
            elif len(self._text) > _LONGEST:
                self._forget()
                return
            else:
                return
        _, at = min(late)
        del self._text[:at]
        self._line -= at
        self._anchors = [(a - at, depth) for a, depth in self._anchors if a >= at]

    def _leaf(self) -> Node | None:
        """The node of the last byte that is not white space."""
        if self._grammar is None or self._blind:
            return None
        if self._lines is None:
            from tree_sitter import Parser

            outside = self._language.layout and bytes(self._text[:1]) in (b" ", b"\t")
            inner = bool(self._anchors) and self._anchors[0][1] > 0 and not self._language.layout
            self._before = self._language.wrapper if outside or inner else b""
            self._parser = Parser(self._grammar)
            self._lines = self._parser.parse(self._before + bytes(self._text[: self._line]))
        text = self._before + bytes(self._text)
        tree = self._lines
        start = len(self._before) + self._line
        if len(text) > start:
            tree = tree.copy()
            row = self._text.count(b"\n")
            tree.edit(start, start, len(text), (row, 0), (row, 0), (row, len(text) - start))
            tree = self._parser.parse(text, tree)
        last = len(text.rstrip())
        if last <= len(self._before):
            return None
        return tree.root_node.descendant_for_byte_range(last - 1, last)

    def name(self) -> NodeClass | None:
        """What the identifier that ends at the cursor is, or None where the tree cannot tell."""
        leaf = self._leaf()
        if leaf is None:
            return None
        kind = _TYPES.get(leaf.type)
        if kind is NodeClass.TYPE:
            return kind
        parent = leaf.parent
        if parent is None:
            return kind
        if parent.type == "attribute" and parent.child_by_field_name("attribute") == leaf:
            return NodeClass.ATTRIBUTE
        if parent.type in ("type", "generic_type", "type_annotation", "scoped_type_identifier"):
            return NodeClass.TYPE
        holder = parent.parent if parent.type in _POINTERS else parent
        if holder is not None and holder.type in _PARAMETERS:
            return NodeClass.PARAMETER
        if any(word in parent.type for word in _DEFINES):
            for field in ("name", "declarator", "pattern"):
                if parent.child_by_field_name(field) == leaf:
                    return NodeClass.DEFINITION
        return kind

    def ends_statement(self) -> bool | None:
        """Whether a statement ends with the line that just ended; None when nobody can tell."""
        node = self._leaf()
        if node is None:
            return None
        end = node.end_byte
        while True:
            parent = node.parent
            if parent is None:
                return False
            if parent.type in _TOP:
                return True
            if parent.type == "ERROR":
                return None
            if parent.end_byte != end and parent.type != "expression_statement":
                return False
            node = parent
