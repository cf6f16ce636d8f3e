"""The lossy mode of an engine: off, asked for by whoever loads it and by nobody else, and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.config import RULES, load_settings
from agentspec.control.cost import CostCurve
from agentspec.engine.typical import Typical
from agentspec.errors import ConfigError, InvalidRequestError
from agentspec.loading import load_engine

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})
HI = [{"role": "user", "content": "hi"}]
TEXT = "one, two, three, four, five, six, seven and eight"
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 60, "context": [TEXT]}


def wavering(chat: Any) -> Any:
    """A law that says this text with a chance of a half, a dozen others with the rest."""
    sure = chat.writing(TEXT)

    def law(cached: Any) -> Any:
        logits = np.full(chat.vocab, -20.0, dtype=np.float32)
        logits[97:109] = 0.0
        logits[int(sure(cached).argmax())] = np.log(12.0)
        return logits

    return law


def engine(chat: Any, **options: Any) -> Any:
    return chat.engine(wavering(chat), cost=FLAT, **options)


def test_it_is_off_and_told_where_it_is_on(chat: Any) -> None:
    off, on = engine(chat), engine(chat, lossy="typical")
    assert off.lossy is None
    exact, lossy = off.complete(HI, **WARM), on.complete(HI, **WARM)
    assert exact.speculation.lossy is None
    assert lossy.speculation.lossy == "typical"
    assert lossy.speculation.accepted > 20
    assert lossy.text != exact.text
    assert lossy.speculation.acceptance_length > exact.speculation.acceptance_length
    assert json.loads(lossy.model_dump_json())["speculation"]["lossy"] == "typical"
    *_, last = on.stream(HI, **WARM)
    assert last.speculation.lossy == "typical"
    assert on.last_stats.lossy == "typical"
    strict = engine(chat, lossy=Typical(0.9, 10.0)).complete(HI, **WARM)
    assert strict.speculation.lossy == "typical"
    assert strict.text == exact.text  # where a half is not typical, drafts are judged by the draw


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"speculation": False}, {"speculation": {"k": 0}}]
)
def test_greedy_and_plain_answers_stay_the_models_own(chat: Any, options: dict[str, Any]) -> None:
    asked = {**WARM, **options}
    exact = engine(chat).complete(HI, **asked)
    told = engine(chat, lossy="typical").complete(HI, **asked)
    assert told.text == exact.text
    assert told.speculation.lossy is None
    assert told.speculation.accepted == exact.speculation.accepted


def test_a_grammar_holds(chat: Any) -> None:
    pytest.importorskip("llguidance")
    loose = chat.engine(chat.hashed(), cost=FLAT, lossy="typical")
    answer = loose.complete(
        HI, grammar='start: ("ab" | "cd" | "ef")~8', temperature=2.0, seed=1, context=["abcdefcd"]
    )
    assert answer.speculation.lossy == "typical"
    assert len(answer.text) == 16
    assert {answer.text[i : i + 2] for i in range(0, 16, 2)} <= {"ab", "cd", "ef"}


def test_log_probabilities_are_of_the_tokens_that_came(chat: Any) -> None:
    answer = engine(chat, lossy="typical").complete(HI, logprobs=True, **WARM)
    *told, end = [one.token for one in answer.choices[0].logprobs.content]
    assert ("".join(told), end) == (answer.text, "<|im_end|>")


def test_a_request_cannot_ask_for_it(chat: Any) -> None:
    plain = engine(chat)
    with pytest.raises(InvalidRequestError, match="lossy is not an option of a request"):
        plain.complete(HI, lossy="typical")
    with pytest.raises(InvalidRequestError, match=r"speculation\.lossy is unknown"):
        plain.complete(HI, speculation={"lossy": "typical"})


def test_settings_cannot_ask_for_it(tmp_path: Path) -> None:
    assert "lossy" not in RULES
    (tmp_path / ".agentspec.toml").write_text('lossy = "typical"\n')
    with pytest.raises(ConfigError, match="unknown setting 'lossy'"):
        load_settings(project_dir=tmp_path, env={})
    with pytest.raises(ConfigError, match="AGENTSPEC_LOSSY"):
        load_settings(project_dir=Path("/nowhere"), env={"AGENTSPEC_LOSSY": "typical"})


def test_what_it_contradicts_is_said_before_a_model_is_looked_for(chat: Any) -> None:
    with pytest.raises(ConfigError, match="lossy and exact contradict each other") as caught:
        load_engine("/no/such/model.gguf", lossy="typical", exact=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="lossy must be 'typical'"):
        load_engine("/no/such/model.gguf", lossy="nucleus")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lossy and exact contradict each other"):
        engine(chat, lossy="typical", exact=True)
    # and an engine that has it is no engine of exact mode
    with pytest.raises(InvalidRequestError, match="loaded with exact=True"):
        engine(chat, lossy="typical").complete(HI, speculation={"exact": True})


def test_the_server_cannot_be_asked_for_it(chat: Any) -> None:
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from agentspec.server.app import create_app
    from agentspec.server.options import ServerOptions

    app = create_app(engine(chat), ServerOptions())
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:

        def post(**more: Any) -> Any:
            asked = {"model": "local", "messages": HI, **WARM, **more}
            return client.post("/v1/chat/completions", json=asked).json()

        # keys that no client is known to mean are passed over
        answer = post(lossy="typical")
        assert answer["choices"] == post()["choices"]
        assert answer["speculation"]["lossy"] is None
        refused = post(speculation={"lossy": "typical"})
        assert "speculation.lossy is unknown" in refused["error"]["message"]


def test_a_file_is_loaded_with_it(tiny: Any) -> None:
    path = tiny("dense")
    told: dict[str, Any] = {"n_ctx": 256, "template": "chatml", "max_sessions": 1}
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 12, "context": ["abc"]}
    for lossy, rule in (("typical", Typical()), (Typical(0.2), Typical(0.2)), (None, None)):
        with load_engine(path, lossy=lossy, **told) as made:  # type: ignore[arg-type]
            assert made.lossy == rule
            answer: Any = made.complete(HI, **asked)
            assert answer.speculation.lossy == (rule and "typical")
