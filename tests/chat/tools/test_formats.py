from __future__ import annotations

import pytest

from agentspec.chat.tools.formats import FORMATS, by_name, detect
from agentspec.chat.tools.mistral import short_call_id
from agentspec.errors import InvalidRequestError
from tests.chat.tools.reading import TOOLS

# The lines of public chat templates that write a call of the history, in their own spelling.
TEMPLATES = [
    ("hermes_json", """{{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}"""),
    (
        "qwen_xml",
        "{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}"
        "{{- '<parameter=' + args_name + '>\\n' }}",
    ),
    (
        "llama_json",
        """{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}"""
        """{{- "<|python_tag|>" + tool_call.name + ".call(" }}""",
    ),
    (
        "llama_json",
        """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}"""
        """{{- '{"name": "' + tool_call.name + '", "parameters": ' }}""",
    ),
    ("llama_json", """{{- '<|python_start|>' }}{{- '{"name": "' + name + '", "parameters": ' }}"""),
    ("pythonic", "{{- '<|header_start|>' }}{{- '<|python_start|>' + calls + '<|python_end|>' }}"),
    (
        "pythonic",
        "<|start_header_id|>system ... in the format of "
        "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2()]",
    ),
    ("lfm2", "{{- '<|tool_call_start|>[' + calls + ']<|tool_call_end|>' }}"),
    ("mistral", """{{- "[TOOL_CALLS] [" }}{%- set out = tool_call.function|tojson %}"""),
    ("mistral_args", """{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"""),
    (
        "harmony",
        """{{- "<|start|>assistant<|channel|>commentary to=functions." + tool_call.name """
        """+ " json<|message|>" }}""",
    ),
    (
        "deepseek",
        "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json'",
    ),
    ("deepseek_v31", "'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'"),
    ("glm", "{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>\n<arg_value>"),
    ("hermes_json", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"),
    ("hermes_json", ""),
]


@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_a_template_says_the_format(name: str, template: str) -> None:
    assert detect(template, "llama").name == name


def test_an_architecture_says_it_where_the_template_does_not() -> None:
    assert detect("", "gpt-oss").name == "harmony"
    assert detect("", None).name == "hermes_json"
    assert detect("{{- '<tool_call>' }}", "gpt-oss").name == "hermes_json"


def test_formats_go_by_their_names() -> None:
    for name, family in FORMATS.items():
        assert by_name(name).name == name
        assert by_name(name).shape == family.shape
    with pytest.raises(InvalidRequestError, match=r"'nope'.*hermes_json"):
        by_name("nope")


def test_mistral_takes_its_own_ids_back() -> None:
    ids = {short_call_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)
    one = by_name("mistral_args")
    start = one.parser(TOOLS).feed("[TOOL_CALLS]now[ARGS]{}")[0]
    assert len(start.id) == 9  # type: ignore[union-attr]
