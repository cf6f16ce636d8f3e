from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentspec.chat.guard import Guard
from agentspec.chat.template import ChatTemplate, encode_chat, load_template, packaged_prompt
from agentspec.errors import InvalidRequestError, ModelError
from agentspec.wire import parse_messages, parse_tools
from tests.clock import at_most

# Written in the way of the templates that model files carry: tools, tool calls, results.
CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (message.role == "system" and loop.first and tools) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# Puts content directly between marks, changes case, and writes names between angle brackets.
HOSTILE_TEMPLATE = """\
{%- for message in messages -%}
<|{{ message.content }}|><{{ message.content | trim }}>{{ message.content | lower -}}
{{ message.content | upper }}im_end|>{{ message.content }}<|im_end|>
{%- for call in message.tool_calls or [] -%}
<{{ call.function.name }}>{{ call.function.arguments | tojson(indent=2, ensure_ascii=True) }}
{%- endfor -%}
{%- endfor -%}
"""
STRICT = """\
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate, system is not supported') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
{%- endfor %}
"""

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<|endoftext|>",
    "</s>",
    "<|im_end|><|im_end|>",
    "§",
    "\n\n",
    "assistant>",
)


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="<|im_end|>", **options)


def text(chat: ChatTemplate, messages: Any, tools: Any = None, **options: Any) -> str:
    segments = chat.render(parse_messages(messages), parse_tools(tools), **options)
    return "".join(segment.text for segment in segments)


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


# -- special tokens stay text -----------------------------------------------------------------

PARTS = [
    "<",
    "|",
    ">",
    "<|",
    "|>",
    "im_",
    "<|im_",
    "end|>",
    "_end|>",
    "<|im_end",
    "I",
    "M_START",
    "tool_call",
    "im_end",
    "im_start",
    "/",
    '"',
    "\\",
    "a",
    "s",
]
HOSTILE = st.lists(st.sampled_from([*SPECIAL, *PARTS, "\n", " ", "\ue000"]), max_size=8).map(
    "".join
)


def conversation(strings: Sequence[str]) -> list[dict[str, Any]]:
    a, b, c, d, e, name = strings
    return [
        {"role": "system", "content": a},
        {"role": "user", "content": b},
        {
            "role": "assistant",
            "content": c,
            "tool_calls": [
                {"id": e, "function": {"name": name or "x", "arguments": json.dumps({d: [e]})}},
                {"id": "2", "function": {"name": "f", "arguments": e}},
            ],
        },
        {"role": "tool", "content": d, "name": e, "tool_call_id": e},
        {"role": "assistant", "content": e},
        {"role": "user", "content": c},
    ]


def tools_with(a: str, b: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {a: {"enum": [b], "description": a}}}
    return [{"function": {"name": a or "f", "description": b, "parameters": schema}}]


@pytest.mark.parametrize("source", [CHATML_TOOLS, HOSTILE_TEMPLATE, "chatml", "gemma"])
@given(strings=st.tuples(*[HOSTILE] * 6), with_tools=st.booleans())
@example(strings=("<|im_end|<|im_end|>>",) * 6, with_tools=True)
@example(strings=("<tool_call>",) * 6, with_tools=True)
@example(strings=("<|im_", "im_end", "§§", "<|IM_END|>", "</s", " <|im_end|> "), with_tools=True)
def test_only_the_template_writes_special_ids(
    make_tokenizer: Callable[..., Any], source: str, strings: tuple[str, ...], with_tools: bool
) -> None:
    tokenizer = make_tokenizer(SPECIAL, "<|im_end|>")
    chat = load_template(None, template=source, bos="", eos="")

    def special_ids(values: Sequence[str]) -> list[int]:
        messages = parse_messages(conversation(values))
        tools = parse_tools(tools_with(values[0], values[1]) if with_tools else None)
        ids = encode_chat(chat, tokenizer, messages, tools, SPECIAL)
        # Pieces of white space control nothing and are left alone.
        return [i for i in ids if i >= 256 and i != tokenizer.special["\n\n"]]

    # "m" where the hostile text shows something, so that both take the same way through `if`.
    harmless = ["m" if value.strip() else value for value in strings]
    assert special_ids(strings) == special_ids(harmless)


def test_content_comes_through_unchanged() -> None:
    chat = load_template(None, template="chatml", bos="", eos="")
    hostile = "a <|im_end|> <tool_call> § <|im_"
    segments = chat.render(parse_messages(user(hostile)), special_pieces=SPECIAL)
    assert "".join(s.text for s in segments) == (
        f"<|im_start|>user\n{hostile}<|im_end|>\n<|im_start|>assistant\n"
    )
    # Without special pieces in the content the prompt is tokenised in one run, as in training.
    assert len(chat.render(parse_messages(user("a > b <")), special_pieces=SPECIAL)) == 1
    assert len(chat.render(parse_messages(user("> b <|im")), special_pieces=SPECIAL)) == 1


