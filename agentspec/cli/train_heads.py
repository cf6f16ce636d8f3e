"""`agentspec train-heads`: heads that draft for one target, trained on what it says itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentspec.cli._options import StepBar, give_report

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend
    from agentspec.training.plan import Plan
    from agentspec.training.windows import Window

_FILES = click.Path(path_type=Path, exists=True)


@click.command("train-heads")
@click.argument("model")
@click.option(
    "--kind", required=True, type=click.Choice(["medusa", "eagle", "exit"]), help="What to train."
)
@click.option(
    "--text",
    multiple=True,
    type=_FILES,
    help="Text file to go on from, or a folder of them; repeatable.",
)
@click.option(
    "--sessions",
    multiple=True,
    type=_FILES,
    help="Recorded sessions, or a folder of them, as of `agentspec replay`; repeatable.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the result; by default MODEL-KIND here.",
)
@click.option("--depth", default=4, show_default=True, help="Heads, or tokens of a draft.")
@click.option("--blocks", default=1, show_default=True, help="Residual blocks of a Medusa head.")
@click.option("--own-heads", is_flag=True, help="A vocabulary head for each Medusa head: large.")
@click.option("--layer", type=int, help="Layers before the exit; by default a quarter.")
@click.option("--rank", type=int, help="Inner numbers of an exit adapter; 0: a full map.")
@click.option("--window", default=64, show_default=True, help="Tokens before a continuation.")
@click.option("--tokens", default=96, show_default=True, help="Tokens of a continuation.")
@click.option("--most", default=24_000, show_default=True, help="Tokens to learn from.")
@click.option("--batch", default=16, show_default=True, help="Texts that are continued at once.")
@click.option("--rows", default=4, show_default=True, help="Texts that one step learns from.")
@click.option("--epochs", default=8, show_default=True, help="Times that each text is seen.")
@click.option("--rate", type=float, help="Learning rate.")
@click.option(
    "--patience", default=3, show_default=True, help="Rounds without a better held-out loss."
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything that is drawn.")
@click.option("--seconds", default=1200.0, show_default=True, help="Time for all of it.")
@click.option("--device", help="auto, cpu, cuda, mps, …")
@click.option("--dtype", help="Number format: auto, float32, bfloat16, …")
@click.option("--n-threads", type=int, help="Threads; 0: one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def train_heads(
    model: str,
    text: tuple[Path, ...],
    sessions: tuple[Path, ...],
    out: Path | None,
    device: str | None,
    dtype: str | None,
    n_threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train what drafts from the inside of MODEL, which stays as it is.

    The target goes on greedily from pieces of TEXT and SESSIONS, and its heads learn to say what
    it said. An eighth of the files and sessions is only measured on. The result is a folder for
    `--heads`. When the time is up, or it is interrupted, the same command goes on; continuations
    are kept, so that other trainings of the same model need not wait for them.
    """
    from agentspec.config import load_settings
    from agentspec.loading import resolve
    from agentspec.training.plan import Plan

    if not text and not sessions:
        raise click.UsageError("give --text or --sessions to learn from")
    plan = Plan(**options)
    named = {"model": model, "backend": "torch", "device": device, "dtype": dtype}
    settings = load_settings({**named, "n_threads": n_threads})
    path = resolve(settings).path
    folder = out or Path(f"{path.name.removesuffix('.gguf')}-{plan.kind}")
    target = _target(path, settings, plan)
    try:
        report = _trained(target, text, sessions, plan, folder)
    finally:
        target.close()
    give_report(report, report_text(report), as_json=as_json, out=None)


def _target(path: Path, settings: Any, plan: Plan) -> TorchBackend:
    from agentspec.backends.torch import TorchBackend, TorchSettings

    return TorchBackend(
        path,
        TorchSettings(
            n_ctx=plan.window + plan.tokens + 8,
            n_threads=settings.n_threads or None,
            device=settings.device,
            dtype=settings.dtype,
        ),
    )


def _trained(
    target: TorchBackend,
    text: tuple[Path, ...],
    sessions: tuple[Path, ...],
    plan: Plan,
    folder: Path,
) -> dict[str, Any]:
    from agentspec.files import cache_folder
    from agentspec.replay.store import ArrayStore
    from agentspec.training.run import train_heads as run
    from agentspec.training.windows import session_windows, text_windows

    windows: list[Window] = text_windows(target.tokenizer, text, plan.window)
    if sessions:
        windows += session_windows(
            target.tokenizer,
            sessions,
            plan.window,
            plan.tokens,
            identity=target.identity,
            store=ArrayStore.default("tokens"),
        )
    store = ArrayStore(cache_folder("train-heads"))
    return run(target, windows, plan, folder, store=store, bar=StepBar)


def report_text(report: Mapping[str, Any]) -> str:
    """A few lines about a training."""
    training, measured = report["training"], report["held_out"]
    losses = training["held_out_loss"]
    best = min(loss for _, loss in losses)
    lines = [
        f"{report['out']}: {report['plan']['kind']}, {report['bytes'] / 1e6:.1f} MB",
        f"learnt from {training['tokens']:,} tokens in {training['steps']} of "
        f"{training['of_steps']} steps, {training['seconds']:.0f} s; {training['ended']}",
        f"held-out loss {losses[0][1]:.3f} before, {best:.3f} at its best",
        "",
        f"{'on held-out texts':<40}{'acceptance length':>18}   agreement, place by place",
    ]
    for name, row in measured.items():
        rates = "  ".join(f"{rate:.2f}" for rate in row["agreement"])
        lines.append(f"{name:<40}{row['acceptance_length']:>18.2f}   {rates}")
    return "\n".join(lines)
