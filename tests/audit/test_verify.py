"""Equal, tie or defect: a sound engine has no defect, and every planted one is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentspec.audit.record import Pass, Turn
from agentspec.audit.verify import compare, verify
from agentspec.backends.base import Rollback, Rows
from agentspec.control.cost import CostCurve
from agentspec.control.rows import RowClass
from agentspec.engine.verify import judge
from agentspec.errors import ContextOverflowError
from agentspec.testing.scripted import ScriptedProposer

PROMPTS: Any = [
    ([{"role": "user", "content": f"prompt {n}: write something, please"}], []) for n in range(5)
]


def run(load: Any, **options: Any) -> Any:
    return verify(load, PROMPTS, max_tokens=options.pop("max_tokens", 40), **options)


@pytest.mark.parametrize("rollback", list(Rollback))
def test_a_sound_engine_has_no_defect(loader: Any, rollback: Rollback) -> None:
    steps: list[str] = []
    report = run(loader(rollback=rollback), progress=steps.append)
    assert [c.verdict for c in report.comparisons] == ["equal"] * 5
    assert (report.defects, report.ties) == (0, 0)
    assert report.tokens == sum(c.plain_tokens for c in report.comparisons) > 100
    assert report.replayed.rows > report.tokens * 0.9
    assert report.replayed.replaced > 20
    assert (report.replayed.poisoned > 100) == (rollback is not Rollback.NONE)
    assert steps == ["plain", "accelerated", "replay"]
    data = report.as_dict()
    assert (data["tokens"], data["ties"], data["defects"]) == (report.tokens, 0, 0)


def test_a_cache_cut_too_much_is_put_right_by_the_engine(loader: Any, planted: Any) -> None:
    report = run(loader(planted["CutsTooMuch"]))
    assert [c.at for c in report.comparisons] == [None] * 5  # the text is right all the same


@pytest.mark.parametrize("kind", ["CutsTooLittle", "CutsTooMuch", "KeepsRejected", "DropsToken"])
def test_planted_corruption_is_a_defect(loader: Any, planted: Any, kind: str) -> None:
    report = run(loader(planted[kind]))
    assert report.replayed.defects
    assert report.defects > 0
    assert report.ties == 0
    assert "defect" in {c.verdict for c in report.comparisons}


def test_a_token_that_the_target_did_not_choose_is_a_defect(
    loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row is sound and still the text is not the target's."""

    def credulous(draft: Any, output: Any, sampler: Any, position: int) -> Iterator[Any]:
        if not draft.tokens:
            yield from judge(draft, output, sampler, position)
            return
        for node, token in enumerate(draft.tokens):
            sampler.commit(token)
            yield token, node

    monkeypatch.setattr("agentspec.engine.decode.judge", credulous)
    report = run(loader())
    assert report.replayed.sound
    assert report.defects > 0
    assert report.ties == 0


def test_rounding_by_row_count_is_a_tie(loader: Any, planted: Any) -> None:
    report = run(loader(planted["Rounding"]))
    assert report.ties > 0
    assert report.defects == 0
    tied = [c for c in report.comparisons if c.verdict == "tie"]
    for comparison in tied:
        assert comparison.at is not None
        assert comparison.gap is not None
        assert 0 <= comparison.gap < 4 * planted["Rounding"].noise


@pytest.mark.parametrize("sizes", [(1, 2, 4), (2, 4), (3, 5, 6, 7)])
@pytest.mark.parametrize("n_ctx", [1 << 20, 120])
def test_exact_mode_equals_plain_for_every_token(
    loader: Any, planted: Any, sizes: tuple[int, ...], n_ctx: int
) -> None:
    options = {"rows": RowClass(sizes), "exact": True, "n_ctx": n_ctx}
    report = run(loader(planted["Rounding"], **options), max_tokens=120)
    assert [c.verdict for c in report.comparisons] == ["equal"] * 5
    assert (report.exact, report.rows, report.defects) == (True, sizes, 0)
    assert report.tokens > 150


def test_exact_mode_outside_its_class_is_a_defect(loader: Any, planted: Any) -> None:
    report = run(loader(planted["Rounding"], rows=RowClass((1, 2, 3)), exact=True))
    assert report.replayed.sound
    assert report.ties == 0
    assert report.defects > 0


def test_errors_of_the_engine_come_through(loader: Any) -> None:
    with pytest.raises(ContextOverflowError):
        run(loader(n_ctx=20))


def turn(answer: Sequence[int]) -> Turn:
    rows = tuple(answer)
    event = Pass(2, (9, *rows[:-1]), 0, (b"",) * len(rows), rows, (0.5,) * len(rows))
    return Turn([7, 8, 9, *answer], 3, [event])