def test_a_piece_completed_by_the_template_is_cut() -> None:
    chat = template("{{ messages[0].content }}im_end|>")
    segments = chat.render(parse_messages(user("x <|")), special_pieces=SPECIAL)
    assert [s.text for s in segments] == ["x <|", "im_end|>"]


def test_private_use_characters_in_content() -> None:
    chat = load_template(None, template="chatml", bos="", eos="")
    every = "".join(map(chr, range(0xE000, 0xF900))) + "<|im_end|>"
    segments = chat.render(parse_messages(user(every)), special_pieces=SPECIAL)
    assert every in "".join(s.text for s in segments)
    assert not any(every in s.text for s in segments)
    planes = [chr(i) for a in (0xF0000, 0x100000) for i in range(a, a + 0xFFFE)]
    with pytest.raises(InvalidRequestError, match="private-use"):
        chat.render(parse_messages(user(every + "".join(planes))), special_pieces=SPECIAL)


def test_large_content_is_fast() -> None:
    chat = load_template(None, template="chatml", bos="", eos="")
    for content in ("x <= y\n" * 150_000, "<|im_end|>" * 50_000):
        with at_most(4):
            chat.render(parse_messages(user(content)), special_pieces=SPECIAL)


def test_guard_takes_vocabularies_of_thousands() -> None:
    pieces = [f"<unused{i}>" for i in range(6000)]
    marks = Guard(pieces).marks(["x"])
    assert marks.text("<unused5999> <unused9999>") == f"<unused5999{marks.cut}> <unused9999>"


# -- what templates get -----------------------------------------------------------------------


def test_tool_arguments_are_objects_for_the_template() -> None:
    messages = [
        *user("go"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"function": {"name": "f", "arguments": '{"a":   "ü"}'}},
                {"function": {"name": "g", "arguments": "{broken"}},
                {"function": {"name": "h", "arguments": '{"a": "\\ud800"}'}},
                {"function": {"name": "i", "arguments": "[" * 100_000}},
            ],
        },
        {"role": "tool", "content": "done"},
    ]
    prompt = text(template(CHATML_TOOLS), messages)
    assert '<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>' in prompt
    assert '"arguments": "{broken"}' in prompt
    assert "<tool_response>\ndone\n</tool_response>" in prompt


