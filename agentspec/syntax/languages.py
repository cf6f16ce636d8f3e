"""What differs between languages: names, extensions, lexical rules, tree-sitter grammars."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar


@dataclass(frozen=True, slots=True)
class Language:
    """The lexical rules of a language, enough to follow it one byte at a time."""

    name: str
    line_comments: tuple[bytes, ...] = ()
    block_comments: tuple[tuple[bytes, bytes], ...] = ()
    nested_comments: bool = False
    multiline: bytes = b""
    """Quotes whose strings may hold newlines."""
    raw: bytes = b""
    """Quotes whose strings know no backslash."""
    quotes: bytes = b"\"'"
    triple: bool = False
    layout: bool = False
    """Indentation is syntax."""
    semicolons: bool = False
    """A statement ends at a semicolon or a brace, never at a mere newline."""
    newlines: bool = False
    """A newline ends a statement where the grammar allows it to."""
    names_first: bool = False
    """A parameter's name stands before its type."""
    tick: bool = False
    """A single quote also begins a lifetime."""
    regex: bool = False
    raw_prefix: bytes = b""
    """The letter that makes a string raw: r in Rust, R in C++."""
    word: bytes = b""
    """Bytes that belong to identifiers besides letters, digits and the underscore."""
    keywords: frozenset[bytes] = field(default_factory=frozenset)
    literals: frozenset[bytes] = field(default_factory=frozenset)
    wrapper: bytes = b""
    """What makes a run of statements parse on its own."""


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


def _words(text: str) -> frozenset[bytes]:
    return frozenset(text.encode().split())


_C_COMMENTS = {"line_comments": (b"//",), "block_comments": ((b"/*", b"*/"),)}
_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register return short signed sizeof static struct switch typedef union "
    "unsigned void volatile while bool"
)
_JS_WORDS = (
    "async await break case catch class const continue debugger default delete do else export "
    "extends finally for from function get if import in instanceof let new of return set static "
    "super switch this throw try typeof var void while with yield"
)
_JS_LITERALS = "true false null undefined NaN"

