"""Every way to draft over torch models, ours and transformers', on the same prompts: one table.

usage: python scripts/proposers.py MODEL --out FILE [--draft MODEL] [--heads FOLDER]…
       [--assistant MODEL] [--dtype float32] [--sessions N] [--max-tokens N] [--repeat N]
       python scripts/proposers.py --again FILE

MODEL is a catalog name, a GGUF file or a model folder, and so are --draft, our draft model, and
--assistant, that of transformers. With a folder as MODEL a GGUF file drafts by llama.cpp, else by
torch. Needs the torch extra; run it alone on the machine.

Each prompt is answered plainly and in every way, the order turned each time, after it was read
once. In ours the draft lengths are the controller's, and what it learned of a way is kept from
prompt to prompt; in transformers' they are the defaults of its `generate`, and its early exit
leaves behind the layer that was fastest on the first prompt. Its first step reads the prompt, so
neither that step's seconds nor its tokens count. --again prints the table of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from agentspec.api import Engine
from agentspec.backends.torch import TorchBackend, TorchSettings
from agentspec.bench.live import Run, Way, compare, median_interval, run_of, text_of
from agentspec.bench.sessions import BenchSession, packaged_sessions
from agentspec.config import load_settings
from agentspec.drafting import Drafting, Seat
from agentspec.loading import resolve
from agentspec.machine import describe

ALL = "all together"
UNTRAINED = "early exit, untrained"


@dataclass(slots=True)
class Spent:
    """What drafting cost in one way: seconds, and the tokens it gave."""

    seconds: float = 0.0
    drafted: int = 0

    @property
    def each(self) -> float | None:
        """Milliseconds per token; None where nothing was drafted."""
        return self.seconds / self.drafted * 1e3 if self.drafted else None


@dataclass(slots=True)
class Ours:
    """Answers of the engine with the proposers at these places; it learns as it goes."""

    engine: Engine
    places: Sequence[int]
    spent: Spent = field(default_factory=Spent)
    drafting: Drafting | None = None

    def ask(self, session: BenchSession, request: Mapping[str, Any]) -> Run:
        with self.engine.drafting_as(self._seat):
            told = self.engine.complete(session.messages, **request)
        stats = self.engine.last_stats
        assert stats is not None
        self.spent.seconds += stats.draft_seconds
        self.spent.drafted += stats.drafted
        written = self.engine.tokens[told.usage.prompt_tokens :]
        return run_of(stats, text_of(self.engine.target.tokenizer, written))

    def _seat(self, seat: Seat) -> Seat:
        assert isinstance(seat, Drafting)
        if self.drafting is None:
            proposers = seat.proposers()
            self.drafting = seat.only([proposers[place] for place in self.places])
        return self.drafting.back()


class Theirs:
    """Answers of transformers' `generate` on the same weights, as it loads them."""

    def __init__(self, engine: Engine, model: Any, **options: Any) -> None:
        self.engine, self.model, self.options = engine, model, options
        exit_layer = options.get("assistant_early_exit")
        self.options_told = f" behind layer {exit_layer}" if exit_layer else ""

    def ask(self, session: BenchSession, request: Mapping[str, Any]) -> Run:
        import torch
        from transformers import StoppingCriteria

        engine, forwards, steps = self.engine, Counted(self.model), []

        class Clock(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
                steps.append((time.perf_counter(), ids.shape[1], forwards.count))
                return torch.zeros(ids.shape[0], dtype=torch.bool)

        told = engine.complete(session.messages, **{**request, "max_tokens": 1})
        prompt = engine.tokens[: told.usage.prompt_tokens]
        eos = sorted(engine.target.tokenizer.eos_ids)
        begun = time.perf_counter()
        with forwards, torch.inference_mode():
            found = self.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=request["max_tokens"],
                eos_token_id=eos,
                pad_token_id=eos[0],
                stopping_criteria=[Clock()],
                **self.options,
            )
        (first, length, passes), (last, _, whole) = steps[0], steps[-1]
        tokens = found.shape[1] - length
        return Run(
            last - first,
            first - begun,
            tokens,
            whole - passes,
            0,
            tokens - (whole - passes),
            text_of(engine.target.tokenizer, found[0, len(prompt) :].tolist()),
        )


