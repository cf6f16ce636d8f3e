"""From a name or path and settings to a loaded engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentspec.config import Settings, load_settings
from agentspec.control.rows import ANY_ROWS
from agentspec.engine.typical import Typical, lossy_rule
from agentspec.errors import ConfigError
from agentspec.loading_heads import check_asked, inner_of
from agentspec.loading_torch import model_folder, open_torch, takes_torch, torch_key

if TYPE_CHECKING:
    from agentspec.api import Engine
    from agentspec.audit.calibrate import Calibration
    from agentspec.backends.base import Backend
    from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings
    from agentspec.backends.torch import TorchBackend
    from agentspec.context.library import Library
    from agentspec.control.cost import CostCurve
    from agentspec.drafting import MakeProposer
    from agentspec.models.catalog import Resolved

    Opened = LlamaCppBackend | TorchBackend

NO_DRAFT = "none"
"""The value of `draft` that leaves a catalog pair's draft model unloaded."""


def load_engine(
    model: str | os.PathLike[str] | None = None,
    *,
    draft: str | os.PathLike[str] | None = None,
    template: str | None = None,
    wrap: Callable[[Backend], Backend] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    project_dir: Path | None = None,
    proposers: Sequence[MakeProposer] = (),
    lossy: Typical | Literal["typical"] | None = None,
    **settings: Any,
) -> Engine:
    """Load target, draft model and template as flags, environment and files say.

    `workspace` is a folder whose files answers may repeat: they are indexed, and the index is kept.
    `project_dir` is as of `load_settings`.

    `proposers` make further proposers, each given the target's tokenizer: one for each live
    sequence. Whatever these propose, texts stay the target's own.

    `lossy` is "typical" for Medusa's typical acceptance of sampled answers, whose law is then not
    the target's. It is an argument and no setting: no file or environment can ask for it.

    `wrap` puts a backend of the caller's around the target, e.g. `agentspec.audit.record.Recorder`.

    Without `draft`, a catalog pair's draft model is loaded only where the target's layers are on
    a GPU: on a CPU a draft pass costs half a target pass and cannot pay.
    """
    # flags that may be given several times are empty when they were not given
    settings["heads"] = _listed(settings.get("heads"))
    chosen = load_settings(
        {"model": _text(model), "draft": _text(draft), **settings}, project_dir=project_dir
    )
    rule = lossy_rule(lossy, exact=chosen.exact)
    resolved = resolve(chosen)
    check_asked(chosen, torch=takes_torch(Path(resolved.path), chosen))
    target = open_backend(resolved.path, chosen)
    helper = None
    try:
        helper, reencode = _open_draft(target, resolved, chosen)
        return _assemble(
            target,
            helper,
            reencode,
            resolved,
            chosen,
            template or chosen.template,
            wrap,
            workspace,
            proposers,
            rule,
        )
    except BaseException:
        for backend in (helper, target):
            if backend is not None:
                backend.close()
        raise


def open_backend(path: str | os.PathLike[str], settings: Settings) -> Opened:
    """A backend of one GGUF file or model folder with these settings."""
    if takes_torch(Path(path), settings):
        return open_torch(path, settings)
    from agentspec.backends.llama_cpp import LlamaCppBackend

    chosen = llama_settings(settings)
    try:
        return LlamaCppBackend(path, chosen)
    except ConfigError:
        if chosen.type_k == settings.kv_type:
            raise
        # heads of a width that quantised keys do not take; what holds now, calibration finds
        return LlamaCppBackend(path, replace(chosen, type_k=settings.kv_type))


