"""`train_heads`: from a target and windows of text to a folder that `--heads` loads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.torch_heads import UNFINISHED
from agentspec.errors import ConfigError, UnsupportedError
from agentspec.files import replacing
from agentspec.replay.store import ArrayStore
from agentspec.training.batch import Batch
from agentspec.training.eagle import EagleLayer, LayerShape
from agentspec.training.evaluate import agreement, constant
from agentspec.training.exit import ExitHeads, ahead, norm_weight
from agentspec.training.folder import finished, parts, write_folder
from agentspec.training.head import FrozenHead, Vocabulary
from agentspec.training.heads import Heads
from agentspec.training.medusa import MedusaHeads
from agentspec.training.plan import Plan
from agentspec.training.shards import Continuations, Shards
from agentspec.training.state import State
from agentspec.training.trainer import Schedule, Trainer
from agentspec.training.windows import Window, batches, held_out

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend

Bar = Callable[[str], Callable[[int, int], None]]
"""Label to what is told steps done and steps in all."""

_GONE = "finished.part"
_HELD = 64
_TALKS = 0.4
"""The share of the time that continuations may take."""
_MEASURES = 0.1
"""The share that is left for measuring."""
_SHARES = (0.25, 0.5, 0.75)
_UNROLLED = 2


def train_heads(
    target: TorchBackend,
    windows: Sequence[Window],
    plan: Plan,
    out: Path,
    *,
    store: ArrayStore,
    bar: Bar = lambda label: lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
    save_every: float = 20.0,
) -> dict[str, Any]:
    """Train and measure; what was found. `out` then holds the heads in their published layout.

    When the time is up they are the best so far, and the same call goes on with them. `store`
    keeps continuations for other trainings of the same target. Raises InvalidRequestError for too
    little text, ConfigError, UnsupportedError, BackendError and ModelFileError.
    """
    begun = clock()
    work = out / UNFINISHED
    _tidied(out, work)
    if finished(out) is not None and not work.exists():
        raise ConfigError(f"{out} holds heads that are trained already; take another folder")
    _check(target, plan)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error.strerror or error}") from error
    learnt_windows, held_windows = held_out(windows)
    learnt = batches(learnt_windows, plan.batch, plan.seed)
    learnt = learnt[: -(-plan.most // (plan.batch * plan.tokens))]
    held = batches(held_windows, plan.batch, plan.seed)[: max(1, _HELD // plan.batch)]
    said = Continuations(target, plan.tokens, store)
    count = _continued(said, held, learnt, work, begun + _TALKS * plan.seconds, bar, clock)
    learnt = learnt[:count]

    until = begun + (1 - _MEASURES) * plan.seconds
    with _settled(target, plan.seed):
        layer = plan.layer_of(target.layers) if plan.kind == "exit" else None
        if layer is not None:
            target.tap(sorted({*target.taps, layer}))
        source = Shards(target, learnt, said, work / "learnt", layer=layer)
        kept = Shards(target, held, said, work / "held", layer=layer)
        own, common = _seen(source)
        head = FrozenHead(target.inner)
        heads = _made(target, head, plan, kept)
        vocabulary = Vocabulary(head.vocab, own, target.device)
        state = State(work / "state.safetensors", _settings(target, plan, learnt, held))
        schedule = Schedule(
            plan.epochs, plan.rows, plan.learning_rate, plan.patience, plan.seed, save_every
        )
        trainer = Trainer(
            heads, source, kept, vocabulary, schedule, state,
            until=until, clock=clock,
        )  # fmt: skip
        tell, total = bar("hidden states"), len(kept) + len(source)
        for done in kept.prepare():
            tell(done, total)
        for done in source.prepare():
            tell(len(kept) + done, total)
            if clock() >= until:
                break
        progress = trainer.run(bar("train"))
        measured = _measured(target, head, heads, said, held, kept, work, common, bar)
    facts = {
        "plan": asdict(plan),
        "training": {
            "windows": sum(map(len, learnt)),
            "tokens": sum(map(len, learnt)) * plan.tokens,
            "steps": progress.step,
            "of_steps": trainer.steps,
            "ended": progress.done or "the time was up",
            "held_out_loss": progress.history,
            "best_step": progress.best_step,
            "seconds": round(clock() - begun, 1),
        },
        "held_out": measured,
    }
    size = write_folder(out, heads, target, facts)
    if progress.done:
        # at once: what a kill would leave of it is nothing to go on from
        with contextlib.suppress(OSError):
            work.replace(out / _GONE)
        shutil.rmtree(out / _GONE, ignore_errors=True)
    return {"out": str(out), "bytes": size, **facts}


def _tidied(out: Path, work: Path) -> None:
    """Remove what a kill has left of files that it kept from being whole."""
    shutil.rmtree(out / _GONE, ignore_errors=True)
    for part in (*parts(out), *work.rglob("*.part")):
        with contextlib.suppress(OSError):
            part.unlink()


def _check(target: TorchBackend, plan: Plan) -> None:
    need = plan.window + plan.tokens
    if need > target.n_ctx:
        raise ConfigError(
            f"windows of {plan.window} and continuations of {plan.tokens} tokens do not fit in the "
            f"{target.n_ctx} of {target.path.name}; lower one"
        )
    if not target.layers or not target.capabilities.exit_layers:
        raise UnsupportedError(
            f"{target.path.name} keeps a recurrent state, which nothing here drafts from"
        )
    plan.layer_of(target.layers)


def _continued(
    said: Continuations,
    held: Sequence[Sequence[Window]],
    learnt: Sequence[Sequence[Window]],
    work: Path,
    until: float,
    bar: Bar,
    clock: Callable[[], float],
) -> int:
    """Let the target speak; how many batches there are to learn from when the time is up."""
    path = work / "batches.json"
    try:
        fixed = int(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        fixed = 0
    wanted = learnt[: fixed or len(learnt)]
    tell, total = bar("continuations"), len(held) + len(wanted)
    for done, batch in enumerate(held):
        said.of(batch)
        tell(done + 1, total)
    count = 0
    for batch in wanted:
        if count and not fixed and clock() >= until:
            break
        said.of(batch)
        count += 1
        tell(len(held) + count, total)
    try:
        with replacing(path) as file:
            file.write(str(count).encode())
    except OSError as error:
        raise ConfigError(f"cannot write to {work}: {error.strerror or error}") from error
    return count


@contextlib.contextmanager
def _settled(target: TorchBackend, seed: int) -> Iterator[None]:
    """The same numbers from the same seed, and the target's taps as they were afterwards."""
    before = target.taps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            target.tap(before)


