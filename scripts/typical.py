"""Exact against typical acceptance of the same heads' drafts: tokens per pass, and what it costs.

usage: python scripts/typical.py MODEL --heads FILE --out FILE [--temperature 0.7] [--k 16]
       [--sessions 10] [--max-tokens 48] [--seeds 2] [--dtype float32]
       python scripts/typical.py --again FILE

MODEL is a catalog name, a GGUF file or a model folder, FILE Medusa heads of it. Needs the torch
extra. Each packaged prompt is answered with each seed under both rules. Nothing but the heads
drafts, in every pass a tree or chain of at most K tokens, whatever passes cost here: so the
figures are of the rules and not of the machine. What typical acceptance costs is told by how
likely the model finds its own text: the mean log-probability of a token, at temperature 1.
--again prints the table of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentspec.api import Engine
from agentspec.bench.live import median_interval
from agentspec.bench.sessions import packaged_sessions
from agentspec.control.controller import Controller, FixedController
from agentspec.drafting import Seat
from agentspec.machine import describe
from agentspec.propose.medusa import Medusa
from agentspec.types import Proposer


@dataclass(frozen=True, slots=True)
class HeadsAlone:
    """A seat whose heads draft in every pass, at most k tokens, and nobody else."""

    seat: Seat
    most: int

    def proposers(self, *, lookup: bool = True, draft_model: bool = True) -> list[Proposer]:
        found = [one for one in self.seat.proposers() if isinstance(one, Medusa)]
        for one in found:
            one.plan = None  # else it drafts as far as that pays on this device
        return [*found]

    def controller(self, proposers: Sequence[Proposer] = (), k: int | None = None) -> Controller:
        return FixedController(self.most, match_factor=0.0)

    def prompt_read(self, seconds: float) -> None:
        return None

    def warnings(self) -> list[str]:
        return []

    def drop_draft(self) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--again", type=Path)
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    told = parser.parse_args()
    if told.again is not None:
        print(table(json.loads(told.again.read_text())))
        return
    if told.model is None or told.heads is None or told.out is None:
        parser.error("name a model, --heads and --out, or give --again")
    data = measured(told)
    told.out.write_text(json.dumps(data, indent=1) + "\n")
    print(table(data))


def measured(told: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "backend": "auto" if Path(told.model).is_dir() else "torch",
        "dtype": told.dtype,
        "device": "cpu",
        "max_sessions": 1,
        "draft": "none",
        "heads": [told.heads],
    }
    rules: dict[str, list[dict[str, Any]]] = {}
    for rule, lossy in (("exact", None), ("typical", "typical")):
        with Engine.load(told.model, lossy=lossy, **settings) as engine:
            rules[rule] = answers(engine, told)
        assert {one["lossy"] for one in rules[rule]} == {lossy}
    return {
        "model": Path(told.model).name,
        "dtype": told.dtype,
        "temperature": told.temperature,
        "k": told.k,
        "max_tokens": told.max_tokens,
        "machine": describe(),
        "rules": rules,
    }


def answers(engine: Engine, told: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry for each prompt and seed."""
    found: list[dict[str, Any]] = []
    with engine.drafting_as(lambda seat: HeadsAlone(seat, told.k)):
        for session in packaged_sessions()[: told.sessions]:
            for seed in range(told.seeds):
                answer = engine.complete(
                    session.messages,
                    tools=session.tools or None,
                    temperature=told.temperature,
                    seed=seed,
                    max_tokens=told.max_tokens,
                    logprobs=True,
                )
                logprobs = answer.choices[0].logprobs
                assert logprobs is not None
                chances = [one.logprob for one in logprobs.content or []]
                stats = engine.last_stats
                assert stats is not None
                print(f"{session.id}, seed {seed}: {stats.acceptance_length:.2f}", flush=True)
                found.append(
                    {
                        "prompt": session.id,
                        "seed": seed,
                        "tokens": stats.tokens,
                        "passes": stats.passes,
                        "drafted": stats.drafted,
                        "accepted": stats.accepted,
                        "lossy": stats.lossy,
                        "logprob": fmean(chances),
                    }
                )
    return found


def table(data: Mapping[str, Any]) -> str:
    """Markdown: a row for each rule, and the ratio over prompts."""
    rows = [
        "| acceptance | acceptance length | mean log-probability of a token | perplexity |",
        "|---|---|---|---|",
    ]
    for rule, found in data["rules"].items():
        tokens = sum(one["tokens"] for one in found)
        chance = sum(one["logprob"] * one["tokens"] for one in found) / tokens
        rows.append(
            f"| {rule} | {tokens / sum(one['passes'] for one in found):.2f} | {chance:.2f} | "
            f"{math.exp(-chance):.2f} |"
        )
    exact, typical = by_prompt(data["rules"]["exact"]), by_prompt(data["rules"]["typical"])
    ratios = [typical[prompt] / exact[prompt] for prompt in exact]
    low, high = median_interval(ratios)
    return "\n".join(
        [
            *rows,
            "",
            f"Typical against exact, acceptance length: {median(ratios):.2f} "
            f"({low:.2f}–{high:.2f}), median over {len(ratios)} prompts, 95 % interval.",
        ]
    )


def by_prompt(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The acceptance length of each prompt, over its seeds."""
    prompts = dict.fromkeys(one["prompt"] for one in found)
    return {
        prompt: sum(one["tokens"] for one in found if one["prompt"] == prompt)
        / sum(one["passes"] for one in found if one["prompt"] == prompt)
        for prompt in prompts
    }


if __name__ == "__main__":
    main()
