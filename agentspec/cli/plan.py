"""`agentspec plan`: what of a model fits, told from its header, and what to give up otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agentspec.models.memory import Load, Memory, ModelSize
    from agentspec.models.plan import DraftWorth, Placement, Room, Step

_UNITS = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_TYPES = ("f16", "q8_0", "q4_0")


class Size(click.ParamType[int]):
    """A number of bytes: 24GiB, 24G and 24GB mean the same, as on the box of a card."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value)
        unit = found[2].lower() if found else ""
        size = int(float(found[1]) * 2 ** _UNITS[unit]) if found and unit else 0
        if size < 1:
            self.fail(f"{value!r} is no size; write it like 24GiB", param, ctx)
        return size


@click.command()
@click.argument("model")
@click.option("--draft", help="Draft model: catalog name, GGUF path, or none.")
@click.option("--vram", type=Size(), help="Memory of the GPU, e.g. 24GiB.  [default: it is asked]")
@click.option("--context", type=click.IntRange(16), help="Context window in tokens.")
@click.option("--kv-type", help="Number format of the KV cache: f16, q8_0, …")
@click.option("--check", is_flag=True, help="Load it too; compare with what llama.cpp reports.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    model: str,
    draft: str | None,
    vram: int | None,
    context: int | None,
    kv_type: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Tell how much memory MODEL takes, what fits, and what to give up when it does not.

    Only headers are read, no weights. MODEL is a catalog name or the path of a GGUF file; of a name
    that is not on disk there is only what the catalog knows. Sizes are estimates: within 5 % of
    what llama.cpp reserves for models without recurrent layers.
    """
    from agentspec.config import load_settings
    from agentspec.models.memory import Load, ModelSize
    from agentspec.models.plan import draft_worth, place, steps

    settings = load_settings({"draft": draft, "n_ctx": context, "kv_type": kv_type})
    found = _find(model, settings.models_dir)
    if found is None:
        _tell_known(model, *_room(vram), as_json=as_json)
        return
    target_path, draft_path = found
    if settings.draft is not None:
        from agentspec.loading import NO_DRAFT
        from agentspec.models import catalog

        draft_path = (
            None
            if settings.draft == NO_DRAFT
            else catalog.resolve(settings.draft, settings.models_dir).path
        )
    room, device = _room(vram)
    if settings.draft is None and room.gpu is None:
        # a pair's draft model is left unloaded without a GPU
        draft_path = None
    target = ModelSize.of(target_path)
    drafter = ModelSize.of(draft_path) if draft_path else None
    load = Load(
        n_ctx=settings.n_ctx,
        kv_type=settings.kv_type,
        sequences=1 if settings.exact else settings.max_sessions,
        chunk=settings.n_batch,
        flash_attn=settings.flash_attn != "off",
        repack=not settings.exact,
    )
    now = place(target, drafter, load, room)
    given_up = list(steps(target, drafter, load, room))
    worth = draft_worth(target, drafter, load, room) if drafter else None
    then = None
    if drafter and given_up and given_up[-1].placement.whole and given_up[-1].placement.draft:
        then = draft_worth(target, drafter, given_up[-1].placement.load, room)
    compared = _check(target_path, target, load) if check else None
    if as_json:
        click.echo(json.dumps(_data(target, drafter, now, given_up, worth, room, compared)))
        return
    lines = [
        *_model_lines(target, now),
        *(_draft_lines(drafter, now, worth) if drafter else ()),
        "",
        *_cache_lines(target, drafter, load, room),
        "",
        *_fit_lines(now, room, device),
        *_step_lines(given_up, now, then),
        *_check_lines(compared),
    ]
    click.echo("\n".join(lines))


def _find(model: str, models_dir: Path | None) -> tuple[Path, Path | None] | None:
    """Files of target and draft model; None for a name of the catalog that is not on disk."""
    from agentspec.errors import ModelNotFoundError
    from agentspec.models import catalog

    try:
        found = catalog.resolve(model, models_dir)
        return found.path, found.draft
    except ModelNotFoundError:
        if model not in catalog.names():
            raise
    return None


def _tell_known(model: str, room: Room, device: str, *, as_json: bool) -> None:
    """What the catalog alone can say: a header comes with its file, and wheels come whole."""
    from agentspec.models import catalog
    from agentspec.models.plan import RESERVE

    entry = catalog.entry(model)
    get = f"agentspec models pull {model}"
    most = room.gpu if room.gpu is not None else room.system
    fits = None if entry.size is None else entry.size + RESERVE <= most
    if as_json:
        known = {"weights": entry.size, "weights_fit": fits, "suits": entry.suits}
        click.echo(json.dumps({"model": model, "on_disk": False, **known, "get": get}))
        return
    click.echo(f"{model} is not on disk; meant for: {entry.suits}")
    if entry.size is None:
        click.echo("the catalog does not know its size")
    else:
        where = "on the GPU" if room.gpu is not None else "into memory"
        verdict = f"fit {where}" if fits else f"do not fit {where}"
        click.echo(f"its weights take {size(entry.size)}, which {verdict} ({_had(room, device)})")
    click.echo(f"its KV cache, and so what fits, is told from its header; get it with: {get}")


def _room(vram: int | None) -> tuple[Room, str]:
    """What can be used, and in words where that comes from."""
    from agentspec.errors import BackendError, MissingExtraError
    from agentspec.models.gpu import read_gpus, system_memory
    from agentspec.models.plan import Room

    _, free = system_memory()
    if vram is not None:
        return Room(vram, free), f"a GPU of {size(vram)}, as --vram says"
    try:
        gpus = read_gpus()
    except MissingExtraError as error:
        return Room(None, free), f"no GPU was looked for ({error}); give --vram to plan for one"
    except BackendError as error:
        return Room(None, free), f"no GPU ({error}); give --vram to plan for one"
    if not gpus:
        return Room(None, free), "no GPU; give --vram to plan for one"
    best = max(gpus, key=lambda gpu: gpu.free)
    more = f"; {len(gpus) - 1} more are not counted" if len(gpus) > 1 else ""
    said = f"{best.name}, {size(best.free)} of {size(best.total)} free{more}"
    return Room(best.free, free), said


def size(n: int) -> str:
    """Bytes for people, in MiB or GiB."""
    if n < 10 << 30:
        return f"{n / 2**20:,.0f} MiB" if n >= 10 << 20 else f"{n / 2**20:.1f} MiB"
    return f"{n / 2**30:.1f} GiB"


def _sum(memories: tuple[Memory, Memory], field: str) -> int:
    return sum(getattr(memory, field) for memory in memories)


def _model_lines(target: ModelSize, now: Placement) -> Iterator[str]:
    shape, load = target.shape, now.load
    yield (
        f"{_plain(target.name)}: {_plain(shape.architecture)}, {shape.n_layers} layers, "
        f"{target.n_parameters / 1e9:.2f} billion weights; context {load.n_ctx}, KV cache "
        f"{load.kv_type}, {load.sequences} conversations"
    )
    if 0 < shape.n_ctx_train < load.n_ctx:
        yield f"  it was trained for {shape.n_ctx_train} tokens: a longer context is read badly"
    types = ", ".join(f"{name} {size(n)}" for name, n in target.weights.by_type.items())
    yield f"  weights         {size(_sum(now.target, 'weights')):>10}   {types}"
    if copied := _sum(now.target, "repacked"):
        yield f"  repacked copy   {size(copied):>10}   for the processor's kernels"
    cache = _sum(now.target, "kv")
    per_token = cache / max(load.n_ctx, 1) / 1024
    yield f"  KV cache        {size(cache):>10}   {per_token:.1f} KiB a token"
    if shape.windowed:
        yield (
            f"  {'':26}   {shape.windowed} layers see a window only, and keep every token all the "
            "same: rejected drafts are rolled back"
        )
    if state := _sum(now.target, "state"):
        yield f"  state           {size(state):>10}   of recurrent layers, whatever the context"
    rough = "   rough: recurrent layers" if shape.recurrent else ""
    yield f"  compute         {size(_sum(now.target, 'compute')):>10}{rough}"
    yield f"  logits          {size(_sum(now.target, 'output')):>10}"
    yield f"  together        {size(_sum(now.target, 'total')):>10}"


def _draft_lines(drafter: ModelSize, now: Placement, worth: DraftWorth | None) -> Iterator[str]:
    assert now.draft is not None
    assert worth is not None
    held = now.draft
    yield (
        f"draft model {_plain(drafter.name)}: {size(_sum(held, 'total'))} (weights "
        f"{size(_sum(held, 'weights'))}, KV cache {size(_sum(held, 'kv'))}, compute "
        f"{size(_sum(held, 'compute'))})"
    )
    if worth.displaced:
        yield f"  it takes the room of {worth.displaced} layers of the target"
    if worth.pays_from is None:
        yield (
            f"  not worth its memory here: a pass of it costs {worth.ratio:.2f} target passes; "
            "speculation without a draft model needs none (draft none)"
        )
    else:
        verdict = "worth its memory" if worth.worth_it else "hardly worth its memory"
        yield (
            f"  {verdict}: a pass of it costs about {worth.ratio:.2f} target passes, so it pays "
            f"from an acceptance rate of {worth.pays_from:.2f} on (what is measured decides: "
            "agentspec doctor)"
        )


def _cache_lines(
    target: ModelSize, drafter: ModelSize | None, load: Load, room: Room
) -> Iterator[str]:
    from agentspec.models.plan import contexts, place

    types = [name for name in _TYPES if target.takes(name)]
    yield "KV cache by context (+: everything fits, %: so much of the target on the GPU, -: no)"
    yield "  tokens" + "".join(f"{name:>18}" for name in types)
    for n_ctx in contexts(target, load):
        row = f"{n_ctx:8}"
        for name in types:
            placed = place(target, drafter, replace(load, n_ctx=n_ctx, kv_type=name), room)
            cache = _sum(placed.target, "kv") + (_sum(placed.draft, "kv") if placed.draft else 0)
            row += f"{size(cache):>13} {_mark(placed):>4}"
        yield row


def _mark(placed: Placement) -> str:
    if not placed.fits:
        return "-"
    if placed.whole:
        return "+"
    return f"{100 * placed.gpu_layers // max(placed.all_layers, 1)}%"


def _had(room: Room, device: str) -> str:
    return f"{device}; {size(room.system)} of memory free"


def _fit_lines(now: Placement, room: Room, device: str) -> Iterator[str]:
    from agentspec.models.plan import RESERVE

    yield f"device: {_had(room, device)}"
    held = f"takes {size(now.system_bytes)} of memory"
    beside = f"{size(RESERVE)} of that for the process itself"
    if room.gpu is not None and now.gpu_bytes:
        held = f"takes {size(now.gpu_bytes)} of the GPU and {size(now.system_bytes)} of memory"
        beside = f"{size(RESERVE)} of each for the driver and the process itself"
    if now.whole:
        where = "all layers on the GPU" if room.gpu is not None else "in memory"
        yield f"fits: {where}; {held}, {beside}"
    elif now.fits:
        yield f"fits in part: n_gpu_layers {now.gpu_layers} of {now.all_layers}; {held}, {beside}"
        yield "  each layer outside the GPU slows every token"
    else:
        yield f"does not fit: {held}, {beside}"


def _step_lines(given_up: list[Step], now: Placement, then: DraftWorth | None) -> Iterator[str]:
    if now.whole:
        return
    if not given_up:
        yield "nothing that could be given up changes that; take a smaller model"
        return
    yield "to give up, in this order, until it fits:"
    for i, step in enumerate(given_up, 1):
        after = "then all of it fits" if step.placement.whole else ""
        if not after and step.placement.fits and step.placement.all_layers:
            after = f"then n_gpu_layers {step.placement.gpu_layers}"
        yield f"  {i}. {step.change}: saves {size(step.saved)}; {step.reason}. {after}".rstrip(". ")
    if then is not None and then.pays_from is not None:
        yield f"  the draft model then pays from an acceptance rate of {then.pays_from:.2f} on"
    if not given_up[-1].placement.whole:
        yield "  and then still not all of it fits; take a smaller model or a smaller quantisation"


def _check(path: Path, target: ModelSize, load: Load) -> dict[str, tuple[int, int]]:
    """Estimated and reported bytes per kind of buffer, of a model loaded into memory."""
    from agentspec.backends.llama_cpp import LlamaSettings
    from agentspec.backends.llama_layout import reported_sizes

    settings = LlamaSettings(
        n_ctx=load.n_ctx,
        n_gpu_layers=0,
        type_k=load.kv_type,  # type: ignore[arg-type]
        type_v=load.kv_type,  # type: ignore[arg-type]
        flash_attn=load.flash_attn,
        repack=load.repack,
        max_seqs=load.sequences,
        chunk=load.chunk,
    )
    reported = reported_sizes(path, settings)
    _, held = target.memory(replace(load, gpu_layers=0))
    return {
        "weights": (held.weights, reported["model"]),
        "repacked": (held.repacked, reported["repacked"]),
        "kv": (held.kv, reported["KV"]),
        "state": (held.state, reported["RS"]),
        "compute": (held.compute, reported["compute"]),
        "output": (held.output, reported["output"]),
    }


def _check_lines(compared: dict[str, tuple[int, int]] | None) -> Iterator[str]:
    if compared is None:
        return
    yield "estimated and as llama.cpp reports it, loaded into memory:"
    for name, (ours, theirs) in compared.items():
        if ours or theirs:
            off = f"{ours / theirs - 1:+.1%}" if theirs else "not reported"
            yield f"  {name:<9} {ours / 2**20:10.2f} MiB {theirs / 2**20:10.2f} MiB  {off}"


def _data(
    target: ModelSize,
    drafter: ModelSize | None,
    now: Placement,
    given_up: list[Step],
    worth: DraftWorth | None,
    room: Room,
    compared: dict[str, tuple[int, int]] | None,
) -> dict[str, Any]:
    return {
        "model": _model_data(target),
        "draft": _model_data(drafter) if drafter else None,
        "load": asdict(now.load),
        "room": asdict(room),
        "placement": _placement_data(now),
        "draft_worth": {**asdict(worth), "worth_it": worth.worth_it} if worth else None,
        "give_up": [
            {
                "change": step.change,
                "reason": step.reason,
                "saved": step.saved,
                "placement": _placement_data(step.placement),
            }
            for step in given_up
        ],
        "check": {k: {"estimated": a, "reported": b} for k, (a, b) in (compared or {}).items()}
        or None,
    }


def _model_data(model: ModelSize) -> dict[str, Any]:
    return {
        "name": model.name,
        "architecture": model.shape.architecture,
        "layers": model.shape.n_layers,
        "parameters": model.n_parameters,
        "n_ctx_train": model.shape.n_ctx_train,
        "weights": model.weights.total,
        "weights_by_type": dict(model.weights.by_type),
        "recurrent": model.shape.recurrent,
        "windowed_layers": model.shape.windowed,
    }


def _placement_data(placed: Placement) -> dict[str, Any]:
    def both(memories: tuple[Memory, Memory] | None) -> dict[str, Any] | None:
        if memories is None:
            return None
        return {"gpu": asdict(memories[0]), "memory": asdict(memories[1])}

    return {
        "fits": placed.fits,
        "whole": placed.whole,
        "gpu_layers": placed.gpu_layers,
        "all_layers": placed.all_layers,
        "gpu_bytes": placed.gpu_bytes,
        "memory_bytes": placed.system_bytes,
        "target": both(placed.target),
        "draft": both(placed.draft),
    }


def _plain(text: str) -> str:
    """A name out of a file that nobody vouches for, on one line and without controls."""
    return "".join(c for c in text if c.isprintable())[:120]
