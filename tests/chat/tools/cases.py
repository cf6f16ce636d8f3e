"""Answers as models of each family write them, and what a client is to get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Case(NamedTuple):
    """`text` None: all of the source comes back."""

    source: str
    calls: Sequence[tuple[str, Any]] = ()
    text: str | None = ""
    notes: tuple[str, ...] = ()
    thinking: str = ""


READ: tuple[str, Any] = ("read", {"path": "a.py"})
NOW: tuple[str, Any] = ("now", {})
OBJECT = '{"name": "read", "arguments": {"path": "a.py"}}'
NOW_OBJECT = '{"name": "now", "arguments": {}}'
# Everything that ends a call in one format or another, inside a string.
HOSTILE = '}] {[ </tool_call> </arg_value> </parameter> ``` [/TOOL_CALLS] \\" \\\\ <|call|> ;'
EMOJI = "\\ud83d\\ude00"


def text(source: str) -> Case:
    return Case(source, text=None)


def broken(source: str, *notes: str) -> Case:
    return Case(source, text=None, notes=notes)


# What any model may answer, and no family may take for a call.
PROSE = [
    text(""),
    text("plain text, with a < b and [1] and {2}; f(x)"),
    text("  \n\n spaced \n"),
    text('{"title": "x", "items": [1, 2, {"name": "read"}]}'),
    text('[{"name": "Ada"}, 2]\n'),
    text("[link](http://example.org/a_(b)) and [read] and [read me](x)"),
    text("[1, 2, 3]"),
    text("```python\nx = {}\nread(path)\n```\n"),
    text("<div>\n<b>bold</b>\n</div>"),
    text("a\u2028b \U0001f600 \ufffd\x00 e\u0301"),
    text("- [ ] todo\n- [x] done\n[0]: note"),
    text("<"),
    text("["),
    text("[re"),
    text("`"),
]

# What the families that read JSON take for calls, whatever their own marks.
JSON = [
    Case(OBJECT, [READ]),
    Case(f"\n {OBJECT}\n", [READ]),
    Case(f"{OBJECT}\n{NOW_OBJECT}", [READ, NOW]),
    Case(f"{NOW_OBJECT}\n{OBJECT}", [NOW, READ]),
    Case(f"[{OBJECT}, {NOW_OBJECT}]", [READ, NOW]),
    Case(f"[\n  {OBJECT}\n]", [READ]),
    Case(f"```json\n{OBJECT}\n```", [READ]),
    Case(f"```json\n[{OBJECT},\n{NOW_OBJECT}]\n```\nok", [READ, NOW], "\nok"),
    Case('{"name": "read", "parameters": {"path": "a.py"}}', [READ]),
    Case(
        '{"type": "function",'
        ' "function": {"name": "read", "arguments": "{\\"path\\": \\"a.py\\"}"}}',
        [READ],
    ),
    Case('{"function": "read", "parameters": {"path": "a.py"}}', [READ]),
    broken('{"name": "read", "arguments": {"path": "a', "cut_off"),
    broken('{"name": "read", "arguments": [1]}', "bad_arguments"),
    Case(f'{OBJECT}, {{"title": 1}}', [READ], ', {"title": 1}'),
    Case(f"{OBJECT}; and text", [READ], "; and text"),
    text('{"name": "other", "arguments": {}}'),
    text("{"),
    text("```js"),
]


def xml(*arguments: tuple[str, str], name: str = "read", line: str = "\n") -> str:
    """A call of Qwen3-Coder."""
    body = "".join(
        f"<parameter={key}>{line}{value}{line}</parameter>\n" for key, value in arguments
    )
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def glm(*arguments: tuple[str, str], name: str = "read", line: str = "\n") -> str:
    body = line.join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>" for key, value in arguments
    )
    return f"<tool_call>{name}{line}{body}{line}</tool_call>"


def dsml(name: str, arguments: str, *, fenced: bool) -> str:
    """A call of DeepSeek."""
    if fenced:
        inner = f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
    else:
        inner = f"{name}<｜tool▁sep｜>{arguments}"
    return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"


def section(*calls: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


ARGUMENTS = '{"path": "a.py"}'
NESTED: tuple[str, Any] = (
    "write",
    {"path": "", "text": HOSTILE.replace("\\\\", "\\").replace('\\"', '"')},
)
NESTED_ARGUMENTS = f'{{"path": "", "text": "{HOSTILE}"}}'
CODE = xml(("path", "x"), name="write")  # a call spelt out in the text of another
TYPED = [
    ("flag", "true"),
    ("ratio", "1.50"),
    ("tags", '["a", {"b": [1]}]'),
    ("options", '{"k": null}'),
    ("note", "null"),
    ("free", "12"),
]
TYPED_CALL: tuple[str, Any] = (
    "set",
    {
        "flag": True,
        "ratio": 1.5,
        "tags": ["a", {"b": [1]}],
        "options": {"k": None},
        "note": None,
        "free": 12,
    },
)

_QWEN = [
    Case(xml(("path", "a.py")), [READ]),
    Case(f"I look.\n{xml(('path', 'a.py'))}\nDone.", [READ], "I look.\nDone."),
    Case(xml(("path", "a.py")) + "\n" + xml(name="now"), [READ, NOW]),
    Case(xml(("path", "a.py"), line=""), [READ]),
    Case(xml(name="now"), [NOW]),
    Case(xml(name="now") + xml(("path", "a.py")), [NOW, READ]),
    Case("<tool_call><function=now></function></tool_call>", [NOW]),
    Case(xml(("path", "1"), ("limit", "2")), [("read", {"path": "1", "limit": 2})]),
    Case(xml(*TYPED, name="set"), [TYPED_CALL]),
    # The tag that opens is missing, as the model often leaves it out.
    Case(f"Look.\n\n{xml(('path', 'a.py')).removeprefix('<tool_call>')}", [READ], "Look."),
    text("The tag <function=foo> begins a call"),
    # Two functions in one tag, the last tags missing, the tag of a value missing.
    Case(
        "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>",
        [NOW, NOW],
    ),
    Case(xml(("path", "a.py")).removesuffix("\n</tool_call>"), [READ]),
    Case(xml(("path", "a.py")).replace("</function>\n", ""), [READ]),
    Case(xml(("path", "a.py")).replace("</parameter>\n", ""), [READ]),
    broken(xml(("path", "a"), ("limit", "1")).replace("</parameter>\n", ""), "bad_form"),
    # Text that spells tags: of a whole call, of a part of one, of nothing.
    Case(
        xml(("path", "x"), ("text", f"Write:\n{CODE}\nEnd.")),
        [("read", {"path": "x", "text": f"Write:\n{CODE}\nEnd."})],
    ),
    Case(
        xml(("text", "a </parameter> b </function> c <parameter=x> </tool_call>"), name="write"),
        [("write", {"text": "a </parameter> b </function> c <parameter=x> </tool_call>"})],
    ),
    Case(
        xml(("text", "\n  indented\n\n"), name="write"), [("write", {"text": "\n  indented\n\n"})]
    ),
    Case(xml(("text", 'é\t"\\n\U0001f600'), name="write"),
         [("write", {"text": 'é\t"\\n\U0001f600'})]),
    Case(f"<tool_call>\n{OBJECT}\n</tool_call>", [READ]),
    broken("<tool_call>\n<function=read>\n<parameter=path>\na", "cut_off"),
    broken("<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n", "cut_off"),
    broken("<tool_call>\n<function=read>\n<parameter=path\na</parameter>", "bad_form"),
    broken("<tool_call>\n<function=>\n</function>\n</tool_call>", "no_name"),
    broken("<tool_call>\nhm", "bad_form"),
    Case(
        "<tool_call>\n<function=read>\n<parameter\n" + xml(("path", "a.py")),
        [READ],
        "<tool_call>\n<function=read>\n<parameter",
        ("bad_form",),
    ),
    broken("<tool_call>\n<function=set>\n<parameter=tags>\n" + "[" * 101 + "\n</parameter>\n"
           "</function>\n</tool_call>", "too_deep"),
]  # fmt: skip

_GLM = [
    Case(glm(("path", "a.py")), [READ]),
    Case(glm(("path", "a.py"), line=""), [READ]),
    Case(f"I look.\n{glm(('path', 'a.py'))}\nDone.", [READ], "I look.\nDone."),
    Case(glm(("path", "a.py")) + "\n" + glm(name="now"), [READ, NOW]),
    Case(glm(name="now") + glm(("path", "a.py")), [NOW, READ]),
    Case("<tool_call>now</tool_call>", [NOW]),
    Case(glm(*TYPED, name="set"), [TYPED_CALL]),
    Case(
        glm(("text", f"a </arg_value> b\n{glm(('path', 'x'))} </tool_call>"), name="write"),
        [("write", {"text": f"a </arg_value> b\n{glm(('path', 'x'))} </tool_call>"})],
    ),
    Case(glm(("text", " a\n\n"), name="write"), [("write", {"text": " a\n\n"})]),
    Case(f"<tool_call>\n{OBJECT}\n</tool_call>", [READ]),
    broken("<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a", "cut_off"),
    broken("<tool_call>read\n<arg_key>path</arg_key>\n</tool_call>", "bad_form"),
    broken("<tool_call>read\n<arg_key>path\n", "bad_form"),
    broken("<tool_call>\n<arg_key>", "cut_off"),
    Case(
        "<tool_call>read\n<arg_key>path</arg_key>\n" + glm(("path", "a.py")),
        [READ],
        "<tool_call>read\n<arg_key>path</arg_key>",
        ("bad_form",),
    ),
]

_LLAMA = [
    Case('{"name": "read", "parameters": {"path": "a.py"}}; ' + NOW_OBJECT, [READ, NOW]),
    Case(f"<|python_tag|>{OBJECT}", [READ]),
    Case(f"Well.\n<|python_tag|> {OBJECT} ; {NOW_OBJECT}", [READ, NOW], "Well."),
    Case(f"<|python_tag|>[{OBJECT}, {NOW_OBJECT}]", [READ, NOW]),
    Case('<|python_tag|>{"name": "other", "parameters": null}', [("other", {})]),
    broken('<|python_tag|>print("hi")', "not_json"),
    broken('<|python_tag|>{"name": "read", "param', "cut_off"),
    Case(f"{OBJECT}<|python_tag|>{NOW_OBJECT}", [READ, NOW]),
    Case(f"<|python_start|>{OBJECT}<|python_end|>\n", [READ]),
]

_PYTHONIC = [
    Case('[read(path="a.py")]', [READ]),
    Case('[read(path="a.py"), now()]', [READ, NOW]),
    Case("[ read ( path = 'a.py' , ) ,\nnow( ) , ]".replace("read (", "read("), [READ, NOW]),
    Case("<|python_start|>[read(path='a.py')]<|python_end|> ok", [READ], " ok"),
    Case(f"<|python_start|>{OBJECT}<|python_end|>", [READ]),
    Case("<|python_start|>[other.thing(a=1)]<|python_end|>", [("other.thing", {"a": 1})]),
    Case("I look.\n[now()]\n", [NOW], "I look."),
    Case(
        "[set(flag=True, ratio=-1.5e3, tags=[1, 'a', (2, None)], options={'a': {\"b\": []}, 1: 2,},"
        " note=None, free=0x1F)]",
        [
            (
                "set",
                {
                    "flag": True,
                    "ratio": -1500.0,
                    "tags": [1, "a", [2, None]],
                    "options": {"a": {"b": []}, "1": 2},
                    "note": None,
                    "free": 31,
                },
            )
        ],
    ),
    Case(
        r"""[write(path="", text='})] \' " \\ [read(path=\"x\")] \n\x41\u00e9\U0001F600\q')]""",
        [("write", {"path": "", "text": '})] \' " \\ [read(path="x")] \nA\u00e9\U0001f600\\q'})],
    ),
    Case('[write(text="""a\n"b" \\"""" "")]'.replace(' ""', ""), [("write", {"text": 'a\n"b" "'})]),
    Case(f'[write(text="{EMOJI}")]', [("write", {"text": "\U0001f600"})]),
    Case("[read(path='a\nb')]", [("read", {"path": "a\nb"})]),
    Case("[read(path='')]", [("read", {"path": ""})]),
    text("[other(path='a')]"),
    text("x [read(path='a')]"),
    broken("[read(path='a", "cut_off"),
    broken("[read('a')]", "bad_arguments"),
    broken("[read(path=open('x'))]", "bad_arguments"),
    broken("[read(path=__import__('os').system('x'))]", "bad_arguments"),
    broken("[read(path=1+1)]", "bad_arguments"),
    broken("[set(free=nan)]", "bad_arguments"),
    broken("[read(path='a', path='b')]", "bad_arguments"),
    broken("[set(tags=" + "[" * 101 + ")]", "too_deep"),
    broken("[set(tags=[1}])]", "bad_arguments"),
    Case("[read(path='a.py'), now(1)]", [READ], ", now(1)]", ("bad_arguments",)),
]

_MISTRAL = [
    Case(f"[TOOL_CALLS][{OBJECT}]", [READ]),
    Case(f"Well. [TOOL_CALLS] [{OBJECT}, {NOW_OBJECT}]", [READ, NOW], "Well."),
    Case(f"[TOOL_CALLS]{OBJECT}", [READ]),
    Case(f"[TOOL_CALLS][{OBJECT[:-1]}, \"id\": \"abcdef123\"}}]", [READ]),
    Case(f"[TOOL_CALLS]read[ARGS]{ARGUMENTS}", [READ]),
    Case(f"[TOOL_CALLS]read{ARGUMENTS}", [READ]),
    Case(f"[TOOL_CALLS]read[CALL_ID]abcdef123[ARGS]{ARGUMENTS}", [READ]),
    Case(f"I help.[TOOL_CALLS]read[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}",
         [READ, NOW], "I help."),
    Case(f"[TOOL_CALLS]read[ARGS]{ARGUMENTS}\n\nLet me see.", [READ], "\n\nLet me see."),
    Case(f"[TOOL_CALLS]write[ARGS]{NESTED_ARGUMENTS}", [NESTED]),
    broken("[TOOL_CALLS]read[ARGS]{", "cut_off"),
    broken("[TOOL_CALLS]read[ARGS]x", "not_json"),
    broken("[TOOL_CALLS]read[FOO]{}", "bad_form"),
    broken("[TOOL_CALLS]nothing here\n", "bad_form"),
    broken("[TOOL_CALLS][1]", "not_json"),
    Case(f"[TOOL_CALLS][{OBJECT}, {{'a': 1}}]", [READ], ", {'a': 1}]", ("not_json",)),
    text("[TOOL_CALL] [TOOL_CALLS [TOOL"),
]  # fmt: skip

_DEEPSEEK = [
    Case(section(dsml("read", ARGUMENTS, fenced=True)), [READ]),
    Case(section(dsml("read", ARGUMENTS, fenced=False)), [READ]),
    Case(
        "I look."
        + section(dsml("read", ARGUMENTS, fenced=True), "\n", dsml("now", "{}", fenced=True)),
        [READ, NOW],
        "I look.",
    ),
    Case(
        section(dsml("read", ARGUMENTS, fenced=False), dsml("now", "{}", fenced=False)) + " x",
        [READ, NOW],
        " x",
    ),
    Case(section(dsml("write", NESTED_ARGUMENTS, fenced=True)), [NESTED]),
    Case(section(dsml("write", NESTED_ARGUMENTS, fenced=False)), [NESTED]),
    Case(dsml("read", ARGUMENTS, fenced=False), [READ]),
    Case("<｜tool_calls_begin｜>" + dsml("read", ARGUMENTS, fenced=True), [READ]),
    Case("<｜tool▁calls▁begin｜>" + dsml("read", ARGUMENTS, fenced=True), [READ]),
    Case(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n{ARGUMENTS}<｜tool▁call▁end｜>",
        [READ],
    ),
    broken("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>{", "cut_off"),
    broken("<｜tool▁calls▁begin｜>x", "bad_form"),
    broken("<｜tool▁call▁begin｜>read<x", "bad_form"),
    broken(section(dsml("read", "[1]", fenced=True)), "not_json"),
    broken(section(dsml("", "{}", fenced=False)), "no_name"),
    Case(
        section(dsml("read", ARGUMENTS, fenced=False), dsml("read", "{", fenced=False)),
        [READ],
        dsml("read", "{", fenced=False) + "<｜tool▁calls▁end｜>",
        ("not_json",),
    ),
]  # fmt: skip

_A = "<|channel|>analysis<|message|>"
_NEXT = "<|end|><|start|>assistant"
_FINAL = "<|channel|>final<|message|>"


def to(name: str, arguments: str, end: str = "<|call|>") -> str:
    """A call of gpt-oss."""
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}{end}"


_HARMONY = [
    text(""),
    text("plain, <b>bold</b> and [1] {2}"),
    Case(f"{_A}Think.{_NEXT}{_FINAL}Hello <b>\n", [], "Hello <b>\n", (), "Think."),
    Case(f"{_FINAL}Hi<|return|>", [], "Hi"),
    Case(f"{_A}I read.{_NEXT}{to('read', ARGUMENTS)}", [READ], "", (), "I read."),
    Case(to("read", ARGUMENTS, ""), [READ]),
    Case(to("now", ""), [NOW]),
    Case(to("now", "{}"), [NOW]),
    Case(
        f"{to('read', ARGUMENTS)}<|start|>assistant{to('now', '{}')}",
        [READ, NOW],
    ),
    Case(
        f"<|channel|>commentary<|message|>First I look.{_NEXT}{to('read', ARGUMENTS)}",
        [READ],
        "First I look.",
    ),
    # The recipient in the role, on the analysis channel, without the constraint.
    Case(f" to=functions.read<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", [READ]),
    Case(
        f"{_A}a{_NEXT} to=functions.read<|channel|>commentary<|message|>{ARGUMENTS}",
        [READ],
        "",
        (),
        "a",
    ),
    Case(f"<|channel|>analysis to=functions.read code<|message|>\n{ARGUMENTS}\n<|call|>", [READ]),
    Case(
        f"<|channel|>commentary to=functions.read<|channel|>commentary json<|message|>{ARGUMENTS}",
        [READ],
    ),
    Case(f"<|channel|>commentary to=read<|message|>{ARGUMENTS}", [READ]),
    Case(f"{_A}a<|channel|>final<|message|>b", [], "b", (), "a"),
    Case(f"<|start|>assistant{_FINAL}b", [], "b"),
    Case(to("write", NESTED_ARGUMENTS), [NESTED]),
    Case(f"{_A}never ended", [], "", (), "never ended"),
    Case(f"{_A}a <b> <|x|> c{_NEXT}<|channel|>fin", [], "", (), "a <b> <|x|> c"),
    Case("<|channel|>commentary to=python<|message|>1 + 1<|call|>", [], "1 + 1"),
    broken(to("read", '{"path": "a', ""), "cut_off"),
    broken("<|channel|>commentary to=functions.read", "cut_off"),
    Case(to("read", "[1]"), [], to("read", "[1]", ""), ("not_json",)),
    Case(
        f"<|channel|>commentary??{_NEXT}{_FINAL}x",
        [],
        "<|channel|>commentary??<|end|>x",
        ("bad_form",),
    ),
    Case(to("read", f"{ARGUMENTS} and"), [READ], " and"),
    Case(
        f"{_A}a<|channel|>commentary??<|end|>b",
        [],
        "<|channel|>commentary??<|end|>b",
        ("bad_form",),
        "a",
    ),
]  # fmt: skip

_TAGGED = f"<tool_call>\n{OBJECT}\n</tool_call>"
_HERMES = [
    Case(f"a <tool_call>\n{OBJECT}\n</tool_call> b", [READ], "a b"),
    Case(
        f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{NOW_OBJECT}\n</tool_call>", [READ, NOW]
    ),
    Case(f"<tool_call>[{OBJECT}]</tool_call>", [], None, ("not_json",)),
    Case(f'<tool_call>{{"name": "write", "arguments": {NESTED_ARGUMENTS}}}</tool_call>', [NESTED]),
    Case(
        f'<tool_call>{{"name": "write", "arguments": {{"text": "{EMOJI}"}}}}</tool_call>',
        [("write", {"text": "\U0001f600"})],
    ),
    Case(_TAGGED, [READ]),
    Case(f"{_TAGGED}{OBJECT}", [READ, READ]),
    Case(f"a {_TAGGED}{OBJECT}", [READ], f"a{OBJECT}"),
    Case(f"Let me look.\n\n{_TAGGED}\n", [READ], "Let me look."),
    Case(f"{_TAGGED}\nDone.", [READ], "\nDone."),
    Case(f"{_TAGGED}\n{_TAGGED}", [READ, READ]),
    Case(f"a {_TAGGED} b {_TAGGED} c", [READ, READ], "a b c"),
    Case(f"Sure:\n```json\n{OBJECT}\n```\nok", [READ], "Sure:\nok"),
    Case(f"```json\n{OBJECT}\n{OBJECT}\n```", [READ, READ]),
    Case(f"```json\n{OBJECT}", [READ]),
    Case(f"{OBJECT}\n{OBJECT}", [READ, READ]),
    Case(f"I call\n{OBJECT}\nnow", [READ], "I call\nnow"),
    text('{"name": "Ada", "arguments": {}}'),
    text('{"name": "read"}'),
    text('{"a": {"name": "read"}}'),
    text("```json\n{}\n```"),
    text("```python\nx = {}\n```"),
    text(f"```python\n{OBJECT}\n```"),
    text(f"say {OBJECT}"),
    Case("```json\n[1]\n```\n" + OBJECT, [READ], "```json\n[1]\n```"),
    text("a < b <tool> <tool_cal"),
    text("`` `x` ```inline``` y"),
    Case('<tool_call>{"name": "other"}</tool_call>', [("other", {})]),
    Case(f"<tool_call>\n{OBJECT}", [READ]),
    Case(f"<tool_call>\n{OBJECT}\n</tool_c", [READ]),
    Case(f"<tool_call>\n{OBJECT}\n{OBJECT}\n</tool_call>", [READ, READ]),
    Case(f"<tool_call>\n{OBJECT}\n<tool_call>\n{OBJECT}", [READ, READ]),
    Case('<tool_call>{"name": "read", "parameters": {"a":1}}</tool_call>', [("read", {"a": 1})]),
    Case(
        '<tool_call>{"arguments": {"a": [1, {"b": "}"}]} , "name": "read"}</tool_call>',
        [("read", {"a": [1, {"b": "}"}]})],
    ),
    Case('<tool_call>{"name": "read", "arguments": "{\\"a\\": 1}"}', [("read", {"a": 1})]),
    Case('<tool_call>{"name": "read", "arguments": null}', [("read", {})]),
    Case(
        '<tool_call>{"name": "write", "arguments": {"text": "a\nb"}}', [("write", {"text": "a\nb"})]
    ),
    Case(
        '<tool_call>{"name": "write", "arguments": {"t": "</tool_call> \\" {"}}</tool_call>',
        [("write", {"t": '</tool_call> " {'})],
    ),
    broken("<tool_call>\nno</tool_call>", "not_json"),
    broken("<tool_call>{'a': 1}", "not_json"),
    broken('<tool_call>{"name": 3}', "no_name"),
    broken('<tool_call>{"a": 3}', "no_name"),
    broken('<tool_call>{"name": "read", "arguments": [1]}', "bad_arguments"),
    broken('<tool_call>{"name": "read", "arguments": {"a": NaN}}', "not_json"),
    broken('<tool_call>{"name": "read", "arg', "cut_off"),
    broken('{"name": "read", "arguments": {"a": }}', "not_json"),
    Case(
        '<tool_call>\n{"name": "read", "arguments": {"a": "b}}\n</tool_call>\n' + _TAGGED,
        [READ],
        '<tool_call>\n{"name": "read", "arguments": {"a": "b}}\n</tool_call>',
        ("not_json",),
    ),
]

# What a family's own parser reads, and what all families read alike.
OWN: dict[str, list[Case]] = {
    "hermes_json": [*PROSE, *JSON, *_HERMES],
    "plain_json": [text("<tool_call> [TOOL_CALLS] <|python_tag|>")],
    "llama_json": [*_LLAMA, *_PYTHONIC[:6]],
    "pythonic": [*PROSE, *_PYTHONIC],
    "lfm2": [
        Case("<|tool_call_start|>[read(path='a.py'), now()]<|tool_call_end|>", [READ, NOW]),
        Case("I look.<|tool_call_start|>[read(path='a.py')]<|tool_call_end|>x", [READ], "I look.x"),
        broken("<|tool_call_start|>[read(path='a.py'", "cut_off"),
        broken("<|tool_call_start|>read(path='a.py')", "not_json"),
        Case("[read(path='a.py')]", [READ]),
    ],
    "mistral": [*PROSE, *_MISTRAL],
    "mistral_args": _MISTRAL[:8],
    "qwen_xml": _QWEN,
    "glm": _GLM,
    "deepseek": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK[:4],
    "harmony": _HARMONY,
}
# Too long for every cut to be tried.
LONG: list[tuple[str, Case]] = [
    ("harmony", broken(f"<|channel|>final{' x' * 600}", "bad_form")),
    ("hermes_json", broken("<tool_call>" + '{"a":' * 101, "too_deep")),
    ("plain_json", broken('{"name": "read", "arguments": ' + "[" * 101, "too_deep")),
    ("mistral", broken(f"[TOOL_CALLS]{'x' * 300}[ARGS]{{}}", "bad_form")),
    ("glm", broken(f"<tool_call>{'x' * 300}\n</tool_call>", "bad_form")),
    ("qwen_xml", broken(f"<tool_call><function={'x' * 300}></function>", "bad_form")),
    ("hermes_json", Case("a" + " \n" * 5000 + _TAGGED, [READ], "a" + (" \n" * 5000)[:8194])),
]
CASES: dict[str, list[Case]] = {
    family: own if family == "harmony" else [*PROSE, *JSON, *own] for family, own in OWN.items()
}
