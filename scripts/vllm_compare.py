"""Runs prompts through vLLM plain, with its own n-gram drafts and with ours, and prints a table.

usage: python scripts/vllm_compare.py MODEL [--rounds N] [--tokens N] [--k N] [--out FILE]

MODEL is a folder (`scripts/smollm2_safetensors.py` makes one). Needs an environment with vLLM and
agentspec (`make test-vllm` makes one). Each way is a process of its own with a model of its own;
the ways take turns, prompt by prompt, and the first round is not counted. Prefix caching is off, so
that every answer costs its prompt. All is greedy, one request at a time, then all at once.

A cell is tokens per second, milliseconds of processor time per token (medians over the rounds),
and tokens per target pass, of all requests together. Where others use the cores, the processor time
is what can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUSTOM = "agentspec.adapters.vllm_proposer.AgentSpecProposer"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_WAIT_POLICY": "passive",
}
"""What vLLM is run with on a CPU."""
TOGETHER = "all six at once"


def ways(k: int) -> dict[str, dict[str, Any] | None]:
    """Names of the ways and what vLLM is told of speculation."""
    ngram = {"method": "ngram", "num_speculative_tokens": k}
    return {
        "plain": None,
        "ngram (its default, n = 5)": ngram,
        "ngram (n = 2 to 5)": {**ngram, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
        "agentspec": {"method": "custom_class", "model": CUSTOM, "num_speculative_tokens": k},
    }


class Worker:
    """A vLLM in a process of its own."""

    def __init__(self, model: str, speculation: dict[str, Any] | None, log: Path) -> None:
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--worker", model, json.dumps(speculation)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            )
        self._log = log

    def ask(self, prompts: list[str], tokens: int, *, logprobs: bool = False) -> dict[str, Any]:
        """The texts as tokens, the seconds and processor seconds, and what was drafted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"prompts": prompts, "tokens": tokens, "logprobs": logprobs}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"vLLM ended; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        # Popen's own end closes both pipes and waits
        with self._process:
            pass


