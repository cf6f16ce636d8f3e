"""What speculation did, from what each kind of server tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentspec.aio import Stop
from agentspec.api import Engine
from agentspec.assistant.http_model import HttpModel
from agentspec.assistant.model import Finished
from agentspec.remote.counters import Counters, counters_of
from agentspec.remote.engine import RemoteEngine
from agentspec.wire import SpeculationStats
from tests.remote.conftest import STOP, Fake, delta
from tests.server.conftest import HI, Running, serve

__all__ = ["serve"]

Remote = Callable[..., RemoteEngine]
USAGE = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}
VLLM = {
    "mean_acceptance_length": 3.0,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 0, 1, 1, 0, 0],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 5,
    "num_draft_tokens": 10,
    "num_spec_tokens": 5,
}


def asked(fake: Fake, remote: Remote, **last: Any) -> SpeculationStats:
    fake.say(delta(content="hi"), STOP, {"choices": [], "usage": USAGE, **last})
    found = remote().complete(HI).speculation
    assert found is not None
    return found


def metrics(
    drafts: int,
    drafted: int,
    accepted: int,
    generated: int,
    per_pos: dict[int, int],
    *,
    timed: tuple[int, int] | None = None,
    steps: int | None = None,
) -> str:
    """The counters; `timed` are how many first tokens and later passes were timed."""
    label = 'engine="0",model_name="m"'
    names = ("time_to_first_token", "inter_token_latency")
    rows = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}.0",
        f"vllm:spec_decode_num_drafts_created{{{label}}} 1.7e+09",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {drafted}.0",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {accepted}.0",
        f"vllm:generation_tokens_total{{{label}}} {generated}.0",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{j}"}} {n}.0'
            for j, n in per_pos.items()
        ),
        'vllm:request_success_total{engine="0",model_name="other {x}"} NaN',
        'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 7.5e-05',
        f"vllm:kv_cache_usage_perc{{{label}}} -0.0 1700000000000",
        *(
            f"vllm:{name}_seconds_{what}{{{label}}} {n}.0"
            for name, n in zip(names, timed or (), strict=False)
            for what in ("count", "created")
        ),
        *([] if steps is None else [f"vllm:iteration_tokens_total_count{{{label}}} {steps}.0"]),
    ]
    return "\n".join(rows) + "\n"


def test_of_our_own_server(chat: Any, serve: Callable[..., Running]) -> None:
    text = "Nothing in this line stands there twice, but for letters."
    server = serve(chat.engine(chat.writing(text)))
    with Engine.remote(server.url + "/v1") as engine:
        found = engine.complete(HI, prediction={"type": "content", "content": text})
        assert engine.kind == "agentspec"
    assert found.speculation is not None
    stats = server.engine.last_stats
    assert (found.speculation.passes, found.speculation.accepted) == (stats.passes, stats.accepted)
    assert found.speculation.sources["predicted"].accepted > 0
    assert found.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_of_vllm_with_metrics_of_the_request(fake: Fake, remote: Remote) -> None:
    found = asked(fake, remote, metrics={"speculative_decoding": VLLM, "mean_itl_ms": None})
    assert (found.drafted, found.accepted, found.acceptance_rate) == (10, 5, 0.5)
    assert found.accepted_per_position == [2, 2, 1]
    assert (found.passes, found.acceptance_length) == (5, 2.0)
    assert (found.prompt_tokens, found.generated_tokens) == (30, 10)
    assert found.sources["server"].accepted == 5
    assert "measured here" in " ".join(found.notes)
    found = asked(
        fake,
        remote,
        metrics={
            "time_to_first_token_ms": 250.0,
            "queue_time_ms": 50.0,
            "generation_time_ms": 1000.0,
            "tokens_per_second": 10.0,
            "speculative_decoding": None,
        },
    )
    assert (found.prefill_seconds, found.tokens_per_second, found.drafted) == (0.2, 10.0, 0)
    assert "measured" not in " ".join(found.notes)


def llama(**timings: Any) -> dict[str, Any]:
    """The last event of an answer of llama-server, as it was seen."""
    usage = {
        "completion_tokens": 46,
        "prompt_tokens": 80,
        "total_tokens": 126,
        "prompt_tokens_details": {"cached_tokens": 24},
    }
    times = {
        "cache_n": 24,
        "prompt_n": 56,
        "prompt_ms": 28840.5,
        "prompt_per_token_ms": 515.0089,
        "prompt_per_second": 1.9417,
        "predicted_n": 46,
        "predicted_ms": 1800.0,
        "predicted_per_token_ms": 40.0,
        "predicted_per_second": 25.0,
    }
    return {
        "choices": [],
        "created": 1796048134,
        "id": "chatcmpl-7boyYq140rNkFITtOVIyh7L4h9cKiFqJ",
        "model": "/models/m.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
        "usage": usage,
        "timings": {**times, **timings},
    }


def test_of_llama_server(fake: Fake, remote: Remote) -> None:
    fake.models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    fake.say(
        delta(role="assistant", content=None),
        timed("a", 1),
        timed("b", 25, 19, 11),
        timed("c", 34, 67, 19),
        timed("d", 35, 67, 30),
        timed("e", 46, 67, 30),
        STOP,
        llama(draft_n=67, draft_n_accepted=30),
    )
    found = remote().complete(HI).speculation
    assert fake.bodies[0]["timings_per_token"] is True
    assert found is not None
    assert (found.drafted, found.accepted, found.passes) == (67, 30, 16)
    assert (found.cached_tokens, found.prefill_seconds) == (24, 28.8405)
    assert (found.tokens_per_second, found.acceptance_length) == (25.0, 46 / 16)
    assert not found.notes
    assert "/metrics" not in fake.paths


def timed(text: str, written: int, drafted: int = 0, accepted: int = 0) -> dict[str, Any]:
    """An event of llama-server that was asked for its timings with each token."""
    times = llama(predicted_n=written)["timings"]
    if drafted:
        times |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return {**delta(content=text), "timings": times}


@pytest.mark.parametrize(
    ("trail", "passes", "note"),
    [
        # seen: 21 tokens and 16 accepted ones, of which 10 lay behind the stop text; 15 passes
        ([(1, 0), (14, 0), (15, 16), (20, 16)], 15, ""),
        # the text of the draft's first tokens was held back: they may be of a pass before
        ([(1, 0), (14, 0), (18, 16)], 5, "passes are 5 to 18"),
        # an older one says it once
        ([], 5, "passes are 5 to 21"),
    ],
)
def test_accepted_tokens_behind_the_end_took_no_pass(
    fake: Fake, remote: Remote, trail: list[tuple[int, int]], passes: int, note: str
) -> None:
    fake.models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    events = [timed("a", written, 53, accepted) for written, accepted in trail]
    last = llama(predicted_n=21, draft_n=53, draft_n_accepted=16)
    fake.say(*events, STOP, last)
    found = remote().complete(HI).speculation
    assert found is not None
    assert (found.passes, found.accepted) == (passes, 16)
    assert note in " ".join(found.notes)
    assert ("passes" in " ".join(found.notes)) == bool(note)


def test_of_llama_server_without_drafts(fake: Fake, remote: Remote) -> None:
    fake.models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    fake.say(delta(content="hi"), STOP, llama())
    found = remote().complete(HI).speculation
    assert found is not None
    assert (found.drafted, found.passes, found.acceptance_length) == (0, 46, 1.0)
    assert not found.notes


def test_of_openai(fake: Fake, remote: Remote) -> None:
    fake.models = {"data": [{"id": "m", "owned_by": "system"}]}
    usage = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 6,
            "rejected_prediction_tokens": 2,
        },
    }
    found = asked(fake, remote, usage=usage)
    assert (found.drafted, found.accepted, found.cached_tokens) == (8, 6, 16)
    assert found.sources["predicted"].drafted == 8
    # what was rejected is counted as generated there
    assert (found.passes, found.acceptance_length) == (0, 0.0)
    assert "passes are not known" in " ".join(found.notes)
    assert fake.paths == ["/v1/models", "/v1/chat/completions"]


def test_of_the_counters_of_vllm(fake: Fake, remote: Remote) -> None:
    fake.metrics = [
        metrics(100, 500, 300, 1000, {0: 80, 1: 70, 2: 3}),
        metrics(103, 510, 305, 1010, {0: 82, 1: 72, 2: 4}),
    ]
    found = asked(fake, remote)
    assert (found.drafted, found.accepted, found.acceptance_rate) == (10, 5, 0.5)
    assert (found.accepted_per_position, found.passes) == ([2, 2, 1], 5)
    assert "wrong where others used it" in " ".join(found.notes)
    assert fake.paths.count("/metrics") == 2


EIGHT = dict.fromkeys(range(8), 0)


def test_passes_are_those_that_the_server_timed(fake: Fake, remote: Remote) -> None:
    # two passes of which the last accepted 8 tokens, 7 of them behind the end
    fake.metrics = [
        metrics(5, 40, 20, 100, EIGHT, timed=(3, 50)),
        metrics(7, 56, 32, 110, {**EIGHT, 0: 2, 1: 2, 2: 2, 3: 2}, timed=(4, 53)),
    ]
    found = asked(fake, remote)
    assert (found.passes, found.acceptance_length, found.accepted) == (4, 2.5, 12)
    assert "passes" not in " ".join(found.notes)


def test_passes_that_were_not_timed_are_bounded(fake: Fake, remote: Remote) -> None:
    # 10 tokens - 12 accepted ones; one pass gives no more than 4 + 1, and the first had no draft
    after = {**EIGHT, 0: 3, 1: 3, 2: 3, 3: 3}
    fake.metrics = [metrics(5, 40, 20, 100, EIGHT), metrics(8, 56, 32, 110, after)]
    found = asked(fake, remote)
    assert found.passes == 0  # 12 accepted, and no more than 4 of them behind the end
    assert "counts do not fit" in found.notes[-2]
    fake.metrics = [metrics(5, 40, 20, 100, EIGHT), metrics(7, 56, 28, 110, {**EIGHT, 0: 2, 7: 1})]
    found = asked(fake, remote)
    assert (found.passes, found.acceptance_length) == (3, 10 / 3)
    assert "passes are 3 to 10" in found.notes[-2]


@pytest.mark.parametrize(
    ("passes", "steps", "others", "own"),
    [
        ((1, 3), 4, 4, True),
        ((1, 3), 4, 9, False),  # more than a pass can accept
        ((1, 7), 4, 4, False),  # passes were shared
        ((2, 3), 5, 4, False),  # another one began
        ((1, 3), None, 4, False),
    ],
)
def test_tokens_behind_a_stop_text_are_nobody_elses(
    fake: Fake,
    remote: Remote,
    passes: tuple[int, int],
    steps: int | None,
    others: int,
    own: bool,
) -> None:
    start = None if steps is None else 7
    fake.metrics = [
        metrics(0, 0, 0, 50, EIGHT, timed=(1, 1), steps=start),
        metrics(
            1,
            8,
            8,
            60 + others,
            dict.fromkeys(range(8), 1),
            timed=(1 + passes[0], 1 + passes[1]),
            steps=None if steps is None else 7 + steps,
        ),
    ]
    found = asked(fake, remote)
    assert (found.drafted, found.passes) == ((8, 4) if own else (0, 0))
    assert ("other requests" in " ".join(found.notes)) != own


def test_passes_without_a_draft_are_counted_too(fake: Fake, remote: Remote) -> None:
    fake.metrics = [
        metrics(0, 0, 0, 0, EIGHT, timed=(0, 0)),
        metrics(0, 0, 0, 10, EIGHT, timed=(1, 9)),
    ]
    found = asked(fake, remote)
    assert (found.passes, found.drafted, found.acceptance_length) == (10, 0, 1.0)


@pytest.mark.parametrize("timed", [None, (1, 7)])
def test_no_more_tokens_a_pass_than_a_draft_and_one(
    fake: Fake, remote: Remote, timed: tuple[int, int] | None
) -> None:
    # seen of vLLM: 64 tokens - 58 accepted ones are 6 passes, 10.7 tokens each where 9 are possible
    full = dict.fromkeys(range(8), 7)
    fake.metrics = [
        metrics(0, 0, 0, 0, EIGHT, timed=timed and (0, 0)),
        metrics(7, 58, 58, 64, {**full, 0: 9}, timed=timed),
    ]
    fake.say(
        delta(content="hi"), STOP, {"choices": [], "usage": {**USAGE, "completion_tokens": 64}}
    )
    found = remote().complete(HI).speculation
    assert found is not None
    assert (found.passes, found.acceptance_length) == (8, 8.0)
    assert ("passes are 8 to 14" in " ".join(found.notes)) == (timed is None)


@pytest.mark.parametrize(
    ("histogram", "steps", "passes", "note"),
    [
        # the end may lie in any of them: 10 tokens, 7 accepted, at most 4 of them behind it
        ([1, 0, 0, 1, 1], 3, 4, "passes are 4 to 7"),
        # no pass accepted anything: nothing can lie behind the end
        ([3, 0, 0, 0, 0], 3, 10, ""),
        # counts of another answer
        ([0, 0, 0, 0, 9], 9, 0, "do not fit"),
    ],
)
def test_passes_of_vllm_with_metrics_of_the_request(
    fake: Fake, remote: Remote, histogram: list[int], steps: int, passes: int, note: str
) -> None:
    accepted = sum(n * count for n, count in enumerate(histogram))
    found = asked(
        fake,
        remote,
        metrics={
            "speculative_decoding": {
                "acceptance_histogram": histogram,
                "num_spec_steps": steps,
                "num_accepted_draft_tokens": accepted,
                "num_draft_tokens": 4 * steps,
            }
        },
    )
    assert (found.passes, found.accepted) == (passes, accepted)
    assert note in " ".join(found.notes)
    assert ("passes" in " ".join(found.notes)) == bool(note)


def test_counters_that_hold_less_than_the_answer(fake: Fake, remote: Remote) -> None:
    fake.metrics = [metrics(0, 0, 0, 0, {}), metrics(1, 5, 3, 7, {})]
    found = asked(fake, remote)
    assert (found.passes, found.drafted) == (0, 0)
    assert "had not counted all of it" in found.notes[-1]


@pytest.mark.parametrize(
    "last",
    [
        {"timings": {"predicted_n": 10, "draft_n": 5, "draft_n_accepted": 9}},
        {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 5}}},
        {"speculation": {"drafted": 1, "accepted": 5, "acceptance_rate": 5.0}},
    ],
)
def test_more_accepted_than_drafted_cannot_be(fake: Fake, remote: Remote, last: Any) -> None:
    found = asked(fake, remote, **last)
    assert (found.drafted, found.acceptance_rate, found.acceptance_length) == (0, 0.0, 0.0)


def test_the_assistants_model_reads_the_same(fake: Fake) -> None:
    fake.metrics = [metrics(0, 0, 0, 0, {}), metrics(3, 10, 5, 10, {0: 2})]
    fake.say(delta(content="hi"), STOP, {"choices": [], "usage": USAGE})
    *_, last = HttpModel(fake.url).answer(HI, [], stop=Stop())
    assert isinstance(last, Finished)
    assert last.speculation is not None
    assert (last.speculation.accepted, last.speculation.passes) == (5, 5)


def test_counters_that_others_moved_too_are_nobodys(fake: Fake, remote: Remote) -> None:
    fake.metrics = [metrics(1, 5, 3, 100, {}), metrics(9, 25, 13, 190, {})]
    found = asked(fake, remote)
    assert (found.drafted, found.sources) == (0, {})
    assert "accepted 10 of 20 draft tokens meanwhile, for 80 tokens of other" in found.notes[-1]


def test_a_server_that_was_started_again(fake: Fake, remote: Remote) -> None:
    fake.metrics = [metrics(9, 25, 13, 190, {}), metrics(1, 5, 3, 100, {})]
    found = asked(fake, remote)
    assert (found.drafted, "started again" in found.notes[-1]) == (0, True)


def test_the_last_pass_may_be_counted_late(fake: Fake, remote: Remote) -> None:
    fake.metrics = [
        metrics(0, 0, 0, 0, {}),
        metrics(1, 5, 3, 7, {}),
        metrics(2, 10, 5, 10, {}),
    ]
    assert asked(fake, remote).accepted == 5


def test_a_server_that_does_not_say(fake: Fake, remote: Remote) -> None:
    assert "is not known" in asked(fake, remote).notes[-1]
    fake.models = {"data": [{"id": "m", "owned_by": "library"}]}
    assert "is not known" in asked(fake, remote).notes[-1]
    fake.models = None
    fake.metrics = [metrics(0, 0, 0, 0, {}), "nothing"]
    assert "is not known" in asked(fake, remote).notes[-1]


def test_counters_are_not_asked_for_where_they_say_nothing(fake: Fake, remote: Remote) -> None:
    engine = remote()
    fake.metrics = ["vllm:generation_tokens_total 5\n"]
    for _ in range(3):
        found = engine.complete(HI).speculation
        assert found is not None
        assert "is not known" not in " ".join(found.notes)
    assert fake.paths.count("/metrics") == 1
    fake.paths.clear()
    fake.metrics = [metrics(0, 0, 0, 0, {})]
    fake.say(delta(content="hi"), STOP, {"metrics": {"speculative_decoding": VLLM}})
    engine = remote()
    for _ in range(3):
        engine.complete(HI)
    assert fake.paths.count("/metrics") == 1
    fake.paths.clear()
    remote(metrics=False).complete(HI)
    assert "/metrics" not in fake.paths


def test_counters_of_engines_that_share_the_work_are_added_up() -> None:
    one = metrics(1, 5, 3, 7, {0: 2})
    two = one.replace('engine="0"', 'engine="1"')
    other = one.replace('"m"', '"x"')
    assert counters_of(one + two + other, "m") == Counters(10, 6, 14, {0: 4}, 2)
    assert counters_of("", "m") is None
    assert counters_of("vllm:spec_decode_num_draft_tokens_total NaN", "m") is None
    assert counters_of("vllm:spec_decode_num_draft_tokens 5", "m") == Counters(5)


@pytest.mark.parametrize(
    "last",
    [
        {"metrics": {"speculative_decoding": {"num_draft_tokens": -5}}},
        {"metrics": {"speculative_decoding": {"acceptance_histogram": ["x"]}}},
        {"metrics": []},
        {"timings": {"draft_n": 10**400}},
        {"timings": {"predicted_per_second": float("inf")}},
        {"speculation": {"passes": "many"}},
        {"usage": {"prompt_tokens": "x"}},
        {"usage": None},
    ],
)
def test_numbers_that_cannot_be_are_left_out(fake: Fake, remote: Remote, last: Any) -> None:
    found = asked(fake, remote, **last)
    assert (found.passes, found.drafted) == (0, 0)


def test_usage_with_nulls_counts(fake: Fake, remote: Remote) -> None:
    found = asked(
        fake,
        remote,
        usage={**USAGE, "prompt_tokens_details": None, "completion_tokens_details": {"x": None}},
    )
    assert (found.prompt_tokens, found.generated_tokens) == (30, 10)
