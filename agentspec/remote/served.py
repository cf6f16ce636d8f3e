"""Which models a server has, and which program it is."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.aio import Stop
from agentspec.errors import BackendError, InvalidRequestError, ModelNotFoundError
from agentspec.remote.client import Client, why
from agentspec.remote.events import list_of, object_of, parsed, text_of

_MOST_CONTEXT = 1 << 31

_KINDS = {
    "agentspec": "agentspec",
    "vllm": "vllm",
    "llamacpp": "llama.cpp",
    "sglang": "sglang",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}
"""Who owns a model, by the list of models, -> the program."""
KINDS = ("agentspec", "vllm", "llama.cpp", "sglang", "openai")


@dataclass(frozen=True, slots=True)
class Served:
    """A model of a server; `n_ctx` 0 and `kind` "" are unknown."""

    name: str
    n_ctx: int = 0
    kind: str = ""


def served(client: Client, name: str = "", stop: Stop | None = None) -> Served:
    """What the server's list says of this model, of its first where none is named.

    Setting `stop` ends it.
    Raises ModelNotFoundError for an empty list, or none, without a name, BackendError for what is
    no list, and what `Client.get` raises.
    """
    try:
        models = _listed(client, stop or Stop())
    except InvalidRequestError as error:
        if name:
            raise
        raise ModelNotFoundError(f"no list of models, so name one: {error}") from error
    if not name:
        if not models:
            raise ModelNotFoundError(f"{client.url} serves no model; name one")
        name = text_of(models[0].get("id"))
    # an adapter or an alias may be missing in the list: the server is the same
    own = next((entry for entry in models if name in _names(entry)), None)
    owners = (text_of(entry.get("owned_by")).lower() for entry in ([own] if own else models))
    kind = next((_KINDS[owner] for owner in owners if owner in _KINDS), "")
    if own is None and kind == "llama.cpp" and len(models) == 1:
        own = models[0]  # it answers to every name
    return Served(name, _n_ctx(own or {}), kind)


def _names(entry: Mapping[str, Any]) -> list[str]:
    aliases = entry.get("aliases")
    return [
        text_of(each) for each in (entry.get("id"), *(aliases if isinstance(aliases, list) else ()))
    ]


def _listed(client: Client, stop: Stop) -> Sequence[Mapping[str, Any]]:
    try:
        listed = list_of(object_of(parsed(client.get("/models", stop))).get("data"))
        return [
            entry for entry in listed if isinstance(entry, Mapping) and text_of(entry.get("id"))
        ]
    except InvalidRequestError:
        raise  # which is a ValueError too
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BackendError(
            f"{client.url}/models cannot be read ({why(error)}); name the model"
        ) from error


def _n_ctx(entry: Mapping[str, Any]) -> int:
    meta = entry.get("meta")
    meta = meta if isinstance(meta, Mapping) else {}
    for value in (
        entry.get("max_model_len"),
        meta.get("n_ctx"),
        entry.get("context_length"),
        meta.get("n_ctx_train"),
    ):
        if type(value) is int and 0 < value <= _MOST_CONTEXT:
            return value
    return 0