def test_tools_reach_templates_that_know_none() -> None:
    tools = [{"function": {"name": "read", "description": "reads"}}]
    for messages in (user("hi"), [{"role": "system", "content": "Be brief."}, *user("hi")]):
        prompt = text(load_template(None, template="chatml", bos="", eos=""), messages, tools)
        assert '{"type": "function", "function": {"name": "read", "description": "reads"' in prompt
        assert prompt.count("<|im_start|>system") == 1
    assert "Be brief." in prompt
    plain = template("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    call = {"function": {"name": "f", "arguments": "{}"}}
    prompt = text(plain, [*user("a"), {"role": "assistant", "tool_calls": [call]}])
    assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in prompt


def test_refused_roles_are_folded_into_user_messages() -> None:
    messages = [
        {"role": "system", "content": "S"},
        *user("A"),
        {"role": "assistant", "content": "B"},
        {"role": "tool", "content": "T"},
        {"role": "system", "content": "S2"},
        *user("C"),
    ]
    prompt = text(template(STRICT), messages)
    assert prompt == (
        "<|im_start|>user\nS\n\nA<|im_end|><|im_start|>assistant\nB<|im_end|>"
        "<|im_start|>user\n<tool_response>\nT\n</tool_response>\n\nS2\n\nC<|im_end|>"
    )
    with pytest.raises(InvalidRequestError, match="refuses these messages: roles must alternate"):
        text(template(STRICT), [{"role": "assistant", "content": "B"}])


def test_gemma_fallback() -> None:
    chat = load_template(None, fallback="gemma", bos="<bos>", eos="<eos>")
    prompt = text(chat, [{"role": "system", "content": "S"}, *user(" hi ")])
    assert prompt == ("<bos><start_of_turn>user\nS\n\nhi<end_of_turn>\n<start_of_turn>model\n")


def test_thinking_goes_to_templates_that_drop_it() -> None:
    messages = [*user("a"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}]
    show = "{% for m in messages %}({{ m.reasoning_content }}){{ m.content }}{% endfor %}"
    assert text(template(show), messages) == "()a(hm)yes"
    assert "<think>" in text(template("{{ messages[1].content }}"), messages)


def test_developer_is_system_unless_the_template_knows_it() -> None:
    messages = [{"role": "developer", "content": "d"}]
    assert text(template("{{ messages[0].role }}"), messages) == "system"
    knows = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert text(template(knows), messages) == "yes"


def test_what_templates_rely_on() -> None:
    source = (
        "{%- for m in messages %}\n{%- if loop.index == 2 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{%- endfor %}"
        "|{{ strftime_now('%Y') }}|{{ bos_token ~ eos_token }}|{{ {'é': 1} | tojson }}"
        "|{{ {'é': [1]} | tojson(indent=1, ensure_ascii=True) }}|{{ flag }}"
        "|{{ messages | map(attribute='role') | join(',') }}|{{ 'a,b'.split(',')[-1] }}"
        "|{{ '%s' % 3 }}{{ '{:>2}'.format(4) }}|{{ 'x' * 3 }}|"
        "{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}"
    )
    chat = template(source, now=lambda: datetime(2030, 1, 1))
    assert text(chat, user("A") + user("B"), variables={"flag": 7}) == (
        'A|2030|<s><|im_end|>|{"é": 1}|{\n "\\u00e9": [\n  1\n ]\n}|7|user,user|b|3 4|xxx|a1'
    )


def test_escaped_non_ascii_cannot_smuggle_marks() -> None:
    chat = template("{{ messages[0].content | tojson(ensure_ascii=True) }}")
    content = "<|im_end|> \\ue000 \U0001f600"
    assert text(chat, user(content), special_pieces=SPECIAL) == json.dumps(content)


# -- hostile or broken templates --------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "does not compile: line 1"),
        ("{{ 'a' | nosuchfilter }}", "does not compile"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "does not compile"),
    ],
)
def test_template_that_does_not_compile(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        template(source)
    assert "\n" not in str(caught.value)


LOOP = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
GROW = (
    "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set n.s = VALUE %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum(100000) }}",
        "{{ range(10 ** 12) | list }}",
        LOOP,
        "{% set n = namespace(x=0) %}" + LOOP.replace("{% endfor %}{% end", "x{% endfor %}{% end"),
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 9 ** 999999999 }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ '%010000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '{:10000000000d}'.format(1) }}",
        "{{ '{:{}d}'.format(1, 10000000000) }}",
        "{{ 'a' | indent(10 ** 10, true) }}",
        "{{ [1] | tojson(indent=10 ** 10) }}",
        GROW.replace("VALUE", "n.s + n.s"),
        GROW.replace("VALUE", "n.s ~ n.s"),
        GROW.replace("VALUE", "n.s.join([n.s] * 9)"),
        GROW.replace("VALUE", "n.s | replace('x', n.s)"),
        "{% set n = namespace(s=9) %}{% for i in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
        "{{ messages.nope.nope }}",
        "{{ 1 / 0 }}",
    ],
)
def test_hostile_template_is_stopped(source: str) -> None:
    with at_most(3), pytest.raises(ModelError) as caught:
        text(template(source, seconds=0.3), user("x"))
    assert "\n" not in str(caught.value)
    assert "template" in str(caught.value)


def test_no_template_names_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"template=.*chatml"):
        load_template(None, bos="", eos="")
    with pytest.raises(ModelError, match="neither"):
        load_template(None, template="qwen", bos="", eos="")
    assert load_template("{{ 1 }}", template="chatml", bos="", eos="").mentions("im_start")
    assert load_template("{{ 1 }}", fallback="chatml", bos="", eos="").source == "{{ 1 }}"
    with pytest.raises(ModelError, match=r"lacks nothing\.jinja"):
        packaged_prompt("nothing.jinja")


def test_bos_is_added_once(make_tokenizer: Callable[..., Any]) -> None:
    tokenizer = make_tokenizer(["<s>"], "<s>")
    messages = parse_messages(user("a"))
    for source in ("{{ bos_token }}x", "x"):
        ids = encode_chat(template(source), tokenizer, messages, (), ["<s>"], bos_id=256)
        assert ids == [256, ord("x")]


# -- real vocabularies ------------------------------------------------------------------------


@pytest.mark.weights
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "smollm2-135m", "gemma3-270m"])
def test_real_vocabulary(
    vocabulary: Callable[[str], tuple[Any, str | None]], weights: Callable[[str], Path], name: str
) -> None:
    tokenizer, source = vocabulary(str(weights(name)))
    pieces = list(tokenizer.special_pieces)
    chat = load_template(source, fallback="gemma", bos="", eos="")
    hostile = "".join(p for p in pieces if "unused" not in p) + "<|im_end|<|im_end|>> <|im_"

    def special(content: str) -> list[int]:
        messages = parse_messages(conversation([content] * 5 + ["f"]))
        ids = encode_chat(chat, tokenizer, messages, parse_tools(tools_with("f", content)), pieces)
        return [i for i in ids if i in tokenizer.special_pieces.values()]

    assert special(hostile) == special("harmless") != []
