"""A whole model of the Hugging Face hub as a folder: configuration, tokenizer, safetensors."""

from __future__ import annotations

import re
from pathlib import Path

from agentspec.errors import ConfigError, DownloadError, MissingExtraError, ModelFileError
from agentspec.models.hub import one_line

PREFIX = "hf:"
_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors")
"""Neither pickles nor code."""


def is_hub_name(text: str) -> bool:
    """True for `hf:org/name` and `hf:org/name@revision`."""
    return text.startswith(PREFIX)


def snapshot(name: str) -> Path:
    """The folder of `hf:org/name[@revision]`, downloaded into the hub's own cache when needed.

    Its settings hold: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Raises ConfigError for a
    name of another form, DownloadError, ModelFileError when the model has no safetensors, and
    MissingExtraError.
    """
    found = _NAME.fullmatch(name.removeprefix(PREFIX))
    if found is None:
        raise ConfigError(f"{name!r} is no model of the hub; write hf:org/name or hf:org/name@tag")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hub") from error
    repo = found["repo"]
    try:
        folder = Path(
            snapshot_download(repo, revision=found["revision"], allow_patterns=list(_FILES))
        )
    except Exception as error:  # whatever its HTTP library raises, which depends on its version
        raise DownloadError(f"Hugging Face ({repo}): {one_line(error)}") from error
    if not any(folder.glob("*.safetensors")):
        raise ModelFileError(
            f"{repo} offers no weights as safetensors; agentspec opens no pickles (*.bin)"
        )
    return folder