class Counted:
    """Counts the passes of a model over all its layers while it is open."""

    def __init__(self, model: Any) -> None:
        self.count, self._model = 0, model

    def __enter__(self) -> None:
        # an early exit of transformers shortens the config for a while and runs the same model
        layers = self._model.config.num_hidden_layers

        def seen(*_: Any) -> None:
            self.count += self._model.config.num_hidden_layers == layers

        self._hook = self._model.register_forward_pre_hook(seen)

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--again", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--assistant")
    parser.add_argument("--heads", action="append", default=[])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=1)
    told = parser.parse_args()
    if told.again is not None:
        print(table(json.loads(told.again.read_text())))
        return
    if told.model is None or told.out is None:
        parser.error("name a model and --out, or give --again")
    data = measured(told)
    told.out.write_text(json.dumps(data, indent=1) + "\n")
    print(table(data))


def measured(told: argparse.Namespace) -> dict[str, Any]:
    sessions = packaged_sessions()[: told.sessions]
    kind = "auto" if Path(told.model).is_dir() else "torch"
    settings: dict[str, Any] = {
        "backend": kind,
        "dtype": told.dtype,
        "device": "cpu",
        "max_sessions": 1,
    }
    with Engine.load(
        told.model, draft=told.draft or "none", heads=told.heads, early_exit="auto", **settings
    ) as engine:
        ways = ours(engine, told)
        others, held = theirs(engine, told, sessions[0])
        try:
            memory = weights(engine, told, held)
            reports = compare(
                engine,
                sessions,
                [
                    *(Way(name, ask=one.ask) for name, one in ways.items()),
                    *(Way(name, ask=one.ask) for name, one in others.items()),
                ],
                max_tokens=told.max_tokens,
                repeat=told.repeat,
                temperature=0.0,
                progress=lambda done, total: print(f"\r{done} of {total}", end="", flush=True),
            )
        finally:
            for backend in held:
                backend.close()
        print()
        return {
            "model": Path(told.model).name,
            "dtype": told.dtype,
            "max_tokens": told.max_tokens,
            "machine": {**describe(), "load": os.getloadavg()},
            "ways": [
                {
                    "name": name,
                    "ours": name in ways,
                    "settings": others[name].options_told if name in others else "",
                    "memory_mb": memory.get(name, 0.0),
                    "draft_ms": ways[name].spent.each if name in ways else None,
                    "failed": report.failed,
                    **report.as_dict(),
                }
                for name, report in reports.items()
            ],
        }


def ours(engine: Engine, told: argparse.Namespace) -> dict[str, Ours]:
    """The ways of the engine: each of its proposers alone, and all of them."""
    names = ["lookup", *(kind_of(Path(name)) for name in told.heads), UNTRAINED]
    names += ["draft model"] if told.draft else []
    ways = {name: Ours(engine, [place]) for place, name in enumerate(names)}
    return {**ways, ALL: Ours(engine, range(len(names)))}


def kind_of(path: Path) -> str:
    from agentspec.backends.torch_exit import is_exit_adapter
    from agentspec.backends.torch_heads import is_eagle, read_heads

    if is_eagle(path):
        return "EAGLE"
    return "early exit, trained" if is_exit_adapter(read_heads(path)) else "Medusa"