def llama_settings(settings: Settings) -> LlamaSettings:
    """Settings of the llama.cpp backend; exact mode takes those whose kernels agree.

    On a CPU the rows of a pass come out bit-equal for 1 to 7 rows (Q4_K) when weights are not
    repacked and the attention of one row takes the same kernel as that of several: llama.cpp
    splits it over the cache from 512 cells on unless the keys are quantised.
    """
    from agentspec.backends.llama_cpp import LlamaSettings

    exact_on_cpu = settings.exact and not gpu_in_use(settings)
    return LlamaSettings(
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads or None,
        n_gpu_layers=settings.n_gpu_layers,
        type_k="q8_0" if exact_on_cpu and settings.kv_type == "f16" else settings.kv_type,
        type_v=settings.kv_type,
        flash_attn=settings.flash_attn != "off",
        mmap=settings.mmap,
        repack=not exact_on_cpu,
        # rounding depends on what else is in the cache: an exact engine has one sequence
        max_seqs=1 if settings.exact else settings.max_sessions,
        chunk=settings.n_batch,
    )


def gpu_in_use(settings: Settings) -> bool:
    """True when this build of llama.cpp will put layers on a GPU."""
    from agentspec.backends.llama_log import library

    return settings.n_gpu_layers != 0 and bool(library().llama_supports_gpu_offload())


def resolve(settings: Settings) -> Resolved:
    """The target that the settings name, on disk. Raises what the catalog and the hub raise."""
    from agentspec.models import catalog

    if settings.model is None:
        return catalog.default_target(settings.models_dir)
    return _named(settings.model, settings)


def _named(name: str, settings: Settings) -> Resolved:
    """What a name of the settings stands for, on disk."""
    from agentspec.models import catalog

    folder = model_folder(name, settings)
    if folder is not None:
        return catalog.Resolved(folder)
    return catalog.resolve(name, settings.models_dir)


def _on_gpu(model: Opened, settings: Settings) -> bool:
    on_gpu = getattr(model, "on_gpu", None)
    return gpu_in_use(settings) if on_gpu is None else bool(on_gpu)


def _chunk(target: Opened, settings: Settings) -> int:
    """Tokens of a prompt that are read in one pass.

    A cancel is heard between passes, and others wait for one: small ones where it takes seconds.
    """
    return settings.n_batch if _on_gpu(target, settings) else min(settings.n_batch, 128)


def _open_draft(
    target: Opened, resolved: Resolved, settings: Settings
) -> tuple[Opened | None, bool]:
    """The draft model, and whether its vocabulary is another, so that it drafts by its text."""
    if settings.draft == NO_DRAFT or not settings.speculation:
        return None, False
    if settings.draft is not None:
        path = _named(settings.draft, settings).path
    elif resolved.draft is not None and _on_gpu(target, settings):
        path = resolved.draft
    else:
        return None, False
    # it reads a long prompt in as small pieces as its target does
    draft = open_backend(path, replace(settings, n_batch=_chunk(target, settings)))
    try:
        from agentspec.backends.pair import must_reencode

        allowed = settings.draft_reencode
        return draft, must_reencode(target.tokenizer, draft.tokenizer, allowed=allowed)
    except BaseException:
        draft.close()
        raise


def _assemble(
    target: Opened,
    draft: Opened | None,
    reencode: bool,
    resolved: Resolved,
    settings: Settings,
    template: str | None,
    wrap: Callable[[Backend], Backend] | None,
    workspace: str | os.PathLike[str] | None,
    proposers: Sequence[MakeProposer],
    lossy: Typical | None,
) -> Engine:
    from agentspec.api import Engine
    from agentspec.audit.calibrate import exact_rows
    from agentspec.chat.template import load_template
    from agentspec.engine.kept import SessionStore, session_key

    tokenizer = target.tokenizer
    rows = ANY_ROWS
    if settings.exact:
        rows = exact_rows(_calibration(target, settings))
    chat = load_template(
        target.chat_template(),
        bos=_piece(tokenizer, tokenizer.bos_id),
        eos=_piece(tokenizer, tokenizer.eos_id),
        template=template,
        fallback=resolved.entry.template if resolved.entry else None,
    )
    key = session_key(_identity(target), chat.source, settings.sessions_salt or "")
    store = None
    if settings.sessions_dir is not None:
        store = SessionStore(settings.sessions_dir, key, budget=settings.sessions_mb << 20)
    return Engine(
        wrap(target) if wrap else target,
        draft=draft,
        draft_reencode=reencode,
        model=title(resolved),
        template=chat,
        max_tokens=settings.max_tokens,
        rows=rows,
        exact=settings.exact,
        lossy=lossy,
        speculation=settings.speculation,
        cost=_cost(target, draft, settings) if settings.speculation else None,
        chunk=_chunk(target, settings),
        max_sessions=settings.max_sessions,
        sessions=store,
        session_key=key,
        normalise=() if settings.normalise == "off" else (settings.normalise,),
        library=_library(target, workspace) if settings.speculation else None,
        inner=inner_of(target, settings),
        proposers=proposers,
    )


