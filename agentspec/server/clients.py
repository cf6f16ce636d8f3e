"""Configurations of the clients that people use, for one running server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError

KEY_VARIABLE = "AGENTSPEC_API_KEY"
"""Where clients find the key: it is never written into a file that this prints."""

_NO_KEY = "none"  # clients insist on some text


@dataclass(frozen=True, slots=True)
class Served:
    """One server as a client sees it; `url` without `/v1`, sizes in tokens."""

    url: str
    model: str
    n_ctx: int = 8192
    max_tokens: int = 4096
    needs_key: bool = False

    def __post_init__(self) -> None:
        # both are pasted into files and shells
        if not re.fullmatch(r"https?://[A-Za-z0-9.:@%_\[\]-]+", self.url):
            raise ConfigError(f"--url {self.url!a} is not an address like http://127.0.0.1:8080")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", self.model):
            raise ConfigError(f"--model {self.model!a} is not a name that clients can be given")

    @property
    def shell_key(self) -> str:
        return f'"${KEY_VARIABLE}"' if self.needs_key else _NO_KEY


def opencode(served: Served) -> str:
    """opencode.json in the project, or ~/.config/opencode/opencode.json."""
    options: dict[str, Any] = {"baseURL": f"{served.url}/v1"}
    options["apiKey"] = f"{{env:{KEY_VARIABLE}}}" if served.needs_key else _NO_KEY
    model = {
        "name": served.model,
        "tool_call": True,
        "limit": {"context": served.n_ctx, "output": served.max_tokens},
    }
    return _json(
        {
            "$schema": "https://opencode.ai/config.json",
            "model": f"agentspec/{served.model}",
            "small_model": f"agentspec/{served.model}",
            "provider": {
                "agentspec": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "agentspec",
                    "options": options,
                    "models": {served.model: model},
                }
            },
        }
    )


def codex(served: Served) -> str:
    """~/.codex/config.toml: the first four lines above its first [table], the rest at its end."""
    key = f'env_key = "{KEY_VARIABLE}"\n' if served.needs_key else ""
    return (
        f'model = "{served.model}"\n'
        'model_provider = "agentspec"\n'
        f"model_context_window = {served.n_ctx}\n"
        'web_search = "disabled"\n'
        "\n"
        "[model_providers.agentspec]\n"
        'name = "agentspec"\n'
        f'base_url = "{served.url}/v1"\n'
        'wire_api = "responses"\n'
        f"{key}"
        "stream_idle_timeout_ms = 600000\n"
    )


def claude(served: Served) -> str:
    """~/.claude/settings.json of Claude Code, or a file for `claude --settings FILE`."""
    names = ["ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"]
    names += ["ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"]
    env = {
        "ANTHROPIC_BASE_URL": served.url,
        **dict.fromkeys(names, served.model),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.max_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # a line that changes with each request defeats the reuse of the prompt; exported in a
        # shell it is not heard, hence a file
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_TIMEOUT_MS": "3000000",
    }
    if served.needs_key:
        return _json({"apiKeyHelper": f"printenv {KEY_VARIABLE}", "env": env})
    return _json({"env": {**env, "ANTHROPIC_AUTH_TOKEN": _NO_KEY}})


def aider(served: Served) -> str:
    """Environment and command of aider."""
    return (
        f"export OPENAI_API_BASE={served.url}/v1\n"
        f"export OPENAI_API_KEY={served.shell_key}\n"
        f"aider --model openai/{served.model} --weak-model openai/{served.model} "
        "--no-show-model-warnings\n"
    )


def continue_(served: Served) -> str:
    """~/.continue/config.yaml; the key, if any, belongs into ~/.continue/.env."""
    key = f"${{{{ secrets.{KEY_VARIABLE} }}}}" if served.needs_key else _NO_KEY
    return (
        "name: agentspec\n"
        "version: 0.0.1\n"
        "schema: v1\n"
        "models:\n"
        f'  - name: "{served.model}"\n'
        "    provider: openai\n"
        f'    model: "{served.model}"\n'
        f'    apiBase: "{served.url}/v1"\n'
        f'    apiKey: "{key}"\n'
        "    roles: [chat, edit, apply]\n"
        "    capabilities: [tool_use]\n"
        "    defaultCompletionOptions:\n"
        f"      contextLength: {served.n_ctx}\n"
        f"      maxTokens: {served.max_tokens}\n"
    )


def zed(served: Served) -> str:
    """~/.config/zed/settings.json; Zed wants AGENTSPEC_API_KEY set, to any text without a key."""
    return _json(
        {
            "language_models": {
                "openai_compatible": {
                    "agentspec": {
                        "api_url": f"{served.url}/v1",
                        "available_models": [
                            {
                                "name": served.model,
                                "display_name": served.model,
                                "max_tokens": served.n_ctx,
                                "max_output_tokens": served.max_tokens,
                                "capabilities": {
                                    "tools": True,
                                    "images": False,
                                    "parallel_tool_calls": True,
                                    "prompt_cache_key": False,
                                },
                            }
                        ],
                    }
                }
            },
            "agent": {"default_model": {"provider": "agentspec", "model": served.model}},
        }
    )


def qwen_code(served: Served) -> str:
    """Environment of Qwen Code."""
    return (
        f"export OPENAI_BASE_URL={served.url}/v1\n"
        f"export OPENAI_API_KEY={served.shell_key}\n"
        f"export OPENAI_MODEL={served.model}\n"
    )


CLIENTS: dict[str, Callable[[Served], str]] = {
    "aider": aider,
    "claude": claude,
    "codex": codex,
    "continue": continue_,
    "opencode": opencode,
    "qwen-code": qwen_code,
    "zed": zed,
}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
