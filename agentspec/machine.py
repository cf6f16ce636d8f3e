"""What a report says about the machine: processor, cores, memory; never names or paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """How many processes ran or waited for a core, of late; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def describe() -> dict[str, object]:
    """Processor, cores, architecture, system and Python version."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "arch": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
