"""`agentspec replay`: what recorded sessions would have cost on a device of a given curve."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentspec.cli._options import StepBar, give_report, out_option

if TYPE_CHECKING:
    from agentspec.backends.base import Backend
    from agentspec.replay.chatml import Tokens
    from agentspec.replay.draft_bits import DraftBits
    from agentspec.replay.inputs import Vocabulary
    from agentspec.replay.run import Variant


_LEGEND = (
    "speed: times plain decoding, at that cost of a pass over several rows; reading is left out",
    "95 %: interval of the speed over sessions; length: tokens per target pass",
    "rate: accepted of drafted; of judged: without those after the first that did not stand",
    "cold: nothing was known before a session; warm: the sessions before it were",
)
_CURVES = (
    "Cost curve: flat, step9, linear-cpu or one of --curves; all; repeatable.  [default: the first]"
)
FORMS = ("claude-code", "codex", "opencode", "swe-agent", "bench")


@click.command("replay")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--from",
    "form",
    type=click.Choice(FORMS),
    help="Whose logs FILES are; without it that is found by looking into them.",
)
@click.option(
    "--sample",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON list of [file name, session id] to take; without FILES, files beside it.",
)
@click.option("--curve", "curve_names", multiple=True, help=_CURVES)
@click.option(
    "--curves",
    "curves_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Curves: {NAME: {"points": {"1": 1.0, …}}}.',
)
@click.option(
    "--model", help="Whose vocabulary: catalog name or GGUF path.  [default: Qwen2.5, if there]"
)
@click.option("--draft", help="Draft model: catalog name or GGUF path.")
@click.option(
    "--draft-cost",
    default=0.04,
    show_default=True,
    help="Cost of a draft model's pass, in target passes over one row.",
)
@click.option("--ablate", multiple=True, help="Also without this part, or with k4, k8, k16; all.")
@click.option("--peers", is_flag=True, help="Also with other engines' ways to draft.")
@click.option("--cold", "only", flag_value="cold", help="Only with nothing known before.")
@click.option("--warm", "only", flag_value="warm", help="Only with earlier sessions known.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write a JSON line per pass here.",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw speed and acceptance as PNG files in this folder.",
)
@click.option(
    "--leaves",
    default=1,
    show_default=True,
    help="Leaves of a draft; above 1 it may be a tree, where the target verifies such.",
)
@click.option(
    "--priors",
    type=click.Path(path_type=Path, exists=True),
    help="Fitted priors to start from; of a folder, the file SOURCE.json of each source.",
)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--no-cache", is_flag=True, help="Neither read nor keep token ids and draft passes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@out_option
def replay(
    files: tuple[Path, ...],
    form: str | None,
    sample: Path | None,
    curve_names: tuple[str, ...],
    curves_file: Path | None,
    model: str | None,
    draft: str | None,
    draft_cost: float,
    ablate: tuple[str, ...],
    peers: bool,
    only: str | None,
    trace: Path | None,
    plots: Path | None,
    priors: Path | None,
    leaves: int,
    jobs: int,
    no_cache: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """Replay recorded sessions: the engine over a target that says what was recorded.

    FILES are traces or OpenAI-shaped messages (JSONL: one conversation a line; .gz too), logs of
    Claude Code, Codex, OpenCode or SWE-agent, reports of `agentspec bench --json`, or folders of
    them. Every pass is charged by the curve; plain decoding has speed 1.
    """
    from agentspec.replay.curves import choose_curves
    from agentspec.replay.inputs import read_sessions, vocabulary_of
    from agentspec.replay.plots import need_matplotlib, save_plots
    from agentspec.replay.report import replay_report, replay_text
    from agentspec.replay.run import FULL, Plan, Result, ablations, seen_by_priors, variant
    from agentspec.replay.run import replay as run_replay
    from agentspec.replay.store import ArrayStore

    if not files and sample is None:
        raise click.UsageError("give FILES to replay, or --sample")
    if form is not None and (not files or sample is not None):
        raise click.UsageError("--from is for FILES, without --sample")
    if leaves < 1:
        raise click.UsageError("--leaves must be at least 1")
    if jobs < 1 or not 0 <= draft_cost < float("inf"):
        raise click.UsageError("--jobs must be at least 1 and --draft-cost at least 0")
    if trace is not None and not trace.parent.is_dir():
        raise click.UsageError(f"there is no folder {str(trace.parent)!r} for --trace")
    if plots is not None:
        need_matplotlib()
    started = time.perf_counter()
    curves = choose_curves(curve_names, curves_file)
    names = ablations() if "all" in ablate else ablate
    variants = (FULL, *dict.fromkeys(variant(name) for name in names))
    others, skipped = _peers() if peers else ((), [])
    variants += others
    states = (only,) if only else ("cold", "warm")
    vocabulary = vocabulary_of(model)
    kept = (lambda kind: ArrayStore(None)) if no_cache else ArrayStore.default
    sessions = read_sessions(
        files, vocabulary, kept("tokens"), sample=sample, form=form, note=skipped.append
    )
    bits = _draft_bits(draft, sessions, vocabulary, kept("draft")) if draft else None
    plan = Plan(
        curves,
        variants,
        states,
        draft_cost=draft_cost,
        traced=trace is not None,
        priors=priors,
        leaves=leaves,
    )
    results: list[Result] = []
    with ExitStack() as stack:
        lines = stack.enter_context(trace.open("w", encoding="utf-8")) if trace else None
        bar = StepBar("replay")
        for result in run_replay(sessions, vocabulary, plan, bits=bits, jobs=jobs, progress=bar):
            if lines is not None:
                lines.writelines(f"{line}\n" for line in result.trace)
                result.trace.clear()
            results.append(result)
    report = replay_report(
        results, curves=list(curves), variants=[v.name for v in variants], states=states
    )
    seen = seen_by_priors(sessions, priors)
    if seen:
        skipped.append(
            f"the priors were fitted on {seen} of these {len(sessions)} sessions, among others: "
            "their speeds say less about other sessions (--priors takes others)"
        )
    report["settings"] = {
        "fitted_on": seen,
        "model": vocabulary.path.name,
        "draft": draft,
        "draft_cost": draft_cost if draft else None,
        "seconds": round(time.perf_counter() - started, 1),
        "skipped": skipped,
    }
    told = f"in tokens of {vocabulary.path.name}"
    text = "\n".join([replay_text(report), *skipped, "", *_LEGEND, told])
    give_report(report, text, as_json=as_json, out=out)
    if plots is not None:
        save_plots(report, plots)


def _peers() -> tuple[tuple[Variant, ...], list[str]]:
    """The peers that can run here as variants, and a line for each that cannot."""
    from agentspec.bench.peers import installed_peers
    from agentspec.replay.run import Variant

    found, skipped = installed_peers()
    return tuple(Variant(f"peer {name}", peer=make) for name, make in found.items()), skipped


def _draft_bits(
    draft: str, sessions: list[Tokens], vocabulary: Vocabulary, store: Any
) -> list[DraftBits]:
    from agentspec.backends.pair import check_pair
    from agentspec.models import catalog
    from agentspec.replay.draft_bits import LOGIT_ROWS, draft_bits
    from agentspec.replay.inputs import Vocabulary

    drafter = Vocabulary(catalog.resolve(draft).path)
    target = vocabulary()
    check_pair(target, drafter())

    def load(n_ctx: int) -> Backend:
        from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

        return LlamaCppBackend(drafter.path, LlamaSettings(n_ctx=n_ctx, max_logit_rows=LOGIT_ROWS))

    progress: Callable[[int, int], None] = StepBar("draft model")
    return draft_bits(
        sessions,
        load,
        drafter.identity(),
        store,
        vocab_size=target.vocab_size,
        progress=progress,
    )