def title(resolved: Resolved) -> str:
    """What a model is called in answers."""
    if resolved.entry is not None:
        return resolved.entry.name
    # the name of a folder may have a dot in it
    return resolved.path.name if resolved.path.is_dir() else resolved.path.stem


def _identity(target: Opened) -> str:
    from agentspec.backends.llama_vocab import file_identity

    found = getattr(target, "identity", None)
    return file_identity(target.path) if found is None else str(found)


def _library(target: Opened, workspace: str | os.PathLike[str] | None) -> Library | None:
    from agentspec.context.library import Library

    if workspace is None:
        return None
    return Library(workspace, target.tokenizer, identity=_identity(target))


def _cost(target: Opened, draft: Opened | None, settings: Settings) -> CostCurve:
    """What passes cost on this device, as kept from earlier if that still holds."""
    from agentspec.control.cost_store import learned_cost

    return learned_cost(
        speed_key(target, settings),
        target,
        draft=draft,
        draft_key=speed_key(draft, settings) if draft is not None else None,
    )


def speed_key(model: Opened, settings: Settings) -> dict[str, Any]:
    """Everything a pass's time depends on, its quantisation included: that is in the file."""
    key = _device_key(model, settings)
    # these change how much is held and where a prompt is cut, not what a pass computes
    for name in ("n_ctx", "mmap", "chunk", "max_seqs"):
        key["settings"].pop(name, None)
    if "device" in key:
        return key
    from agentspec.backends.llama_devices import devices

    return {**key, "devices": devices()}


def _calibration(target: Opened, settings: Settings) -> Calibration:
    """What this device does with this file and these settings, measured once and kept."""
    from agentspec.audit.calibrate import CONTEXTS, COUNTS, calibrate
    from agentspec.audit.store import cached_calibration

    key = {**_device_key(target, settings), "tried": [COUNTS, CONTEXTS]}
    return cached_calibration(key, lambda: calibrate(target))


def _device_key(model: Opened, settings: Settings) -> dict[str, Any]:
    """The file, settings (threads among them), library and processor of a loaded model."""
    from agentspec.backends.torch import TorchBackend

    if isinstance(model, TorchBackend):
        return torch_key(model)
    from importlib.metadata import version

    from agentspec.machine import cores, cpu_model

    stat = model.path.stat()
    return {
        "file": [model.path.name, stat.st_size, stat.st_mtime_ns],
        "settings": asdict(model.settings),
        "gpu": gpu_in_use(settings),
        "library": version("llama-cpp-python"),
        "cpu": [cpu_model(), cores()],
    }


def _piece(tokenizer: Any, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")


def _listed(value: Any) -> Any:
    """Paths as a list of texts, also a single one; None for nothing."""
    if isinstance(value, (str, os.PathLike)):
        return [os.fspath(value)]
    if isinstance(value, (list, tuple)):
        return [os.fspath(v) if isinstance(v, os.PathLike) else v for v in value] or None
    return value


def _text(value: str | os.PathLike[str] | None) -> str | None:
    return None if value is None else os.fspath(value)


def describe(settings: Settings) -> Mapping[str, object]:
    """Settings that change speed or text, for reports."""
    keys = (
        "backend", "device", "dtype", "n_ctx", "n_threads", "n_gpu_layers", "kv_type",
        "flash_attn", "speculation", "exact",
    )  # fmt: skip
    return {key: getattr(settings, key) for key in keys}
