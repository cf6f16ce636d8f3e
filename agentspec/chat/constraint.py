"""Grammars that say which tokens may come next, compiled by llguidance.

A grammar that cannot be compiled is the caller's error; no function here falls back to an
unconstrained answer.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Tokenizer
from agentspec.errors import InvalidRequestError, MissingExtraError, UnsupportedError
from agentspec.wire import Tool, check_json

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
Style = Literal["tag", "bare"]

# Written as Python's json.dumps writes it, which is what models were trained on; free white
# space would let a small model wander.
_SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_MAX_PROBES = 500


class GrammarConstraint:
    """Follows one answer through a grammar; a `Constraint` of agentspec.types.

    `mask` is bool [vocab_size]; ids beyond the tokenizer's vocabulary (padding) are never
    allowed. Once the grammar is complete only the ids that end an answer are.
    """

    def __init__(self, matcher: Any, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._matcher = matcher
        # The matcher encodes forced text with it, so it must live as long.
        self._tokenizer = tokenizer
        self._eos_ids = tokenizer.eos_ids
        self._vocab_size = vocab_size
        self._ended = False

    def fork(self) -> GrammarConstraint:
        copy = GrammarConstraint(self._matcher.deep_copy(), self._tokenizer, self._vocab_size)
        copy._ended = self._ended
        return copy

    @property
    def finished(self) -> bool:
        return self._ended or bool(self._matcher.is_stopped())

    def mask(self) -> npt.NDArray[np.bool_]:
        allowed = np.zeros(self._vocab_size, dtype=np.bool_)
        if self.finished:
            allowed[[i for i in self._eos_ids if i < self._vocab_size]] = True
            return allowed
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(
            packed, count=min(packed.size * 8, self._vocab_size), bitorder="little"
        )
        allowed[: bits.size] = bits
        self._check(allowed)
        return allowed

    def advance(self, token: int) -> None:
        if token in self._eos_ids and (self.finished or self._matcher.is_accepting()):
            self._ended = True
            return
        if self.finished:
            raise InvalidRequestError(f"token {token} comes after the end of the grammar")
        # Asked first: a matcher that was fed a wrong token stays broken.
        if self._matcher.validate_tokens([token]) != 1 or not self._matcher.consume_token(token):
            raise InvalidRequestError(f"token {token} is not allowed by the grammar here")

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        if not tokens:
            return 0
        if self.finished:
            return int(not self._ended and tokens[0] in self._eos_ids)
        valid = int(self._matcher.validate_tokens(list(tokens)))
        end = next((i for i, t in enumerate(tokens) if t in self._eos_ids), None)
        # Nothing follows the end of an answer.
        return valid if end is None else min(valid, end + 1)

    def _check(self, allowed: npt.NDArray[np.bool_]) -> None:
        if self._matcher.is_error():
            raise UnsupportedError(
                f"the grammar is too complex to follow: {_first_line(self._matcher.get_error())}"
            )
        if not allowed.any():
            raise UnsupportedError("the grammar allows no token of this vocabulary here")


# -- what to constrain to ---------------------------------------------------------------------


def json_schema(
    schema: Mapping[str, Any], tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> GrammarConstraint:
    """An answer that is JSON of the schema. Raises InvalidRequestError naming the path."""
    compiled = _schema_grammar(schema, "response_format.json_schema.schema")
    return _constraint(f"start: %json {compiled}", tokenizer, vocab_size, "response_format")


def json_object(tokenizer: Tokenizer, *, vocab_size: int | None = None) -> GrammarConstraint:
    """An answer that is one JSON object."""
    return json_schema({"type": "object"}, tokenizer, vocab_size=vocab_size)


def grammar(lark: str, tokenizer: Tokenizer, *, vocab_size: int | None = None) -> GrammarConstraint:
    """An answer of a Lark grammar with the rule `start`. Raises InvalidRequestError."""
    if not isinstance(lark, str) or not lark.strip():
        raise InvalidRequestError("grammar must be Lark text with a start rule", param="grammar")
    return _constraint(lark, tokenizer, vocab_size, "grammar")


def tool_calls(
    tools: Sequence[Tool],
    choice: str,
    tokenizer: Tokenizer,
    *,
    style: Style = "tag",
    parallel: bool = False,
    vocab_size: int | None = None,
) -> GrammarConstraint:
    """An answer that calls tools, each call with arguments of its tool's schema.

    `choice` is as `wire.parse_tool_choice` gives it: "required" for any tool, `=NAME` for one,
    "auto" for free text that may end in calls (style "tag" only). `style` "tag" writes Hermes
    tags, as one token where the vocabulary has one; "bare" writes the object alone. Without
    `parallel` there is exactly one call (at most one with "auto"). Raises InvalidRequestError
    naming the path of a schema that cannot be compiled.
    """
    chosen = [t for t in tools if choice in ("required", "auto") or choice == f"={t.name}"]
    if choice not in ("required", "auto") and not choice.startswith("="):
        raise InvalidRequestError(
            f"tool_choice {choice!r} leaves nothing to constrain", param="tool_choice"
        )
    if not chosen:
        raise InvalidRequestError(
            f"tool_choice {choice!r} names none of the tools", param="tool_choice"
        )
    lines: list[str] = []
    for i, tool in enumerate(chosen):
        where = f"tools[{list(tools).index(tool)}].function.parameters"
        parameters = {"type": "object", **tool.function.parameters}
        if parameters.get("properties"):
            # A schema that says nothing allows any further key, and small models take it up.
            parameters.setdefault("additionalProperties", False)
        head = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        lines.append(f'object{i}: {json.dumps(head, ensure_ascii=False)} arguments{i} "}}"')
        lines.append(f"arguments{i}: %json {_schema_grammar(parameters, where)}")
    objects = " | ".join(f"object{i}" for i in range(len(chosen)))
    lines.append(f"object: {objects}")
    lark_open, lark_close = (_tag(tokenizer, tag) for tag in (OPEN_TAG, CLOSE_TAG))
    lines.append(
        f'call: {lark_open} "\\n" object "\\n" {lark_close}' if style == "tag" else "call: object"
    )
    lines.append('calls: call ("\\n" call)*' if parallel else "calls: call")
    if choice == "auto":
        lines += _auto(tokenizer, style)
    else:
        lines.append("start: calls")
    return _constraint("\n".join(lines), tokenizer, vocab_size, "tools")


def _auto(tokenizer: Tokenizer, style: Style) -> list[str]:
    if style != "tag":
        raise UnsupportedError("tool_choice 'auto' is constrained only with tagged calls")
    if _special_id(tokenizer, OPEN_TAG) is not None:
        # Free text cannot hold the tag's own token, so the token alone opens a call.
        return ["start: TEXT calls?", "TEXT: /(.|\\n)*/"]
    raise UnsupportedError(
        f"tool_choice 'auto' cannot be constrained: the vocabulary has no {OPEN_TAG} token"
    )


# -- llguidance -------------------------------------------------------------------------------


class _Vocabulary:
    """What is kept per tokenizer: llguidance's trie and the special pieces by text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        llguidance = _llguidance()
        size = tokenizer.vocab_size
        pieces = [tokenizer.piece(i) for i in range(size)]
        special = [i for i in range(size) if tokenizer.is_special(i)]
        self.specials = {pieces[i]: i for i in special if pieces[i]}
        eos = sorted(tokenizer.eos_ids)
        if not eos:
            raise UnsupportedError("the vocabulary names no token that ends an answer")
        wrapper = _Wrapper(pieces, special, eos[0], weakref.ref(tokenizer))
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapper), n_vocab=size, eos_token=eos
        )


