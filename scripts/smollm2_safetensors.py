"""Writes SmolLM2-135M-Instruct as a model folder (safetensors, float32) for servers that take one.

usage: python scripts/smollm2_safetensors.py FOLDER

The weights are those of the catalog's GGUF file (`agentspec models pull smollm2-135m`), unpacked;
a folder that is complete is kept. Needs the torch extra.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from agentspec.errors import AgentspecError
from agentspec.models import catalog

NAME = "smollm2-135m"


def write(folder: Path) -> None:
    """Raises ModelNotFoundError, ModelFileError and MissingExtraError."""
    import torch
    import transformers

    from agentspec.backends.torch_gguf import open_dense

    path = catalog.resolve(NAME).path
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, template = open_dense(path, transformers, torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.chat_template = template
    # the GGUF header names the end of an answer; the end of a document is one too
    ends = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    model.generation_config.eos_token_id = sorted(ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    if (folder / "config.json").exists():
        print(f"{folder} is there already")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        try:
            write(Path(made) / "model")
        except AgentspecError as error:
            sys.exit(f"error: {error}")
        # complete or not there: what was broken off would be taken for a model
        os.replace(Path(made) / "model", folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