def _made(target: TorchBackend, head: FrozenHead, plan: Plan, kept: Shards) -> Heads:
    if plan.kind == "medusa":
        return MedusaHeads(head, depth=plan.depth, layers=plan.blocks, own_heads=plan.own_heads)
    if plan.kind == "eagle":
        inner = target.inner
        shape = LayerShape.of(inner.config.get_text_config(decoder=True))
        embeddings = inner.get_input_embeddings()
        return EagleLayer(head, embeddings, shape, depth=plan.depth, steps=_UNROLLED)
    layer = plan.layer_of(target.layers)
    norm = norm_weight(*kept.exit_states(0, layer))
    rank = plan.rank_for(head.width)
    return ExitHeads(head, norm, layer=layer, rank=rank, depth=plan.depth)


def _seen(source: Shards) -> tuple[list[int], int]:
    """All tokens of the texts that are learnt from, and which the target says most."""
    known: set[int] = set()
    counts: dict[int, int] = {}
    for number in range(len(source)):
        tokens, ends, first = source.tokens(number)
        known.update(tokens.unique().tolist())
        for row, end in zip(tokens.tolist(), ends.tolist(), strict=True):
            for token in row[first:end]:
                counts[token] = counts.get(token, 0) + 1
    return sorted(known), max(counts, key=lambda token: (counts[token], -token))


def _settings(
    target: TorchBackend,
    plan: Plan,
    learnt: Sequence[Sequence[Window]],
    held: Sequence[Sequence[Window]],
) -> dict[str, Any]:
    """What a continued training must share with its beginning; the time may be another."""
    texts = json.dumps([[w.ids for w in batch] for batch in (*learnt, *held)])
    told = asdict(plan)
    del told["seconds"]
    return {
        "model": target.identity,
        "dtype": str(target.dtype),
        **told,
        "texts": hashlib.sha256(texts.encode()).hexdigest()[:16],
    }


def _measured(
    target: TorchBackend,
    head: FrozenHead,
    heads: Heads,
    said: Continuations,
    held: Sequence[Sequence[Window]],
    kept: Shards,
    work: Path,
    common: int,
    bar: Bar,
) -> dict[str, Any]:
    """The trained heads, exits without training, and chance, on what is held out."""
    layer = heads.config().get("layer")
    layers = target.layers
    exits = [layer] if layer else sorted({max(1, int(layers * share)) for share in _SHARES})
    tell, total = bar("measure"), 2 + len(exits)
    depth, offset = heads.depth, heads.offset
    found = {"trained": agreement(kept.all(), depth, offset, heads.guesses)}
    tell(1, total)
    found["chance"] = agreement(kept.all(), depth, offset, constant(common, depth))
    tell(2, total)

    def plain(part: Batch) -> Any:
        return ahead(part.placed(head.best(part.spoken())), depth)

    for i, n in enumerate(exits):
        ended = Shards(target, held, said, work / f"exit-{n}", layer=n, behind_norm=True)
        name = f"untrained exit behind {n} of {layers} layers"
        found[name] = agreement(ended.all(), depth, 1, plain)
        tell(3 + i, total)
    return {name: one.as_dict() for name, one in found.items()}
