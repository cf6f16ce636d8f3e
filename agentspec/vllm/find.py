"""From the name of a model to what is known of it: a folder, the built-in table, or the hub."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from agentspec.errors import DownloadError, MissingExtraError
from agentspec.models.hub import CONNECT_SECONDS, one_line
from agentspec.models.snapshot import PREFIX
from agentspec.vllm.facts import ModelFacts
from agentspec.vllm.folder import UnsaidError, read_config, read_folder, read_json
from agentspec.vllm.published import find_published

_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# what the hub calls a number format -> bytes when vLLM has loaded it
_BYTES = {"F32": 2, "F64": 2, "F16": 2, "BF16": 2, "I32": 4, "I64": 8}


def named(text: str) -> tuple[str, str | None]:
    """The name that vLLM takes for a folder or a model of the hub, and the revision in it."""
    if text.startswith(PREFIX):
        name, _, revision = text.removeprefix(PREFIX).partition("@")
        return name, revision or None
    # a shell that reads the command expands no ~ inside quotes; whose home is not known stays
    return os.path.expanduser(text), None


def find(name: str, *, revision: str | None = None) -> tuple[ModelFacts | None, str]:
    """What is known of a model, or None and the reason, in one line.

    The hub is asked only for names that are neither a folder nor in the table, only with
    huggingface_hub installed, and for a few kilobytes: no weights are fetched. Raises
    ModelFileError where a folder's files make no sense.
    """
    folder = Path(name)
    # as os.path has it: what can be no path is no folder
    if os.path.isdir(name):
        if (folder / "params.json").is_file() and not (folder / "config.json").is_file():
            return None, "its configuration is in Mistral's own form, which is not read here"
        try:
            return read_folder(folder, name), ""
        except UnsaidError as error:
            return None, str(error)
    if folder.suffix.lower() == ".gguf":
        return None, "it is a GGUF file, which vLLM reads by a plugin of its own"
    if known := find_published(name):
        return known, ""
    if not _HUB.fullmatch(name):
        return None, "no such folder, and no model of the hub has such a name"
    try:
        return _from_hub(name, revision), ""
    except (DownloadError, MissingExtraError, UnsaidError) as error:
        return None, str(error)


def _from_hub(repo: str, revision: str | None) -> ModelFacts:
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hub") from error
    # the library reads its environment once, at import; a later change is honoured here
    asked = os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES
    why = "HF_HUB_OFFLINE is set" if asked or constants.HF_HUB_OFFLINE else ""
    if not why:
        # one request, asked once: a download would try for half a minute where there is no network
        try:
            url = hub.hf_hub_url(repo, "config.json", revision=revision)
            hub.get_hf_file_metadata(url, timeout=CONNECT_SECONDS)
        except Exception as error:  # whatever its HTTP library raises, which depends on its version
            why = one_line(error)
    try:
        path = hub.hf_hub_download(
            repo, "config.json", revision=revision, local_files_only=bool(why)
        )
    except Exception as error:
        raise DownloadError(f"Hugging Face ({repo}): {why or one_line(error)}") from error
    loaded = None
    if not why:
        # without it the shape tells about the same
        with contextlib.suppress(Exception):
            counts = hub.get_safetensors_metadata(repo, revision=revision).parameter_count
            loaded = sum(n * _BYTES.get(kind, 1) for kind, n in counts.items())
    return read_config(
        read_json(Path(path)),
        name=repo,
        source=f"config.json of {repo} on Hugging Face",
        loaded=loaded,
    )
