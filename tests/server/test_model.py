"""The model's own routes, the metrics, the feed and the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentspec.answer import TokenEvent
from agentspec.chat.tools.base import TextDelta
from agentspec.control.cost import CostCurve
from agentspec.server.live import Live
from tests.server.conftest import HI

CHAT = "/v1/chat/completions"


def test_models_props_slots_and_health(client: Any, chat: Any) -> None:
    here = client(chat.engine(chat.writing("abc"), n_ctx=4096), parallel=1)
    listed = here.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model["id"] == "local"
    assert model["meta"]["n_ctx"] == 4096
    assert here.get("/models").json() == here.get("/v1/models/").json() == listed
    assert here.get("/v1/models/local").json() == model
    missing = here.get("/v1/models/org/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    props = here.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["total_slots"] == 1
    assert "im_start" in props["chat_template"]
    (slot,) = here.get("/slots").json()
    assert slot["is_processing"] is False
    here.post(CHAT, json={"messages": HI})
    (slot,) = here.get("/slots").json()
    assert slot["n_past"] > 10
    assert here.get("/health").json() == {"status": "ok"}


def test_tokens_there_and_back(client: Any, chat: Any) -> None:
    here = client()
    ids = here.post("/tokenize", json={"content": "hé<|im_end|>"}).json()["tokens"]
    assert ids == [*"hé".encode(), chat.eos]
    assert here.post("/detokenize", json={"tokens": ids}).json() == {"content": "hé<|im_end|>"}
    plain = {"content": "<|im_end|>", "parse_special": False, "with_pieces": True}
    pieces = here.post("/tokenize", json=plain).json()["tokens"]
    assert "".join(p["piece"] for p in pieces) == "<|im_end|>"
    assert len(pieces) == 10
    for tokens in ([-1], [10**9], ["x"], "x"):
        assert here.post("/detokenize", json={"tokens": tokens}).status_code == 400


def numbers(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_metrics_count_what_happened(client: Any, chat: Any) -> None:
    reply = "abcd " * 9
    engine = chat.engine(chat.writing(reply), cost=CostCurve.from_points({1: 1.0, 64: 1.1}))
    here = client(engine)
    answers = [here.post(CHAT, json={"messages": HI}).json() for _ in range(2)]
    here.post(CHAT, json={})
    answer = here.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = numbers(answer.text)
    model = 'model_name="local"'

    def total(*path: str) -> int:
        def get(value: Any) -> Any:
            for key in path:
                value = value[key]
            return value

        return sum(map(get, answers))

    spec = ("metrics", "speculative_decoding")
    for name, value in {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:prompt_tokens_total": total("usage", "prompt_tokens"),
        "vllm:generation_tokens_total": total("usage", "completion_tokens"),
        "vllm:prefix_cache_hits_total": total("timings", "cache_n"),
        "vllm:spec_decode_num_drafts_total": total(*spec, "num_spec_steps"),
        "vllm:spec_decode_num_draft_tokens_total": total(*spec, "num_draft_tokens"),
        "vllm:spec_decode_num_accepted_tokens_total": total(*spec, "num_accepted_draft_tokens"),
    }.items():
        assert found[f"{name}{{{model}}}"] == value, name
    assert found[f'vllm:request_success_total{{{model},finished_reason="stop"}}'] == 2
    assert found[f'agentspec:refused_requests_total{{{model},status="400"}}'] == 1
    per_position = [
        value
        for name, value in found.items()
        if name.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    ]
    assert sum(per_position) == total(*spec, "num_accepted_draft_tokens") > 0
    assert found[f'vllm:time_to_first_token_seconds_bucket{{{model},le="+Inf"}}'] == 2
    kinds = set(re.findall(r"^# TYPE (\S+)", answer.text, re.MULTILINE))
    for name in found:
        base = re.sub(r"(_bucket|_sum|_count)?\{.*", "", name)
        assert base in kinds


def test_the_feed_knows_who_proposed_each_piece(client: Any, chat: Any) -> None:
    reply = "def area(width, height):\n    return width * height\n"
    engine = chat.engine(chat.writing(reply), cost=CostCurve.from_points({1: 1.0, 64: 1.1}))
    here = client(engine)
    prediction = {"type": "content", "content": reply}
    headers = {"user-agent": "opencode/1.0"}
    done = here.post(CHAT, json={"messages": HI, "prediction": prediction}, headers=headers).json()
    live = here.get("/api/live").json()
    assert live["running"] == []
    (answer,) = live["recent"]
    assert answer["id"] == done["id"]
    assert answer["client"] == "opencode/1.0"
    assert answer["state"] == "stop"
    assert answer["api"] == "chat"
    assert answer["notes"] == []
    assert answer["accepted"] == done["timings"]["draft_n_accepted"]
    assert live["totals"]["accepted"] == answer["accepted"]
    assert live["totals"]["sources"]["predicted"]["accepted"] > 20
    assert live["kv"]["used"] > 50
    text = here.get(f"/api/answers/{done['id']}").json()
    assert "".join(piece for piece, _ in text["pieces"]) == reply
    assert {source for _, source in text["pieces"]} >= {"predicted", None}
    assert all(a[1] != b[1] for a, b in zip(text["pieces"], text["pieces"][1:], strict=False))
    assert here.get("/api/answers/unknown").status_code == 404
    for _ in range(25):
        here.post(CHAT, json={"messages": HI, "max_tokens": 1})
    assert len(here.get("/api/live").json()["recent"]) == 20


def test_plain_decoding_is_never_estimated_slower_than_the_tokens_per_pass_allow(
    client: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = "def area(width, height):\n    return width * height\n"
    here = client(chat.engine(chat.writing(reply), cost=CostCurve.from_points({1: 1.0, 64: 1.1})))
    prediction = {"type": "content", "content": reply}
    here.post(CHAT, json={"messages": HI, "prediction": prediction})
    assert here.get("/api/live").json()["recent"][0]["plain_per_second"] is None
    for rows, bounded in ((1e-3, True), (1e9, False)):
        monkeypatch.setattr(Live, "_rows", lambda self, rows=rows: rows)
        live = here.get("/api/live").json()
        for counted in (live["totals"], *live["recent"]):
            if bounded:
                gained = counted["tokens_per_second"] / counted["plain_per_second"]
                assert gained == pytest.approx(counted["tokens"] / counted["passes"], rel=0.01)
            else:
                assert counted["plain_per_second"] == rows


def test_every_route_is_in_the_document(client: Any) -> None:
    here = client()
    document = here.get("/openapi.json").json()
    routes = {
        route.path.replace(":path", "")
        for route in here.app.routes
        if not route.path.startswith("/page/")
    }
    aliases = {"/chat/completions", "/completions", "/responses", "/models", "/", "/favicon.ico"}
    assert set(document["paths"]) == routes - aliases
    assert "security" not in document
    key = "sk-a-good-long-key"
    with_key = client(keys=(key,)).get("/openapi.json", headers={"x-api-key": key}).json()
    assert with_key["security"]
    assert key not in str(with_key)


def test_a_long_run_is_kept_in_pieces_and_a_very_long_answer_is_cut(client: Any, chat: Any) -> None:
    here = client(chat.engine(chat.writing("x" * 1800), max_tokens=4000))
    done = here.post(CHAT, json={"messages": HI, "speculation": False}).json()
    text = here.get(f"/api/answers/{done['id']}").json()
    assert "".join(piece for piece, _ in text["pieces"]) == "x" * 1800
    assert 4 <= len(text["pieces"]) < 8
    assert text["cut"] is False
    live = here.state.live._recent[-1]
    live._characters = 200_000
    live.add(TokenEvent(0, (TextDelta("more"),)))
    assert here.get(f"/api/answers/{done['id']}").json() == {**text, "cut": True}
