"""What `print-config` prints is what the clients read."""

from __future__ import annotations

import json
import shlex
import tomllib
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.server.clients import CLIENTS, Served

SERVED = Served("http://127.0.0.1:8080", "qwen2.5-coder-1.5b", n_ctx=32768, max_tokens=8192)
LOCKED = Served("http://10.0.0.5:9000", "m", needs_key=True)


def exported(text: str) -> dict[str, str]:
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("export ")]
    return dict(word[1].split("=", 1) for word in words)


def test_opencode() -> None:
    config = json.loads(CLIENTS["opencode"](SERVED))
    provider = config["provider"]["agentspec"]
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["options"]["baseURL"] == "http://127.0.0.1:8080/v1"
    assert config["model"].partition("/") == ("agentspec", "/", SERVED.model)
    assert provider["models"][SERVED.model]["limit"] == {"context": 32768, "output": 8192}
    locked = json.loads(CLIENTS["opencode"](LOCKED))
    assert locked["provider"]["agentspec"]["options"]["apiKey"] == "{env:AGENTSPEC_API_KEY}"


def test_codex() -> None:
    config = tomllib.loads(CLIENTS["codex"](SERVED))
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:8080/v1"
    assert provider["wire_api"] == "responses"
    assert config["model"] == SERVED.model
    assert config["model_context_window"] == 32768
    assert "env_key" not in provider
    locked = tomllib.loads(CLIENTS["codex"](LOCKED))["model_providers"]["agentspec"]
    assert locked["env_key"] == "AGENTSPEC_API_KEY"


def test_claude() -> None:
    config = json.loads(CLIENTS["claude"](SERVED))
    env = config["env"]
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert env["ANTHROPIC_MODEL"] == env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == SERVED.model
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert env["ANTHROPIC_AUTH_TOKEN"]
    locked = json.loads(CLIENTS["claude"](LOCKED))
    assert locked["apiKeyHelper"] == "printenv AGENTSPEC_API_KEY"
    assert "ANTHROPIC_AUTH_TOKEN" not in locked["env"]


def test_aider_and_qwen_code() -> None:
    env = exported(CLIENTS["aider"](SERVED))
    assert env["OPENAI_API_BASE"] == "http://127.0.0.1:8080/v1"
    command = shlex.split(CLIENTS["aider"](SERVED).splitlines()[-1])
    assert command[:3] == ["aider", "--model", f"openai/{SERVED.model}"]
    env = exported(CLIENTS["qwen-code"](LOCKED))
    assert env == {
        "OPENAI_BASE_URL": "http://10.0.0.5:9000/v1",
        "OPENAI_API_KEY": "$AGENTSPEC_API_KEY",
        "OPENAI_MODEL": "m",
    }


def test_zed() -> None:
    config = json.loads(CLIENTS["zed"](SERVED))
    provider = config["language_models"]["openai_compatible"]["agentspec"]
    assert provider["api_url"] == "http://127.0.0.1:8080/v1"
    (model,) = provider["available_models"]
    assert model["name"] == SERVED.model
    assert model["max_tokens"] == 32768
    assert model["capabilities"]["tools"] is True


def test_continue() -> None:
    lines = CLIENTS["continue"](SERVED).splitlines()
    assert lines[:4] == ["name: agentspec", "version: 0.0.1", "schema: v1", "models:"]
    assert '    apiBase: "http://127.0.0.1:8080/v1"' in lines
    assert f'    model: "{SERVED.model}"' in lines
    assert "    provider: openai" in lines
    assert "${{ secrets.AGENTSPEC_API_KEY }}" in CLIENTS["continue"](LOCKED)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "127.0.0.1:8080"},
        {"url": "http://a b"},
        {"url": "http://a$(id)"},
        {"url": "http://a'b"},
        {"url": "http://a;id"},
        {"url": "http://a&id"},
        {"url": "http://a|id"},
        {"url": "http://a>b"},
        {"url": "http://a(b)"},
        {"url": "http://{a,b}"},
        {"url": "http://a:~root"},
        {"url": "file:///etc/passwd"},
        {"model": "a b"},
        {"model": '"; rm'},
        {"model": "$(id)"},
        {"model": ""},
    ],
)
def test_what_could_break_out_of_a_file_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Served(**{"url": "http://a", "model": "m", **change})
