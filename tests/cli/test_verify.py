"""`agentspec verify`: code 0 for equal texts and ties, 3 for a defect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec import loading
from agentspec.cli import main
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer


class Damages(ScriptedBackend):
    def rollback(self, seq: int, length: int) -> None:
        partial = 0 < length < self.length(seq)
        super().rollback(seq, length)
        if partial:
            self.caches[seq][-1] = 65


@pytest.fixture
def load(chat: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def install(kind: Any) -> None:
        def load_engine(model: Any = None, *, wrap: Any = None, **settings: Any) -> Any:
            target = chat.backend(chat.hashed(8), kind)
            engine = chat.engine(wrap(target) if wrap else target, model="m")
            drafts = ScriptedProposer(lambda tokens, most: [65, 66][:most])
            engine._proposers = lambda request, seat: (
                [drafts] if request.speculation.enabled else []
            )
            return engine

        monkeypatch.setattr(loading, "load_engine", load_engine)

    return install


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["verify", "--max-tokens", "30", *args])
    assert "Traceback" not in result.output
    return result


def test_a_sound_engine(load: Any, tmp_path: Path) -> None:
    load(ScriptedBackend)
    result = run()
    assert result.exit_code == 0
    assert "10 answers equal, 0 ties, 0 defects" in result.stdout
    assert result.stderr.splitlines() == ["verify: plain", "verify: accelerated", "verify: replay"]
    out = tmp_path / "v.json"
    result = run("--json", "--out", str(out), "--k", "2")
    data = json.loads(result.stdout)
    assert data == json.loads(out.read_text())
    assert (data["defects"], data["ties"], data["settings"]["k"]) == (0, 0, 2)
    assert data["target"] == "ScriptedBackend"


def test_a_defect_is_code_3(load: Any) -> None:
    load(Damages)
    result = run()
    assert result.exit_code == 3
    assert "defect" in result.stdout
    result = run("--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["defects"] > 0


def test_bad_input_is_code_2(load: Any, tmp_path: Path) -> None:
    load(ScriptedBackend)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{")
    result = run(str(bad))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: bad.jsonl:1 is not JSON")
    assert run("--max-tokens", "0").exit_code == 2
    assert run("--out", str(tmp_path)).exit_code == 2
