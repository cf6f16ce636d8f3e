"""The laws that hold for every family's parser."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.answer import Answer, TokenEvent
from agentspec.chat.stream import AnswerStream
from agentspec.chat.tools.base import CallEnd, CallStart, Malformed, TextDelta, ThinkingDelta
from agentspec.chat.tools.formats import FORMATS
from agentspec.engine.stats import TurnStats
from agentspec.types import CallShape
from tests.chat.tools.cases import CASES, LONG, OWN, READ, Case
from tests.chat.tools.reading import TOOLS, answer, cut, groupings, parse
from tests.clock import at_most

FAMILIES = sorted(FORMATS)
ALL = [pytest.param(family, case, id=f"{family}-{n}") for family in FAMILIES
       for n, case in enumerate(CASES[family])]  # fmt: skip
ALL += [pytest.param(family, case, id=f"{family}-long{n}") for n, (family, case) in enumerate(LONG)]


def test_every_family_has_cases() -> None:
    assert sorted(OWN) == FAMILIES


@pytest.mark.parametrize(("family", "case"), ALL)
def test_what_a_client_gets(family: str, case: Case) -> None:
    got = answer(parse(family, [case.source]))
    assert got.calls == list(case.calls)
    assert got.text == (case.source if case.text is None else case.text)
    assert got.thinking == case.thinking
    assert tuple(got.notes) == case.notes


@pytest.mark.parametrize("family", FAMILIES)
def test_streaming_equals_reading_at_once(family: str) -> None:
    for case in OWN[family]:
        source = case.source
        whole = parse(family, [source])
        assert parse(family, list(source)) == whole
        for i in range(len(source) + 1):
            assert parse(family, [source[:i], source[i:]]) == whole
        for pieces in groupings(source):
            assert parse(family, pieces) == whole


@pytest.mark.parametrize(("family", "case"), LONG)
def test_long_texts_are_streamed_alike(family: str, case: Case) -> None:
    whole = parse(family, [case.source])
    assert parse(family, list(case.source)) == whole
    for pieces in groupings(case.source, number=20):
        assert parse(family, pieces) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_cut_anywhere_has_only_whole_calls(family: str) -> None:
    """As by max_tokens: what is there of the last call is text, and no call is made up."""
    for case in OWN[family]:
        for i in range(len(case.source)):
            got = answer(parse(family, [case.source[:i]]))
            assert got.calls == list(case.calls[: len(got.calls)]) or case.notes
            if not got.calls and family != "harmony":
                assert got.text == case.source[:i]


@pytest.mark.parametrize("family", FAMILIES)
def test_without_tools_nothing_is_a_call(family: str) -> None:
    for case in CASES[family]:
        got = answer(parse(family, [case.source], tools=()))
        assert not got.calls
        if family != "harmony":
            assert got.text == case.source


PIECES = [
    "<tool_call>", "</tool_call>", "<function=read>", "<function=", "</function>", "<parameter=",
    "<parameter=path>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>", "<|python_end|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>", "<|channel|>", "analysis", "final", "commentary", " to=functions.read ",
    "<|constrain|>json", "<|message|>", "<|end|>", "<|start|>", "assistant", "<|call|>",
    "<|return|>", "read", "path", "now", '{"path": "a.py"}', "[read(path=", "'a'", '"""', "True",
    '{"name": "read"', ', "arguments": ', '"function": ', "```json\n", "```", "null", "1", "\\u",
    "\\ud83d", *'\n {}[]()"\\:;,=<>é\'',
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=24), st.data())
def test_no_text_breaks_a_parser(family: str, parts: list[str], data: st.DataObject) -> None:
    source = "".join(parts)
    whole = parse(family, [source])
    got = answer(whole)
    cuts = data.draw(st.lists(st.integers(0, len(source)), max_size=6))
    assert parse(family, cut(source, cuts)) == whole
    if not got.calls and family != "harmony":
        assert got.text == source


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(st.data())
def test_calls_in_noise_are_found(family: str, data: st.DataObject) -> None:
    """A call that is whole is found whatever stands before it on other lines."""
    if family == "harmony":
        return
    good = [c for c in CASES[family] if c.calls and not c.notes and c.text == ""]
    case = data.draw(st.sampled_from(good))
    prose = data.draw(st.lists(st.sampled_from("ab .,;:!?-\n"), max_size=12).map("".join))
    got = answer(parse(family, [f"{prose}\n{case.source}"]))
    assert got.calls == list(case.calls)
    assert got.text == (prose.rstrip("\n \t") if prose.strip() else "")


