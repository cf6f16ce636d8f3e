"""The GPUs of this machine and its own memory, read without loading anything onto them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import BackendError, MissingExtraError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `total` and `free` are bytes."""

    name: str
    total: int
    free: int


def read_gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine, through NVML.

    Raises MissingExtraError without nvidia-ml-py, BackendError where no driver answers.
    """
    try:
        import pynvml
    except ImportError:
        raise MissingExtraError("nvidia-ml-py", "gpu") from None
    try:
        pynvml.nvmlInit()
        try:
            found = []
            for i in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(i)
                name = pynvml.nvmlDeviceGetName(handle)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
                found.append(Gpu(text, int(memory.total), int(memory.free)))
            return found
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise BackendError(f"no NVIDIA driver answers: {error}") from None


def known_gpus() -> list[Gpu]:
    """As `read_gpus`, none where they cannot be read."""
    try:
        return read_gpus()
    except (MissingExtraError, BackendError):
        return []


def system_memory() -> tuple[int, int]:
    """Bytes of memory that this machine has, and that are free to be used; 0 where unknown."""
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        fields = {
            name: int(rest.split()[0]) << 10 for name, _, rest in (r.partition(":") for r in rows)
        }
        return fields["MemTotal"], fields["MemAvailable"]
    except (OSError, ValueError, LookupError):
        pass
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0, 0
    return total, total