_ALL = (
    Language("", line_comments=(b"//",), block_comments=((b"/*", b"*/"),)),
    Language(
        "python",
        names_first=True,
        line_comments=(b"#",),
        triple=True,
        layout=True,
        keywords=_words(
            "and as assert async await break class continue def del elif else except finally for "
            "from global if import in is lambda nonlocal not or pass raise return try while with "
            "yield match case"
        ),
        literals=_words("True False None"),
        wrapper=b"if 1:\n",
    ),
    Language(
        "javascript",
        newlines=True,
        names_first=True,
        **_C_COMMENTS,  # type: ignore[arg-type]
        quotes=b"\"'`",
        multiline=b"`",
        regex=True,
        word=b"$",
        keywords=_words(_JS_WORDS),
        literals=_words(_JS_LITERALS),
    ),
    Language(
        "typescript",
        newlines=True,
        names_first=True,
        **_C_COMMENTS,  # type: ignore[arg-type]
        quotes=b"\"'`",
        multiline=b"`",
        regex=True,
        word=b"$",
        keywords=_words(
            _JS_WORDS + " interface type enum implements private public protected readonly "
            "abstract declare namespace as keyof string number boolean any unknown never"
        ),
        literals=_words(_JS_LITERALS),
    ),
    Language(
        "go",
        newlines=True,
        names_first=True,
        **_C_COMMENTS,  # type: ignore[arg-type]
        quotes=b"\"'`",
        multiline=b"`",
        raw=b"`",
        keywords=_words(
            "break case chan const continue default defer else fallthrough for func go goto if "
            "import interface map package range return select struct switch type var"
        ),
        literals=_words("true false nil iota"),
        wrapper=b"package p;func _(){",
    ),
    Language(
        "rust",
        names_first=True,
        **_C_COMMENTS,  # type: ignore[arg-type]
        nested_comments=True,
        multiline=b'"',
        tick=True,
        raw_prefix=b"r",
        semicolons=True,
        keywords=_words(
            "as async await break const continue crate dyn else enum extern fn for if impl in let "
            "loop match mod move mut pub ref return self Self static struct super trait type "
            "unsafe use where while"
        ),
        literals=_words("true false"),
        wrapper=b"fn _(){",
    ),
    Language(
        "c",
        **_C_COMMENTS,  # type: ignore[arg-type]
        semicolons=True,
        keywords=_words(_C_WORDS),
        literals=_words("NULL true false"),
        wrapper=b"void _(){",
    ),
    Language(
        "cpp",
        **_C_COMMENTS,  # type: ignore[arg-type]
        semicolons=True,
        raw_prefix=b"R",
        keywords=_words(
            _C_WORDS + " catch class constexpr delete explicit final friend mutable namespace new "
            "noexcept operator override private protected public template this throw try typename "
            "using virtual co_await co_return co_yield decltype"
        ),
        literals=_words("nullptr NULL true false"),
        wrapper=b"void _(){",
    ),
    Language(
        "java",
        **_C_COMMENTS,  # type: ignore[arg-type]
        semicolons=True,
        triple=True,
        word=b"$",
        keywords=_words(
            "abstract assert boolean break byte case catch char class const continue default do "
            "double else enum extends final finally float for if implements import instanceof int "
            "interface long native new package private protected public record return short "
            "static super switch synchronized this throw throws transient try var void volatile "
            "while yield"
        ),
        literals=_words("true false null"),
        wrapper=b"class _{void _(){",
    ),
    Language(
        "bash",
        line_comments=(b"#",),
        multiline=b"\"'`",
        raw=b"'",
        quotes=b"\"'`",
        word=b"$",
        keywords=_words(
            "if then else elif fi for while until do done case esac in function return local "
            "export readonly declare set source exit"
        ),
        literals=_words("true false"),
    ),
    Language("json", quotes=b'"', literals=_words("true false null")),
    # No grammar is loaded for these: lexical classes only.
    Language(
        "ruby",
        line_comments=(b"#",),
        keywords=_words("def end if else elsif unless while do class module return require yield"),
        literals=_words("true false nil"),
    ),
    Language("yaml", line_comments=(b"#",), literals=_words("true false null")),
    Language("toml", line_comments=(b"#",), triple=True, literals=_words("true false")),
    Language("css", block_comments=((b"/*", b"*/"),), word=b"-"),
    Language("html", block_comments=((b"<!--", b"-->"),)),
    Language("sql", line_comments=(b"--",), block_comments=((b"/*", b"*/"),)),
    Language("lua", line_comments=(b"--",)),
    Language("makefile", line_comments=(b"#",), quotes=b"", word=b"$"),
)
LANGUAGES: dict[str, Language] = {language.name: language for language in _ALL}
UNKNOWN = LANGUAGES[""]

_EXTENSIONS = {
    "python": "py pyi pyw pyx",
    "javascript": "js jsx mjs cjs",
    "typescript": "ts tsx mts cts",
    "go": "go",
    "rust": "rs",
    "c": "c h",
    "cpp": "cpp cc cxx hpp hh hxx cu ino",
    # the nearest rules stand in for languages that have none of their own here
    "java": "java kt kts scala cs dart swift groovy gradle",
    "bash": "sh bash zsh ksh bats",
    "json": "json jsonl ipynb",
    "ruby": "rb rake",
    "yaml": "yml yaml",
    "toml": "toml ini cfg",
    "css": "css scss less",
    "html": "html htm xml svg vue",
    "sql": "sql",
    "lua": "lua",
    "markdown": "md markdown mdx rst txt",
    "diff": "diff patch",
    "makefile": "mk",
}
_BY_EXTENSION = {e: name for name, all_ in _EXTENSIONS.items() for e in all_.split()}
_NAMES = {
    "py": "python", "python3": "python", "pycon": "python", "node": "javascript",
    "golang": "go", "c++": "cpp", "shell": "bash", "console": "bash", "shellsession": "bash",
    "jsonc": "json", "json5": "json", "text": "", "plaintext": "", "patch": "diff", "udiff": "diff",
    "make": "makefile", "xml": "html", "kotlin": "java", "csharp": "java",
}  # fmt: skip
_FILES = {"makefile": "makefile", "dockerfile": "bash", "gemfile": "ruby", "rakefile": "ruby"}


