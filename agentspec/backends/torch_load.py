"""From a model directory, a GGUF file or a name on the hub to a loaded model and its tokenizer.

Nothing of a checkpoint is executed: safetensors and GGUF only, no code from the repository.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentspec.backends.pickles import pickles
from agentspec.backends.torch_settings import (
    Libraries,
    TorchSettings,
    chosen_device,
    chosen_dtype,
)
from agentspec.errors import (
    AgentspecError,
    ConfigError,
    MissingExtraError,
    ModelFileError,
    UnknownModelError,
    line_of,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device, its tokenizer and its chat template."""

    model: Any
    tokenizer: Any
    template: str | None
    device: Any


def open_model(path: Path, settings: TorchSettings, libraries: Libraries) -> Loaded:
    """Load a directory or a .gguf file.

    Raises UnknownModelError, ModelFileError, ConfigError and MissingExtraError.
    """
    torch = libraries.torch
    device = chosen_device(torch, settings)
    if path.is_dir():
        check_folder(path)
        with _named(path), _quiet(libraries):
            return _from_folder(path, settings, libraries, device)
    if not path.is_file():
        raise UnknownModelError(f"there is no file or folder {path}")
    with _named(path), _quiet(libraries):
        return _from_gguf(path, settings, libraries, device)


def check_folder(path: Path) -> None:
    """Raises ModelFileError unless it holds a config.json and weights in safetensors."""
    if not (path / "config.json").is_file():
        raise ModelFileError(f"{path} is not a model directory: it has no config.json")
    if any(path.glob("*.safetensors")):
        return
    found = pickles(path)
    if found:
        raise ModelFileError(
            f"{path} holds its weights as {found[0].name}, a pickle, which runs code when it is "
            "opened; take the model's safetensors, or convert it where you trust it"
        )
    raise ModelFileError(f"{path} holds no weights (*.safetensors)")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever the libraries raise, as one line that names the model."""
    try:
        yield
    except (AgentspecError, MemoryError):
        raise
    except ImportError as error:
        raise MissingExtraError(error.name or line_of(error), "torch") from error
    except Exception as error:
        raise ModelFileError(f"transformers cannot load {path}: {line_of(error)}") from error


@contextlib.contextmanager
def _quiet(libraries: Libraries) -> Iterator[None]:
    """Without progress bars and advice to programmers."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _from_folder(path: Path, settings: TorchSettings, libraries: Libraries, device: Any) -> Loaded:
    transformers = libraries.transformers
    config = transformers.AutoConfig.from_pretrained(
        path, trust_remote_code=False, local_files_only=True
    )
    dtype = chosen_dtype(
        libraries.torch, settings, device, getattr(config, "dtype", None) or "float32"
    )
    spread = {"device_map": "auto"} if settings.device == "map" else {}
    if spread and find_spec("accelerate") is None:
        raise ConfigError("device map needs accelerate; install it with: pip install accelerate")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        **spread,
    )
    if not spread:
        model = model.to(device)
    text = transformers.AutoTokenizer.from_pretrained(
        path, trust_remote_code=False, local_files_only=True
    )
    return _finished(model, text, _template_of(text), device, settings)


def _from_gguf(path: Path, settings: TorchSettings, libraries: Libraries, device: Any) -> Loaded:
    from agentspec.backends.torch_gguf import open_dense

    if settings.device == "map":
        raise ConfigError(f"{path} is a GGUF file: device map is for model folders")
    dtype = chosen_dtype(libraries.torch, settings, device, "bfloat16")
    model, template = open_dense(path, libraries.transformers, dtype)
    text = _gguf_tokenizer(path, libraries.transformers)
    return _finished(model.to(device), text, template, device, settings)


def _gguf_tokenizer(path: Path, transformers: Any) -> Any:
    """llama.cpp's own where it is installed, so that the tokens are those it makes."""
    try:
        from agentspec.backends.llama_vocab import open_vocabulary

        return open_vocabulary(path)
    except MissingExtraError:
        return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _finished(
    model: Any, text: Any, template: str | None, device: Any, settings: TorchSettings
) -> Loaded:
    from agentspec.backends.llama_tokenizer import LlamaTokenizer
    from agentspec.backends.torch_tokenizer import TorchTokenizer

    _attend(model, apart=settings.apart)
    model.eval()
    model.requires_grad_(False)
    tokenizer = text
    if not isinstance(text, LlamaTokenizer):
        vocab = int(model.config.get_text_config(decoder=True).vocab_size)
        tokenizer = TorchTokenizer(text, vocab_size=vocab, eos_ids=_ends(model))
    return Loaded(model, tokenizer, template, device)


def _ends(model: Any) -> list[int]:
    """What the model's files call the end of an answer."""
    found: list[int] = []
    for told in (getattr(model, "generation_config", None), model.config):
        ids = getattr(told, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return [token for token in found if isinstance(token, int) and token >= 0]


def _template_of(text: Any) -> str | None:
    told = getattr(text, "chat_template", None)
    if isinstance(told, dict):
        told = told.get("default") or next(iter(told.values()), None)
    return told if isinstance(told, str) and told else None


def _attend(model: Any, *, apart: bool) -> None:
    """Our attention where transformers' own for it would do, else the plain one."""
    from agentspec.backends.torch_attention import APART, NAME, register

    register()
    usual = model.config._attn_implementation == "sdpa"
    model.set_attn_implementation((APART if apart else NAME) if usual else "eager")
