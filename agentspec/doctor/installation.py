"""Python, the llama.cpp build and the optional parts."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agentspec.doctor import Check, fail, ok, warn
from agentspec.errors import installing

TESTED_LLAMA = "0.3.36"
"""The llama-cpp-python whose C API and quirks this version was written for."""
_REBUILD = "pip install --force-reinstall --no-cache-dir llama-cpp-python==" + TESTED_LLAMA
# flags of a processor -> how the library's own line names them
_FLAGS = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512"}
_EXTRAS = {
    "chat": ("rich", "prompt_toolkit", "pathspec"),
    "server": ("starlette", "uvicorn"),
    "hub": ("huggingface_hub",),
    "torch": ("torch", "transformers", "safetensors", "gguf"),
    "bench": ("matplotlib", "plotext", "psutil"),
    "gpu": ("pynvml",),
}


def python() -> Iterator[Check]:
    from importlib.metadata import version

    said = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    said += f", agentspec {version('agentspec-engine')}"
    if sys.maxsize < 2**32:
        yield fail("python", f"{said}, 32 bits", "install a 64-bit Python")
    else:
        yield ok("python", said)


def llama() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    from agentspec.backends.llama_log import library

    lib = library()
    try:
        found = version("llama-cpp-python")
    except PackageNotFoundError:
        found = "of unknown version"
    if found == TESTED_LLAMA:
        yield ok("llama.cpp", f"llama-cpp-python {found}")
    else:
        yield warn(
            "llama.cpp",
            f"llama-cpp-python {found}; this agentspec was tested with {TESTED_LLAMA}",
            f"pip install llama-cpp-python=={TESTED_LLAMA}",
        )
    info = lib.llama_print_system_info().decode("utf-8", "replace")
    missing = missing_flags(info, cpu_flags())
    if missing:
        yield warn(
            "cpu kernels",
            f"the processor has {', '.join(missing)}, the build of llama.cpp does not use it",
            f"build it here: CMAKE_ARGS=-DGGML_NATIVE=ON {_REBUILD} --no-binary llama-cpp-python",
        )
    else:
        yield ok("cpu kernels", "built for this processor")
    yield from gpu(bool(lib.llama_supports_gpu_offload()))


def gpu(offload: bool) -> Iterator[Check]:
    """Whether a GPU that is there can be used by a build with or without `offload`."""
    name = _gpu_name()
    if name and not offload:
        metal = platform.system() == "Darwin"
        option = "-DGGML_METAL=on" if metal else "-DGGML_CUDA=on"
        yield warn(
            "gpu",
            f"there is {name}, but llama.cpp was built without GPU support and will not use it",
            f"CMAKE_ARGS={option} {_REBUILD} --no-binary llama-cpp-python",
        )
    elif name:
        yield ok("gpu", f"{name}, and llama.cpp can use it")
    elif offload:
        yield ok("gpu", "llama.cpp can use one; none was recognised here")
    else:
        yield ok("gpu", "none was recognised; everything runs on the processor")


def extras() -> Iterator[Check]:
    if find_spec("llguidance") is None:
        yield warn(
            "constraints",
            "llguidance is not installed: tool calls and schemas cannot be enforced",
            f"in the clone of agentspec: {installing('llama')}",
        )
    lacking = [
        name for name, modules in _EXTRAS.items() if any(find_spec(m) is None for m in modules)
    ]
    said = "all optional parts are installed"
    if lacking:
        said = "not installed, needed for these alone, in the clone: " + ", ".join(
            f"{name} ({installing(name)})" for name in lacking
        )
    yield ok("extras", said)


def missing_flags(system_info: str, flags: frozenset[str]) -> list[str]:
    """Instruction sets that the processor has and the build does not use."""
    used = {part.split("=")[0].strip() for part in system_info.replace(":", "|").split("|")}
    return [name for flag, name in _FLAGS.items() if flag in flags and name not in used]


def cpu_flags() -> frozenset[str]:
    """Instruction sets of the processor, as Linux names them; empty elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def _gpu_name() -> str:
    from agentspec.models.gpu import known_gpus

    gpus = known_gpus()
    if gpus:
        return gpus[0].name
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "an Apple GPU"
    return "an NVIDIA GPU" if Path("/dev/nvidia0").exists() else ""