def by_name(name: str) -> str:
    """The language a fence's info string names; "" when it names none that is known."""
    name = name.strip().lower()
    if name in _NAMES:
        return _NAMES[name]
    if name in LANGUAGES or name in ("markdown", "diff"):
        return name
    return _BY_EXTENSION.get(name, "")


def by_path(path: str) -> str:
    """The language of a file, by its name; "" when the name does not tell."""
    name = path.strip().replace("\\", "/").rpartition("/")[2].lower()
    if name in _FILES:
        return _FILES[name]
    stem, dot, extension = name.rpartition(".")
    return _BY_EXTENSION.get(extension, "") if dot and (stem or extension) else ""


# Each rule reads the first lines of a text whose language nobody named.
_SNIFF = (
    ("diff", re.compile(rb"\A\s*(\*\*\* Begin Patch|diff --git |--- [^\n]+\n\+\+\+ |@@ -\d)")),
    ("python", re.compile(rb"\A#!.*python|^(def \w+\(.*:|class \w+.*:|from [\w.]+ import |"
                          rb"import \w+(\.\w+)*( as \w+)?$|if __name__)", re.M)),
    ("bash", re.compile(rb"\A#!.*\b(ba|z)?sh\b")),
    ("go", re.compile(rb"^package \w+\s*$", re.M)),
    ("rust", re.compile(rb"^(use [\w:]+(::|;)|(pub(\(\w+\))? )?fn \w+|impl\b|#!?\[\w+)", re.M)),
    ("java", re.compile(rb"^(package [\w.]+;|import (static )?[\w.]+;|public (final )?class )",
                        re.M)),
    ("cpp", re.compile(rb"^(#include <\w+>$|namespace \w+|template\s*<|using namespace )", re.M)),
    ("c", re.compile(rb"^#(include|define|ifndef) ", re.M)),
    ("typescript", re.compile(rb"^(export )?(interface|type) \w+.*[{=]|^import type |"
                              rb"^(export )?(const|function) .*\w\)?: \w+.*[={]", re.M)),
    ("javascript", re.compile(rb"^(import .* from |export |const |let |var |function |"
                              rb"['\"]use strict)", re.M)),
    ("json", re.compile(rb"\A\s*[\[{]\s*\n\s*[\"{\[]|\A\s*\{\s*\"")),
)  # fmt: skip


def sniff(text: bytes) -> str:
    """The language of a text by its first lines; "" when they do not tell."""
    for name, rule in _SNIFF:
        if rule.search(text):
            return name
    return ""


_GRAMMARS = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_tsx"),
    "go": ("tree_sitter_go", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "java": ("tree_sitter_java", "language"),
    "bash": ("tree_sitter_bash", "language"),
}


@cache
def grammar(name: str) -> Grammar | None:
    """The tree-sitter grammar of the language, or None where it is not installed."""
    if name not in _GRAMMARS:
        return None
    import importlib
    import warnings

    module, function = _GRAMMARS[name]
    try:
        import tree_sitter

        loaded = importlib.import_module(module)
        with warnings.catch_warnings():
            # grammars of an older interface hand over a bare pointer
            warnings.simplefilter("ignore", DeprecationWarning)
            return tree_sitter.Language(getattr(loaded, function)())
    except (ImportError, AttributeError, ValueError, TypeError):
        return None