_UNICODE = st.characters(codec="utf-8")
VALUES = st.dictionaries(
    st.sampled_from(["path", "text", "limit", "free", "x y"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(_UNICODE, max_size=8)
        | st.sampled_from(["</tool_call>", "```", "[TOOL_CALLS]", "<|call|>", "'", '"', "\\"]),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.text(_UNICODE, max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)  # fmt: skip


def spelt(shape: CallShape, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What a constraint or a skeleton makes of the shape."""
    done = []
    for name, arguments in calls:
        if shape.style == "json":
            body = json.dumps(arguments)
        else:
            form = repr if shape.style == "pythonic" else _bare
            before, between, after = shape.argument
            body = shape.argument_between.join(
                f"{before}{key}{between}{form(value)}{after}" for key, value in arguments.items()
            )
        done.append(f"{shape.opening}{name}{shape.middle}{body}{shape.closing}")
    return shape.before + shape.between.join(done) + shape.after


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(data=st.data())
def test_what_the_shape_spells_is_read_back(family: str, data: st.DataObject) -> None:
    shape = FORMATS[family].shape
    names = st.sampled_from(["read", "now"])
    values = VALUES
    if shape.style != "json":
        values = st.dictionaries(
            st.sampled_from(["path", "limit", "free"]),
            st.text(_UNICODE, max_size=8), max_size=3,
        ).map(lambda d: {k: v if k == "path" else len(v) for k, v in d.items()})  # fmt: skip
    calls = data.draw(st.lists(st.tuples(names, values), min_size=1, max_size=3))
    if shape.style == "xml":
        calls = [(name, a) for name, a in calls if "</" not in str(a)]
    source = spelt(shape, calls)
    got = answer(parse(family, [source]))
    assert got.calls == calls
    assert got.text == ""
    assert got.notes == []


# -- what was reported of other parsers -------------------------------------------------------

ONE_CALL = {
    family: next(c for c in CASES[family] if list(c.calls) == [READ] and not c.thinking)
    for family in FAMILIES
}


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_and_calls_in_one_step(family: str) -> None:
    """Nothing is lost when one step ends the thinking, begins a call and ends it."""
    case = ONE_CALL[family]
    source = f"<think>hm</think>{case.source}"
    for pieces in ([source], list(source), ["<think>hm", source[9:]]):
        count = itertools.count()
        parser = FORMATS[family](lambda c=count: f"call_{next(c)}").parser(TOOLS)  # type: ignore[misc]
        stream = AnswerStream(parser=parser, thinking=True)
        deltas = [delta for piece in pieces for delta in stream.feed(piece.encode())]
        deltas += stream.finish()
        assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == "hm"
        assert [d.name for d in deltas if isinstance(d, CallStart)] == ["read"]
        assert not [d for d in deltas if isinstance(d, TextDelta) and d.text.strip()]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_an_openai_client_puts_together(family: str) -> None:
    """`index` always, `id` and `name` once, arguments joined, and the reason to end."""
    cases = [c for c in OWN[family] if len(c.calls) == 2 and c.text == ""][:3]
    for case in cases or [ONE_CALL[family]]:
        stream = AnswerStream(parser=FORMATS[family]().parser(TOOLS))
        got = Answer("m", TurnStats())
        raw = case.source.encode()

        def events(
            raw: bytes = raw, stream: AnswerStream = stream, got: Answer = got
        ) -> Generator[TokenEvent, None, None]:
            for i in range(0, len(raw), 5):
                yield TokenEvent(i, tuple(stream.feed(raw[i : i + 5])))
            got.ended = "stop"
            yield TokenEvent(0, tuple(stream.finish()))

        heads: list[tuple[int, str | None, str | None]] = []
        arguments: dict[int, str] = {}
        for chunk in got.chunks(events()):
            for choice in chunk.choices:
                for piece in choice.delta.tool_calls or ():
                    assert piece.function is not None
                    if piece.id is not None:
                        heads.append((piece.index, piece.id, piece.function.name))
                    else:
                        assert piece.function.name is None
                    arguments.setdefault(piece.index, "")
                    arguments[piece.index] += piece.function.arguments or ""
        assert [index for index, _, _ in heads] == list(range(len(case.calls)))
        made = [(name, json.loads(arguments[index])) for index, _, name in heads]
        assert made == list(case.calls)
        assert got.finish == "tool_calls"
        assert [c.function.name for c in got.completion().tool_calls] == [n for n, _ in case.calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_shown_at_once(family: str) -> None:
    """Prose is never held back for a call that might come."""
    parser = FORMATS[family]().parser(TOOLS)
    for word in ("Let", " me", " look", " at", " it."):
        assert "".join(d.text for d in parser.feed(word) if isinstance(d, TextDelta)) == word


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_given_with_its_last_character(family: str) -> None:
    """Not with the end of the answer, nor with the marks that may follow."""
    source = ONE_CALL[family].source
    parser = FORMATS[family]().parser(TOOLS)
    fed = 0
    for char in source:
        fed += 1
        if any(isinstance(delta, CallStart) for delta in parser.feed(char)):
            break
    rest = source[fed:]
    for mark in ("<|tool_call_end|>", "</tool_call>", "]", "<|call|>", "```", "<｜tool▁call▁end｜>",
                 "<｜tool▁calls▁end｜>"):  # fmt: skip
        rest = rest.replace(mark, "")
    assert rest.strip() == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_unique_over_answers(family: str) -> None:
    source = ONE_CALL[family].source
    form = FORMATS[family]()
    ids = [d.id for _ in range(50) for d in form.parser(TOOLS).feed(source)
           if isinstance(d, CallStart)]  # fmt: skip
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_too_long_comes_back(family: str) -> None:
    source = ONE_CALL[family].source.replace("a.py", "x" * 400)
    deltas = parse(family, [source], max_call=200)
    assert [d.kind for d in deltas if isinstance(d, Malformed)] == ["too_long"]
    assert not [d for d in deltas if isinstance(d, CallStart)]
    assert answer(deltas).text.count("x") == 400


@pytest.mark.parametrize("family", FAMILIES)
def test_thousands_of_calls_are_read_one_after_another(family: str) -> None:
    shape = FORMATS[family]().shape
    if shape.style == "json":
        arguments = '{"path": "a"}'
    else:
        value = '"a"' if shape.style == "pythonic" else "a"
        arguments = f"{shape.argument[0]}path{shape.argument[1]}{value}{shape.argument[2]}"
    call = f"{shape.opening}read{shape.middle}{arguments}{shape.closing}"
    text = shape.before + shape.between.join([call] * 2000) + shape.after
    parser = FORMATS[family]().parser(TOOLS)
    ended = sum(isinstance(d, CallEnd) for d in [*parser.feed(text), *parser.finish()])
    assert ended == 2000


@pytest.mark.parametrize("family", FAMILIES)
def test_behind_the_end_there_is_only_text(family: str) -> None:
    parser = FORMATS[family]().parser(TOOLS)
    parser.feed("a")
    parser.finish()
    assert parser.finish() == []
    source = ONE_CALL[family].source
    assert parser.feed(source) == [TextDelta(source)]
    assert parser.finish() == []


HOSTILE = {
    "open": lambda source, n: source * (n // len(source) + 1),
    "cut": lambda source, n: (source[:-3] + "\n") * (n // len(source) + 1),
    "long": lambda source, n: source.replace("a.py", "<" * n),
    "near": lambda source, n: source.replace("a.py", ("</parameter>\n </arg_value>\\\"' " * n)[:n]),
    "heads": lambda source, n: "\n" + source[: len(source) // 3] * (3 * n // len(source) + 1),
    "space": lambda source, n: source.replace("a.py", "a.py" + " " * n) + " \n" * (n // 2),
}


def linear(family: str, kind: str, size: int, seconds: float) -> None:
    source = HOSTILE[kind](ONE_CALL[family].source, size)
    with at_most(seconds):
        answer(parse(family, [source]))


@pytest.mark.parametrize("kind", sorted(HOSTILE))
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_text_takes_no_longer(family: str, kind: str) -> None:
    linear(family, kind, 8_000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["open", "near", "heads"])
@pytest.mark.parametrize("family", sorted({FORMATS[f].machine: f for f in FAMILIES}.values()))
def test_a_megabyte_of_hostile_text(family: str, kind: str) -> None:
    linear(family, kind, 1 << 20, 20)