@pytest.mark.parametrize(
    ("plain", "fast", "sound", "exact", "verdict", "at"),
    [
        ([1, 2], [1, 2], True, False, "equal", None),
        ([1, 2], [1, 2], False, False, "defect", None),
        ([1, 2], [1, 3], True, False, "tie", 1),
        ([1, 2], [1, 3], True, True, "defect", 1),
        ([1, 2], [1, 3], False, False, "defect", 1),
        # the same tokens and only one goes on: no rounding does that
        ([1, 2], [1, 2, 3], True, False, "defect", 2),
        ([1, 2, 3], [1, 2], True, False, "defect", 2),
    ],
)
def test_compare(
    plain: list[int], fast: list[int], sound: bool, exact: bool, verdict: str, at: int | None
) -> None:
    result = compare(turn(plain), turn(fast), sound=sound, exact=exact)
    assert (result.verdict, result.at) == (verdict, at)
    assert (result.plain_tokens, result.tokens) == (len(plain), len(fast))
    assert (result.gap == 0.5) == (at is not None)


def test_strayed() -> None:
    good = turn([1, 2, 3])
    assert good.strayed() is None
    good.tokens[4] = 5
    assert good.strayed() == 4
    assert Turn([1, 2, 3], 2, []).strayed() == 2


# -- real kernels ----------------------------------------------------------------------------------


def real_load(
    path: Path, *, corrupt: bool, n_threads: int = 2
) -> Callable[[Callable[[Any], Any]], Any]:
    from agentspec.api import Engine
    from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings
    from agentspec.chat.template import load_template

    class Corrupt(LlamaCppBackend):
        """Puts another token where the last kept one was."""

        def rollback(self, seq: int, length: int) -> None:
            if corrupt and 1 < length < self.length(seq):
                super().rollback(seq, length - 1)
                self.forward([Rows(seq, [65], logits_from=1)])
            else:
                super().rollback(seq, length)

    def load(wrap: Callable[[Any], Any]) -> Any:
        settings = LlamaSettings(n_ctx=1024, n_threads=n_threads, n_gpu_layers=0)
        backend = Corrupt(path, settings)
        template = load_template(None, bos="", eos="", template="chatml")
        nearly_free = CostCurve.from_points({1: 1.0, 64: 1.01})
        engine = Engine(wrap(backend), template=template, chunk=32, cost=nearly_free)
        drafts = ScriptedProposer(lambda tokens, most: [tokens[-1], 66, 67][:most])
        engine._proposers = lambda request, seat: (  # type: ignore[method-assign]
            [*Engine._proposers(engine, request, seat), drafts]
            if request.speculation.enabled
            else []
        )
        return engine

    return load


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from agentspec.testing.gguf import write_tiny

    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "dense", vocab="bytes")


def test_a_tiny_model_is_sound_and_its_planted_corruption_is_seen(tiny: Path) -> None:
    sound = run(real_load(tiny, corrupt=False, n_threads=1))
    assert sound.defects == 0
    assert sound.replayed.replaced > 20
    corrupt = run(real_load(tiny, corrupt=True, n_threads=1))
    assert corrupt.defects > 0
    assert corrupt.ties == 0


@pytest.mark.weights
def test_smollm2_is_sound_and_its_planted_corruption_is_seen(
    weights: Callable[[str], Path],
) -> None:
    path = weights("smollm2-135m")
    prompts = PROMPTS[:3]
    sound = verify(real_load(path, corrupt=False), prompts, max_tokens=40)
    assert sound.defects == 0
    assert sound.replayed.replaced > 50
    corrupt = verify(real_load(path, corrupt=True), prompts, max_tokens=40)
    assert corrupt.defects > 0
    assert corrupt.ties == 0


@pytest.mark.weights
def test_smollm2_in_exact_mode(
    weights: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import agentspec.audit.store as store
    from agentspec.loading import load_engine

    monkeypatch.setattr(store, "_default_folder", lambda: tmp_path)
    path = weights("smollm2-135m")

    def load(wrap: Callable[[Any], Any]) -> Any:
        return load_engine(path, wrap=wrap, exact=True, n_ctx=2048, n_threads=2, n_gpu_layers=0)

    text = "Repeat exactly, three times: for i in range(10): print(i, i * i)"
    prompts: Any = [([{"role": "user", "content": text}], []), *PROMPTS[:1]]
    report = verify(load, prompts, max_tokens=60)
    assert report.exact
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert [c.verdict for c in report.comparisons] == ["equal", "equal"]
    assert report.defects == 0