def theirs(
    engine: Engine, told: argparse.Namespace, first: BenchSession
) -> tuple[dict[str, Theirs], list[TorchBackend]]:
    """transformers' ways, and the models that they hold."""
    held = [plain_model(told.model, told.dtype)]
    model = held[0].inner
    ways = {
        "transformers generate": Theirs(engine, model),
        "transformers prompt lookup": Theirs(engine, model, prompt_lookup_num_tokens=10),
    }
    if told.assistant:
        held.append(plain_model(told.assistant, told.dtype))
        ways["transformers assisted"] = Theirs(engine, model, assistant_model=held[1].inner)
    layers = held[0].layers
    tried = [
        Theirs(engine, model, assistant_early_exit=layer)
        for layer in sorted({layers // 4, layers // 2, layers * 3 // 4})
    ]
    request: dict[str, Any] = {"max_tokens": min(8, told.max_tokens), "temperature": 0.0}
    if first.tools:
        request["tools"] = first.tools
    ways["transformers early exit"] = max(tried, key=lambda one: one.ask(first, request).speed)
    return ways, held


def plain_model(name: str, dtype: str) -> TorchBackend:
    """A model as transformers has it: plain weights, its own attention and cache."""
    settings = load_settings({"model": name})
    told: Any = {"device": "cpu", "dtype": dtype, "packed": False}
    backend = TorchBackend(resolve(settings).path, TorchSettings(**told))
    backend.inner.set_attn_implementation("sdpa")
    return backend


def weights(
    engine: Engine, told: argparse.Namespace, held: Sequence[TorchBackend]
) -> dict[str, float]:
    """Megabytes of weights that a way adds to the target's."""
    found = {kind_of(Path(name)): megabytes(Path(name)) for name in told.heads}
    if engine.draft is not None:
        inner = getattr(engine.draft, "inner", None)
        path: Path = engine.draft.path  # type: ignore[attr-defined]
        found["draft model"] = of_model(inner) if inner is not None else megabytes(path)
    found[ALL] = sum(found.values())
    if len(held) > 1:
        found["transformers assisted"] = of_model(held[1].inner)
    return found


def megabytes(path: Path) -> float:
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files) / 1e6


def of_model(model: Any) -> float:
    return float(sum(one.numel() * one.element_size() for one in model.parameters())) / 1e6


def table(data: Mapping[str, Any]) -> str:
    """Markdown: a row for each way, and all together against each of the others."""
    plain = median(run["seconds"] / run["passes"] for run in plain_runs(data)) * 1e3
    rows = [
        "| way | acceptance length | draft cost, ms a token | weights, MB | tok/s | against plain |"
        " text as plain |",
        "|---|---|---|---|---|---|---|",
        f"| plain | 1.00 | – | – | {speed(plain_runs(data)):.1f} | 1.00 | – |",
    ]
    by_name = {way["name"]: way for way in data["ways"]}
    for way in data["ways"]:
        if way["failed"]:
            rows.append(f"| {way['name']} | failed: {way['failed']} | | | | | |")
            continue
        low, high = way["interval"]
        runs = [run for session in way["sessions"] for run in session["fast"]]
        same = sum(
            {run["text"] for run in session["fast"]} == {run["text"] for run in session["plain"]}
            for session in way["sessions"]
        )
        cost = f"{way['draft_ms']:.1f}" if way["draft_ms"] is not None else "–"
        rows.append(
            f"| {way['name']}{way['settings']} | {way['acceptance_length']:.2f} | {cost} | "
            f"{way['memory_mb']:.0f} | {speed(runs):.1f} | {way['ratio']:.2f} "
            f"({low:.2f}–{high:.2f}) | {same} of {len(way['sessions'])} |"
        )
    rows += ["", f"A plain pass takes {plain:.0f} ms (median).", ""]
    rows += [f"{ALL} against | speed, median (95 % interval over prompts) |", "|---|---|"]
    rows[-2] = f"| {rows[-2]}"
    best = by_name[ALL]
    for way in data["ways"]:
        if way is best or way["failed"]:
            continue
        ratios = [
            median(ours["speed"] for ours in one) / median(other["speed"] for other in two)
            for one, two in zip(fast(best), fast(way), strict=True)
        ]
        low, high = median_interval(ratios)
        rows.append(f"| {way['name']} | {median(ratios):.2f} ({low:.2f}–{high:.2f}) |")
    return "\n".join(rows)


def fast(way: Mapping[str, Any]) -> list[list[dict[str, float]]]:
    return [
        [{"speed": run["tokens"] / run["seconds"]} for run in session["fast"]]
        for session in way["sessions"]
    ]


def plain_runs(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    first = next(way for way in data["ways"] if not way["failed"])
    return [run for session in first["sessions"] for run in session["plain"]]


def speed(runs: Sequence[Mapping[str, Any]]) -> float:
    """The median over answers, in tokens per second."""
    return float(median(run["tokens"] / run["seconds"] for run in runs))


if __name__ == "__main__":
    main()