class _Wrapper:
    """The attributes that llguidance reads.

    Text is encoded by the engine's own tokenizer: llama.cpp's turns a spelled-out `<tool_call>`
    into the one special token even in plain text, and llguidance then offers a token that its
    own grammar refuses.
    """

    bos_token_id = None

    def __init__(
        self,
        pieces: list[bytes],
        special: list[int],
        eos_id: int,
        tokenizer: weakref.ref[Tokenizer],
    ) -> None:
        self.tokens = pieces
        self.special_token_ids = special
        self.eos_token_id = eos_id
        # Weak: the trie is cached under the tokenizer and must not keep it alive.
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        return tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, _Vocabulary] = weakref.WeakKeyDictionary()


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    known = _vocabularies.get(tokenizer)
    if known is None:
        known = _vocabularies[tokenizer] = _Vocabulary(tokenizer)
    return known


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("llguidance", "llama") from error
    return llguidance


def _special_id(tokenizer: Tokenizer, text: str) -> int | None:
    return _vocabulary(tokenizer).specials.get(text.encode())


def _tag(tokenizer: Tokenizer, text: str) -> str:
    special = _special_id(tokenizer, text)
    return json.dumps(text) if special is None else f"<[{special}]>"


def _constraint(
    lark: str, tokenizer: Tokenizer, vocab_size: int | None, param: str
) -> GrammarConstraint:
    matcher_of = _llguidance().LLMatcher
    matcher = matcher_of(
        _vocabulary(tokenizer).tokenizer, matcher_of.grammar_from_lark(lark), log_level=0
    )
    if matcher.is_error():
        raise InvalidRequestError(
            f"{param} cannot be compiled: {_first_line(matcher.get_error())}", param=param
        )
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    return GrammarConstraint(matcher, tokenizer, size)


def _schema_grammar(schema: Mapping[str, Any], where: str) -> str:
    """The schema as text for `%json`. Raises InvalidRequestError naming the path that fails."""
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON schema object", param=where)
    check_json(schema, where)
    problem = _problem(schema)
    if problem:
        path = _locate(schema, where, problem)
        raise InvalidRequestError(f"{path} cannot be compiled: {problem}", param=path)
    return json.dumps({**schema, "x-guidance": _SPACING})


def _problem(schema: Mapping[str, Any]) -> str:
    matcher_of = _llguidance().LLMatcher
    text = json.dumps({**schema, "x-guidance": _SPACING})
    failed, messages = matcher_of.validate_grammar_with_warnings(
        matcher_of.grammar_from_json_schema(text)
    )
    return _first_line(messages[0]) if failed and messages else ""


def _locate(root: Mapping[str, Any], where: str, problem: str) -> str:
    """The path of the smallest part of a schema that has the problem on its own."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    node: Any = root
    probes = 0
    while True:
        for path, child in _children(node):
            probes += 1
            if probes > _MAX_PROBES:
                return where
            # The same problem only: a part by itself may also lack what its references name.
            if _problem({**shared, **child}) == problem:
                node, where = child, where + path
                break
        else:
            return where


def _children(node: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    out: list[tuple[str, Any]] = []
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        value = node.get(key)
        if isinstance(value, Mapping):
            out += [(f".{key}.{name}", child) for name, child in value.items()]
    for key in ("items", "additionalProperties", "contains", "not", "if", "then", "else"):
        out.append((f".{key}", node.get(key)))
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        value = node.get(key)
        if isinstance(value, (list, tuple)):
            out += [(f".{key}[{i}]", child) for i, child in enumerate(value)]
    return [(path, child) for path, child in out if isinstance(child, Mapping)]


def _first_line(text: str) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    # A regex error spans several lines, the last of which says what is wrong.
    last = next((line for line in lines if line.startswith("error:")), "")
    return f"{lines[0]} {last}".strip()[:300] if lines else "unknown problem"
