"""The `vllm serve` command of a pair: what it says, whether vLLM takes it, what memory it needs.

vLLM itself is never imported. What it takes and refuses was read from the sources of `VERSION`.
"""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.32"
