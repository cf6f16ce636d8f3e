"""The target's file: whether it is the one it says, its template, its calls, its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.doctor import Check, fail, ok, warn

if TYPE_CHECKING:
    from agentspec.config import Settings
    from agentspec.models.catalog import Entry, Resolved


def find(chosen: Settings) -> Resolved:
    """The target that the settings choose. Raises ModelNotFoundError."""
    from agentspec.models import catalog

    if chosen.model is None:
        return catalog.default_target(chosen.models_dir)
    return catalog.resolve(chosen.model, chosen.models_dir)


def model(chosen: Settings, *, measure: bool) -> Iterator[Check]:
    from agentspec.backends.llama_params import check_file

    found = find(chosen)
    header = check_file(found.path)
    trained = header.number("context_length") or 0
    name = found.entry.name if found.entry else found.path.name
    yield ok(
        "model",
        f"{name}: {_plain(header.architecture)}, {header.n_parameters / 1e9:.2f} billion weights, "
        f"{found.path}",
    )
    yield _checksum(found.path, found.entry, measure=measure)
    if 0 < trained < chosen.n_ctx:
        yield warn(
            "context",
            f"n_ctx is {chosen.n_ctx}, but the model was trained for {trained} tokens",
            f"agentspec config set n_ctx {trained}",
        )
    else:
        yield ok("context", f"{chosen.n_ctx} tokens, of {trained or 'unknown'} it was trained for")


def template(chosen: Settings) -> Iterator[Check]:
    from agentspec.chat.template import load_template
    from agentspec.chat.tools.formats import detect
    from agentspec.models.gguf import read_header
    from agentspec.wire import Message

    found = find(chosen)
    header = read_header(found.path)
    packaged = found.entry.template if found.entry else None
    if not (chosen.template or header.chat_template or packaged):
        yield fail(
            "template",
            "the file holds no chat template",
            "name one: agentspec config set template chatml, or give --template",
        )
        return
    chat = load_template(
        header.chat_template, bos="", eos="", template=chosen.template, fallback=packaged
    )
    chat.render([Message(role="system", content="s"), Message(role="user", content="u")])
    where = "the settings'" if chosen.template else "its own" if header.chat_template else packaged
    calls = detect(chat.source, header.architecture).name
    if chat.mentions("tools"):
        yield ok("template", f"{where} template works; it writes calls in the format {calls}")
    else:
        yield warn(
            "template",
            f"{where} template does not know tools; they are described to the model in the system "
            f"message, and calls are read as {calls}",
            "for an agent prefer a model that was trained to call tools",
        )


def memory(chosen: Settings) -> Iterator[Check]:
    from agentspec.errors import BackendError, MissingExtraError
    from agentspec.loading import gpu_in_use
    from agentspec.models.gpu import read_gpus, system_memory
    from agentspec.models.memory import Load, ModelSize
    from agentspec.models.plan import Room, place

    found = find(chosen)
    _, free = system_memory()
    if not free:
        yield ok("memory", "this system does not say how much is free")
        return
    gpu: int | None = None
    if gpu_in_use(chosen):
        try:
            gpu = max((card.free for card in read_gpus()), default=None)
        except (MissingExtraError, BackendError):
            yield ok("memory", "the GPU does not say how much is free")
            return
    load = Load(
        n_ctx=chosen.n_ctx,
        kv_type=chosen.kv_type,
        sequences=1 if chosen.exact else chosen.max_sessions,
        chunk=chosen.n_batch,
        flash_attn=chosen.flash_attn != "off",
    )
    placed = place(ModelSize.of(found.path), None, load, Room(gpu, free))
    held = f"about {placed.system_bytes / 2**30:.1f} GiB of {free / 2**30:.1f} GiB free memory"
    if gpu is not None:
        held += f", {placed.gpu_bytes / 2**30:.1f} GiB of {gpu / 2**30:.1f} GiB on the GPU"
    advice = (
        f"see what to give up: agentspec plan {found.entry.name if found.entry else found.path}"
    )
    if placed.whole:
        yield ok("memory", held)
    elif placed.fits:
        yield warn("memory", f"{held}; not all layers fit on the GPU", advice)
    else:
        yield warn("memory", f"{held}: it does not fit and will swap or fail", advice)


def _checksum(path: Path, entry: Entry | None, *, measure: bool) -> Check:
    if entry is None:
        return ok("checksum", "not a file of the catalog: nobody vouches for it")
    if measure:
        from agentspec.models.pull import verify

        wrong = [each for each in verify(entry, dir=path.parent.parent) if each.ok is False]
        if wrong and wrong[0].expected is not None:
            again = f"agentspec models pull {entry.name}"
            return fail("checksum", f"{path} holds other bytes than expected", again)
        return ok("checksum", "hashed now, the bytes are the expected ones")
    advice = f"agentspec models verify {entry.name}"
    try:
        record = json.loads(path.with_name(path.name + ".json").read_text("utf-8"))
        stat = path.stat()
        same = (record["size"], record["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError, LookupError, TypeError):
        return warn("checksum", "not known: the file was not pulled by agentspec", advice)
    if not same:
        return warn("checksum", "the file was changed since it was pulled", advice)
    known = entry.files[0].sha256
    if known is not None and record.get("sha256") != known:
        return warn("checksum", "the catalog names another one now", advice)
    return ok("checksum", "was right when it was pulled, and the file is unchanged")


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:40]