def work(model: str, speculation: dict[str, Any] | None) -> None:
    """Answer lines of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes to the log
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation,
    )

    def counted() -> dict[str, int]:
        found = {"passes": 0, "draft_tokens": 0, "accepted_tokens": 0}
        for one in llm.get_metrics():
            name = one.name.removeprefix("vllm:spec_decode_num_")
            if one.name == "vllm:iteration_tokens_total":
                found["passes"] = int(one.count)
            elif name in found:
                found[name] = int(one.value)
        return found

    for line in sys.stdin:
        asked = json.loads(line)
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=asked["tokens"],
            ignore_eos=True,
            logprobs=2 if asked["logprobs"] else None,
        )
        before, begun, worked = counted(), time.perf_counter(), time.process_time()
        found = llm.generate(asked["prompts"], sampling, use_tqdm=False)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - worked
        outputs = [one.outputs[0] for one in found]
        answer: dict[str, Any] = {
            "seconds": seconds,
            "cpu": cpu,
            "tokens": [list(one.token_ids) for one in outputs],
            **{name: value - before[name] for name, value in counted().items()},
        }
        if asked["logprobs"]:
            answer["gaps"] = [[_gap(place) for place in one.logprobs or ()] for one in outputs]
        print(json.dumps(answer), file=answers, flush=True)


def _gap(place: Any) -> float:
    """How far apart the two likeliest tokens were, in nats."""
    first, second = sorted((known.logprob for known in place.values()), reverse=True)[:2]
    return float(first - second)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    report = compare(told.model, chosen=ways(told.k), rounds=told.rounds, tokens=told.tokens)
    if told.out:
        told.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(table(report))


def compare(
    model: str,
    *,
    chosen: Mapping[str, dict[str, Any] | None],
    rounds: int,
    tokens: int,
    uncounted: int = 1,
    together: bool = True,
) -> dict[str, Any]:
    """Answers of the chosen ways to all prompts, in some rounds and in `uncounted` ones before."""
    from scripts.vllm_prompts import PROMPTS

    logs = Path(os.environ.get("TMPDIR", "/tmp"))
    workers = {
        name: Worker(model, speculation, logs / f"vllm-compare-{number}.log")
        for number, (name, speculation) in enumerate(chosen.items())
    }
    runs: list[dict[str, Any]] = []
    prompts = {name: [text] for name, text in PROMPTS.items()}
    if together:
        prompts[TOGETHER] = [*PROMPTS.values()]
    try:
        for turn in range(1 - uncounted, rounds + 1):
            for number, (prompt, texts) in enumerate(prompts.items()):
                names = [*workers]
                at = (turn + number) % len(names)
                for way in names[at:] + names[:at]:
                    answer = workers[way].ask(texts, tokens)
                    print(
                        f"round {turn}, {prompt}, {way}: {answer['seconds']:.1f} s", file=sys.stderr
                    )
                    if turn > 0:
                        runs.append({"round": turn, "prompt": prompt, "way": way, **answer})
        gaps = {
            prompt: workers["plain"].ask(texts, tokens, logprobs=True)["gaps"]
            for prompt, texts in prompts.items()
        }
    finally:
        for worker in workers.values():
            worker.close()
    return {"tokens": tokens, "rounds": rounds, "ways": dict(chosen), "runs": runs, "gaps": gaps}


def table(report: dict[str, Any]) -> str:
    """Markdown: tokens per second and per pass, by prompt and way; where texts differ."""
    runs = report["runs"]
    names = [*report["ways"]]
    prompts = list(dict.fromkeys(run["prompt"] for run in runs))
    lines = ["| prompt | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]

    def of(prompt: str, way: str) -> list[dict[str, Any]]:
        return [run for run in runs if (run["prompt"], run["way"]) == (prompt, way)]

    def cell(found: list[list[dict[str, Any]]]) -> str:
        """Of some prompts, each with its rounds."""
        tokens = sum(said(rounds[:1]) for rounds in found)
        seconds, cpu = (
            sum(statistics.median(run[what] for run in rounds) for rounds in found)
            for what in ("seconds", "cpu")
        )
        length = acceptance_length([run for rounds in found for run in rounds])
        return f"{tokens / seconds:.1f} · {1e3 * cpu / tokens:.0f} · {length:.2f}"

    def share(found: list[dict[str, Any]]) -> str:
        drafted = sum(run["draft_tokens"] for run in found)
        return f"{sum(run['accepted_tokens'] for run in found) / drafted:.2f}" if drafted else "–"

    for prompt in prompts:
        cells = [cell([of(prompt, name)]) for name in names]
        lines.append(f"| {prompt} | " + " | ".join(cells) + " |")
    single = [prompt for prompt in prompts if prompt != TOGETHER]
    cells = [f"**{cell([of(prompt, name) for prompt in single])}**" for name in names]
    lines.append("| six, one by one | " + " | ".join(cells) + " |")
    cells = [share([run for prompt in single for run in of(prompt, name)]) for name in names]
    lines.append("| acceptance rate | " + " | ".join(cells) + " |")
    texts = sum(len(run["tokens"]) for run in runs)
    parted = [*differences(report)]
    lines += ["", f"{texts - len(parted)} of {texts} texts are those of plain decoding."]
    return "\n".join([*lines, *dict.fromkeys(map(str, parted))])


def said(runs: Sequence[dict[str, Any]]) -> int:
    """Tokens of all texts."""
    return sum(len(text) for run in runs for text in run["tokens"])


def acceptance_length(runs: Sequence[dict[str, Any]]) -> float:
    """Tokens per target pass, the passes that read prompts included.

    Counted from passes: what vLLM counts as accepted may lie behind the end of the answer.
    """
    passes: int = sum(run["passes"] for run in runs)
    return said(runs) / passes


@dataclass(frozen=True, slots=True)
class Parted:
    """A text that is not plain decoding's from token `at` on, where its two likeliest tokens were
    `gap` nats apart."""

    way: str
    prompt: str
    row: int
    at: int
    gap: float

    def __str__(self) -> str:
        return (
            f"{self.way}, {self.prompt}, row {self.row}: parts from plain at token {self.at}, "
            f"where the two likeliest are {self.gap:.1e} nats apart"
        )


def differences(report: dict[str, Any]) -> Iterator[Parted]:
    """Where a text is not that of plain decoding in the first round."""
    runs = report["runs"]
    plain = {run["prompt"]: run["tokens"] for run in reversed(runs) if run["way"] == "plain"}
    for run in runs:
        for row, (text, usual) in enumerate(zip(run["tokens"], plain[run["prompt"]], strict=True)):
            at = next((i for i, (a, b) in enumerate(zip(text, usual, strict=True)) if a != b), None)
            if at is not None:
                gap = report["gaps"][run["prompt"]][row][at]
                yield Parted(run["way"], run["prompt"], row, at, gap)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for `scripts`
    main()
