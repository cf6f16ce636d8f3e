"""Regular expressions in schemas: none too large to compile, and as llguidance holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import InvalidRequestError

MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords of which each value is a map of schemas."""

_MAX_PATTERN = 2_000
_MAX_ATOMS = 20_000
_VALUES = ("enum", "const", "default", "examples", "example")


def check_patterns(node: Mapping[str, Any], path: str) -> None:
    """Checks the patterns of one part. Raises InvalidRequestError naming the path of one."""
    found = [("pattern", node.get("pattern"))]
    keyed = node.get("patternProperties")
    found += [("patternProperties", key) for key in (keyed if isinstance(keyed, Mapping) else ())]
    for key, pattern in found:
        if isinstance(pattern, str) and (
            len(pattern) > _MAX_PATTERN or pattern_atoms(pattern) > _MAX_ATOMS
        ):
            raise InvalidRequestError(
                f"{path}.{key} cannot be compiled: the pattern is longer than {_MAX_PATTERN} "
                f"characters, or than {_MAX_ATOMS} with its repetitions written out",
                param=f"{path}.{key}",
            )


def with_patterns_held(schema: Any, *, named: bool = False) -> Any:
    """A schema with every pattern as `held_pattern` writes it; with `named`, of a map of them."""
    if isinstance(schema, (list, tuple)):
        return [with_patterns_held(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if named:
            out[key] = with_patterns_held(value)
        elif key == "pattern" and isinstance(value, str):
            out[key] = held_pattern(value)
        elif key == "patternProperties" and isinstance(value, Mapping):
            out[key] = {held_pattern(k): with_patterns_held(part) for k, part in value.items()}
        elif key in _VALUES:
            out[key] = value
        else:
            out[key] = with_patterns_held(value, named=key in MAPS)
    return out


def held_pattern(pattern: str) -> str:
    """A pattern whose classes of what may not stand somewhere leave out the character 0 too.

    Where every control character may stand, llguidance also takes the escapes of quotes and
    backslashes, whatever the class says of these: `[^"]` would be a quote.
    """
    out: list[str] = []
    i = 0
    while i < len(pattern):
        if pattern[i] == "\\":
            out.append(pattern[i : i + 2])
            i += 2
        elif pattern[i] != "[":
            out.append(pattern[i])
            i += 1
        else:
            denied = pattern[i + 1 : i + 2] == "^"
            begin = i + 1 + denied
            end = begin + (pattern[begin : begin + 1] == "]")  # as a first character it is one
            while end < len(pattern) and pattern[end] != "]":
                end += 1 + (pattern[end] == "\\")
            inside = pattern[begin:end]
            if denied and "[" not in inside:
                inside = "\\x00" + ("\\" if inside[:1] in ("]", "-") else "") + inside
            out.append(pattern[i:begin] + inside + pattern[end : end + 1])
            i = end + 1
    return "".join(out)


def pattern_atoms(pattern: str) -> int:
    """How many atoms a regular expression has when bounded repetitions are written out."""
    sums, last = [0], 0  # of each open group; of the atom just read
    i, n = 0, len(pattern)
    while i < n:
        char = pattern[i]
        if char == "(":
            sums.append(0)
            last = 0
        elif char == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif char == "{":
            end = pattern.find("}", i)
            bounds = [part.strip() for part in pattern[i + 1 : end].split(",")] if end > 0 else []
            counts = [int(b) for b in bounds if b.isascii() and b.isdigit() and len(b) < 12]
            if counts:
                sums[-1] += last * (max(counts) - 1)
                last *= max(counts)
                i = end
        elif char == "[":
            end = i + 2 + (pattern[i + 1 : i + 2] == "^")
            while end < n and pattern[end] != "]":
                end += 1 + (pattern[end] == "\\")
            i, last = end, 1
            sums[-1] += 1
        elif char not in "*+?|^$":
            i += char == "\\"
            last = 1
            sums[-1] += 1
        i += 1
    return sum(sums)
