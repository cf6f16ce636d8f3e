"""The examples for OpenAI's and Anthropic's SDK, against a server whose model is scripted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

KEY = "a-key-of-the-tests"


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_file_is_read_and_its_text_told(
    sdk: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(sdk)
    from scripts.client_scripted import ScriptedServer, call

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTSPEC_API_KEY", KEY)
    Path("README.md").write_text("Of herons: they «wait».\n")
    prompts = []

    def reply(prompt: str, made: int) -> str:
        prompts.append(prompt)
        if not made:
            return "I look.\n" + call("read", {"path": "README.md"})
        return "It says: herons wait."

    main = importlib.import_module(f"examples.{sdk}_client").main
    with ScriptedServer(reply, keys=(KEY,)) as server:
        main(server.url)
        reused = server.engine.slots()[0].tokens
    assert capsys.readouterr().out == "I look.It says: herons wait.\n"
    first, second = prompts
    assert "What does README.md say?" in first
    assert '"name": "read"' in first
    assert "Of herons: they «wait»." in second
    assert json.dumps("README.md") in second
    assert reused > len(second)


def test_an_answer_without_an_end_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    from examples.openai_client import main
    from scripts.client_scripted import ScriptedServer

    with ScriptedServer(lambda prompt, made: "herons " * 100, keys=()) as server:
        main(server.url)
    told = capsys.readouterr().out
    assert told.startswith("herons herons")
    assert told.endswith("\n(no end within max_tokens)\n")
