"""llama.cpp on the device: built from carried sources, its cost curve, and `verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from scripts.device_gguf import EIGHT_BILLION, TINY, write_random
from scripts.device_measure import ROWS, Found, answers, curves, equal_rows, texts_of

NVCC = Path("/usr/local/cuda/bin/nvcc")
"""Where it is when it is not on the path."""
_PROMPT = (
    "Rename the class below and write the whole file again.\n\n```python\nclass Rows:\n"
    "    def __init__(self, rows):\n        self.rows = rows\n\n"
    "    def first(self):\n        return self.rows[0]\n```\n"
)


def build(sources: Path, work: Path, log: Path) -> None:
    """Compile llama.cpp with CUDA; done when `work`/done is there. Raises RuntimeError."""
    done = work / "done"
    if done.exists():
        return
    if not sources.exists():
        raise RuntimeError(f"there is no {sources.name}; scripts/device_pack.sh makes it")
    tree = work / "llama"
    if not tree.exists():
        part = work / "llama.part"
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(sources) as packed:
            packed.extractall(part, filter="data")
        part.rename(tree)
    nvcc = Path(shutil.which("nvcc") or NVCC)
    if not nvcc.exists():
        raise RuntimeError("there is no nvcc here")
    configure = [
        *("cmake", "-S", str(tree / "llama.cpp"), "-B", str(work / "build")),
        *(("-G", "Ninja") if shutil.which("ninja") else ()),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DCMAKE_CUDA_ARCHITECTURES={_architecture()}",
        *("-DBUILD_SHARED_LIBS=ON", "-DGGML_CUDA=ON", "-DGGML_NATIVE=ON", "-DGGML_CCACHE=OFF"),
        # without the driver's own library, which is not there where one only compiles
        "-DGGML_CUDA_NO_VMM=ON",
        *(
            f"-DLLAMA_BUILD_{part}=OFF"
            for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")
        ),
        *("-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF"),
    ]
    compile_all = ["cmake", "--build", str(work / "build"), "--target", "llama", "--parallel"]
    with log.open("w") as out:
        for command in (configure, [*compile_all, str(os.cpu_count() or 1)]):
            if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode:
                raise RuntimeError(f"{' '.join(command[:2])} failed: {_end(log)}")
    done.touch()


def _architecture() -> str:
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20,
        ).stdout  # fmt: skip
        return told.split()[0].replace(".", "") + "-real"
    except (OSError, IndexError, subprocess.SubprocessError):
        return "90-real"


def _end(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    bad = [line for line in lines if "error" in line.lower()] or lines
    return " ".join(bad[-1].split())[:300] if bad else "it said nothing"


def use_build(work: Path) -> None:
    """Have `import llama_cpp` find the library that was built, and the carried binding."""
    libraries = work / "build" / "bin"
    if libraries.exists():
        os.environ["LLAMA_CPP_LIB_PATH"] = str(libraries)
        sys.path.insert(0, str(work / "llama"))


def write_model(path: Path, *, smoke: bool) -> dict[str, Any]:
    """A random model, unless it is there already; its size and how long it took."""
    begun = time.monotonic()
    if path.exists():
        return {"bytes": path.stat().st_size, "seconds": 0.0}
    part = path.with_suffix(".part")
    size = write_random(part, TINY if smoke else EIGHT_BILLION)
    part.rename(path)
    return {"bytes": size, "seconds": round(time.monotonic() - begun, 2)}


def measure(path: Path, until: float, found: Found, *, smoke: bool) -> None:
    """Cost curves, equal bits, the engine's own time and `verify` of one GGUF file."""
    from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

    contexts = (32, 64) if smoke else (1024, 8192, 32_768)
    rows = (1, 2, 4, 8) if smoke else ROWS
    # a test shares its cores
    threads = 1 if smoke else None
    begun = time.monotonic()
    settings = LlamaSettings(
        n_ctx=contexts[-1] + 512, n_threads=threads, chunk=64 if smoke else 512
    )
    backend = LlamaCppBackend(path, settings)
    try:
        found("model", backend.description())
        found("offload", bool(backend._lib.llama_supports_gpu_offload()))
        found("load_seconds", round(time.monotonic() - begun, 2))
        # the longest context last: what is cut off then is what matters least
        costs = curves(backend, contexts[:-1], until, found, rows)
        found("equal_rows", equal_rows(backend, contexts[0], rows))
        prompts = texts_of(min(backend.vocab_size, 256), contexts[0] // 2, 2)
        found("engine", answers(backend, prompts, 16 if smoke else 128, costs, until))
        found("memory_bytes", _used())
    finally:
        backend.close()
    try:
        found("verify", _verified(path, threads, 12 if smoke else 96))
    except Exception as error:
        # what comes after it is worth having all the same
        said = " ".join(str(error).split())[:300]
        found("verify", {"failed": f"{type(error).__name__}: {said}"})
    if time.monotonic() < until:
        backend = LlamaCppBackend(path, settings)
        try:
            curves(backend, contexts[-1:], until, found, rows)
        finally:
            backend.close()


def _verified(path: Path, threads: int | None, most: int) -> dict[str, Any]:
    try:
        from agentspec.api import Engine
        from agentspec.audit.verify import verify
        from agentspec.chat.template import load_template
    except ImportError as error:
        return {"skipped": f"{error.name} is not installed here and was not carried"}
    from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

    def load(wrap: Any) -> Any:
        target = LlamaCppBackend(path, LlamaSettings(n_ctx=2048, n_threads=threads))
        return Engine(wrap(target), template=load_template(target.chat_template(), bos="", eos=""))

    prompts: list[Any] = [([{"role": "user", "content": _PROMPT * n}], []) for n in (1, 2)]
    report = verify(load, prompts, max_tokens=most, speculation={"k": 6})
    told = report.as_dict()
    return {
        "tokens": told["tokens"],
        "equal": sum(c["verdict"] == "equal" for c in told["comparisons"]),
        "ties": told["ties"],
        "defects": told["defects"],
    }


def _used() -> int | None:
    """Bytes in use on the GPU, by everybody."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20,
        ).stdout  # fmt: skip
        return int(told.split()[0]) << 20
    except (OSError, IndexError, ValueError, subprocess.SubprocessError):
        return None
