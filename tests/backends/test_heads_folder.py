"""Which file of a folder holds the heads, and what is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.backends.torch_heads import UNFINISHED, read_heads
from agentspec.errors import ModelFileError, ModelNotFoundError

pytest.importorskip("safetensors")


def test_a_training_that_is_not_finished_is_named(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).mkdir()
    with pytest.raises(ModelFileError, match=r"not finished; go on with it: .*train-heads"):
        read_heads(tmp_path)


def test_folders_without_heads(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no heads at"):
        read_heads(tmp_path / "absent")
    with pytest.raises(ModelFileError, match="holds 0 safetensors"):
        read_heads(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").touch()
    with pytest.raises(ModelFileError, match="holds 2 safetensors files; name the one"):
        read_heads(tmp_path)
