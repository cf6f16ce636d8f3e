"""Grammars that say which tokens may come next, compiled by llguidance.

A grammar that cannot be compiled is the caller's error; no function here falls back to an
unconstrained answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentspec.backends.base import Tokenizer
from agentspec.chat.constraint.calls import MESSAGE, CallGrammar
from agentspec.chat.constraint.gbnf import MAX_GRAMMAR, checked, gbnf_to_lark, is_gbnf
from agentspec.chat.constraint.matcher import GrammarConstraint, compile_lark
from agentspec.chat.constraint.schema import schema_grammar
from agentspec.chat.constraint.thinking import AfterThinking
from agentspec.errors import InvalidRequestError
from agentspec.types import HERMES, CallShape, Constraint
from agentspec.wire import Tool

__all__ = [
    "HERMES",
    "AfterThinking",
    "GrammarConstraint",
    "constraint_of",
    "grammar",
    "json_object",
    "json_schema",
    "tool_calls",
]

_SCHEMA = "response_format.json_schema.schema"


def constraint_of(
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    parallel: bool = True,
    response_format: Mapping[str, Any] | None = None,
    grammar: str | None = None,
    shape: CallShape = HERMES,
    thinking: bool | Literal["open"] = False,
) -> Constraint | None:
    """What a request constrains its answer to, None where it may say anything.

    A grammar goes before everything; else `tool_choice` "required" or `=NAME` makes the answer
    calls; else `response_format` makes it JSON, or with tools calls or JSON; else only tools that
    are `strict` constrain it, and only inside their calls. With `thinking` (as of `AnswerStream`)
    all of that begins behind the thinking. Raises InvalidRequestError and UnsupportedError.
    """
    called = bool(tools) and tool_choice != "none"
    constraint = _answer(
        tokenizer, vocab_size, tools if called else (), tool_choice, parallel, response_format,
        grammar, shape,
    )  # fmt: skip
    if constraint is None:
        return None
    if shape.opening.startswith(MESSAGE) and (not called or tool_choice == "auto"):
        final = f"{MESSAGE}final<|message|>"
        return AfterThinking(constraint, tokenizer, vocab_size, opened=True, close=final)
    if not thinking:
        return constraint
    return AfterThinking(constraint, tokenizer, vocab_size, opened=thinking == "open")


def _answer(
    tokenizer: Tokenizer,
    vocab_size: int,
    tools: Sequence[Tool],
    tool_choice: str,
    parallel: bool,
    response_format: Mapping[str, Any] | None,
    grammar: str | None,
    shape: CallShape,
) -> GrammarConstraint | None:
    if grammar is not None:
        return _grammar(grammar, tokenizer, vocab_size)
    strict = any(tool.function.strict for tool in tools)
    if tools and (tool_choice != "auto" or (strict and response_format is None)):
        return tool_calls(
            tools,
            tool_choice,
            tokenizer,
            shape=shape,
            parallel=parallel,
            vocab_size=vocab_size,
        )
    if response_format is None:
        return None
    schema: Any = {"type": "object"}
    lenient = False
    if response_format["type"] == "json_schema":
        schema = response_format["json_schema"]["schema"]
        lenient = response_format["json_schema"].get("strict") is False
    text, notes = schema_grammar(schema, _SCHEMA, lenient=lenient)
    if not tools:
        return compile_lark(f"start: %json {text}", tokenizer, vocab_size, _SCHEMA, tuple(notes))
    calls = CallGrammar(shape, tokenizer)
    lark = calls.auto(_placed(tools, tools), parallel=parallel, answer=text)
    return compile_lark(lark, tokenizer, vocab_size, "tools", (*notes, *calls.notes))


def json_schema(
    schema: Mapping[str, Any], tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> GrammarConstraint:
    """An answer that is JSON of the schema. Raises InvalidRequestError naming the path."""
    text, notes = schema_grammar(schema, _SCHEMA)
    return compile_lark(f"start: %json {text}", tokenizer, vocab_size, _SCHEMA, tuple(notes))


def json_object(tokenizer: Tokenizer, *, vocab_size: int | None = None) -> GrammarConstraint:
    """An answer that is one JSON object."""
    return json_schema({"type": "object"}, tokenizer, vocab_size=vocab_size)


def grammar(text: str, tokenizer: Tokenizer, *, vocab_size: int | None = None) -> GrammarConstraint:
    """An answer of a grammar: Lark with the rule `start`, or llama.cpp's GBNF with `root`.

    It is GBNF when a line begins as `name ::=`. Raises InvalidRequestError.
    """
    return _grammar(text, tokenizer, vocab_size)


def _grammar(text: str, tokenizer: Tokenizer, vocab_size: int | None) -> GrammarConstraint:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(
            "grammar must be Lark text with a start rule, or GBNF with a root rule",
            param="grammar",
        )
    if len(text) > MAX_GRAMMAR:
        raise InvalidRequestError(
            f"grammar has {len(text)} characters, more than {MAX_GRAMMAR}", param="grammar"
        )
    lark = gbnf_to_lark(text) if is_gbnf(text) else text
    return compile_lark(checked(lark), tokenizer, vocab_size, "grammar")


def tool_calls(
    tools: Sequence[Tool],
    choice: str,
    tokenizer: Tokenizer,
    *,
    shape: CallShape = HERMES,
    parallel: bool = False,
    vocab_size: int | None = None,
) -> GrammarConstraint:
    """An answer that calls tools, each call with arguments of its tool's schema.

    `choice` is as `wire.parse_tool_choice` gives it: "required" for any tool, `=NAME` for one
    call of one, "auto" for free text that may hold calls, in which only the arguments of `strict`
    tools follow their schemas. Special pieces of the shape are the vocabulary's ids. Without
    `parallel` there is exactly one call (at most one with "auto"). A tool with `strict` False
    may ask for what cannot be held: that is noted, and refused otherwise. Raises
    InvalidRequestError naming the path of a schema that cannot be compiled.
    """
    if choice not in ("required", "auto") and not choice.startswith("="):
        raise InvalidRequestError(
            f"tool_choice {choice!r} leaves nothing to constrain", param="tool_choice"
        )
    chosen = [t for t in tools if choice in ("required", "auto") or choice == f"={t.name}"]
    if not chosen:
        raise InvalidRequestError(
            f"tool_choice {choice!r} names none of the tools", param="tool_choice"
        )
    calls = CallGrammar(shape, tokenizer)
    placed = _placed(tools, chosen)
    if choice == "auto":
        lark = calls.auto(placed, parallel=parallel)
    else:
        lark = calls.required(placed, parallel=parallel and choice == "required")
    return compile_lark(lark, tokenizer, vocab_size, "tools", tuple(calls.notes))


def _placed(all_tools: Sequence[Tool], chosen: Sequence[Tool]) -> list[tuple[str, Tool]]:
    """The chosen tools with the paths of their schemas in the request."""
    return [
        (f"tools[{i}].function.parameters", tool)
        for i, tool in enumerate(all_tools)
        if any(tool is one for one in chosen)
    ]
