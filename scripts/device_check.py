"""What speculation costs and gains on one GPU, in one run of at most six minutes.

usage: python scripts/device_check.py [--out FILE] [--seconds 360] [--work DIR] [--carried DIR]
                                      [--parts llama,1b,8b,14b,real] [--smoke]

Needs Python 3.12, torch 2.11 and transformers 5.17, and nothing from a network. llama.cpp is built
from --carried/llama.tar.gz in the background while torch is measured; pydantic for `verify` and a
small real model (--carried/model, a model folder) are taken from there too: scripts/device_pack.sh
makes that folder. Each part is a process of its own with a time of its own; one that fails is
skipped, and the report says why. --smoke runs tiny shapes on a CPU, without building.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("llama", "8b", "1b", "14b", "real")
_SECONDS = {"llama": 100.0, "1b": 40.0, "8b": 55.0, "14b": 70.0, "real": 45.0, "tiny": 20.0}
_START = 20.0
"""Seconds that a part may take to begin: torch is slow to import, a large model to be drawn."""
_LEAST = 25.0
_END = 6.0
_SHOWN = (2, 4, 8, 16, 32, 64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--carried", type=Path, default=ROOT / ".device")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--model", type=Path, help="a small real model's folder")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    _find_ourselves(told.carried, told.work)
    if told.child:
        return _child(told)
    wanted = [part for part in told.parts.split(",") if part]
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    with contextlib.ExitStack() as stack:
        work = told.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        report = Run(told, work).run(wanted)
    print(table(report))
    if told.out is not None:
        told.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if any("failed" not in part for part in report["parts"].values()) else 1


def _find_ourselves(carried: Path, work: Path | None) -> None:
    """Packages from the source tree, and from carried wheels what is not installed."""
    sys.path.insert(0, str(ROOT))
    import agentspec

    # these two lie beside the package unless it is installed
    if str(ROOT) not in agentspec.__path__:
        agentspec.__path__.append(str(ROOT))
    with contextlib.suppress(ImportError):
        import pydantic  # noqa: F401

        return
    wheels = sorted((carried / "wheels").glob("*.whl"))
    if wheels and work is not None:
        folder = work / "wheels"
        if not folder.exists():
            part = work / f"wheels.{os.getpid()}"
            for wheel in wheels:
                zipfile.ZipFile(wheel).extractall(part)
            with contextlib.suppress(OSError):
                part.rename(folder)
        sys.path.append(str(folder))


class Run:
    """The parts one after another, llama.cpp as soon as it is built."""

    def __init__(self, told: argparse.Namespace, work: Path) -> None:
        self._told = told
        self._work = work
        self._ends = time.monotonic() + told.seconds - _END
        self._report: dict[str, Any] = {"machine": _machine(), "smoke": told.smoke, "parts": {}}

    def run(self, wanted: Sequence[str]) -> dict[str, Any]:
        begun = time.monotonic()
        waiting = [part for part in wanted if part != "llama"]
        if self._told.smoke:
            waiting = ["tiny"] if waiting else []
        background = self._begin_llama() if "llama" in wanted else []
        owed = "llama" in wanted
        try:
            while owed or waiting:
                late = time.monotonic() >= self._ends - _LEAST
                built = all(p.poll() is not None for p in background)
                if owed and (built or late or not waiting):
                    self._wait(background, self._ends - _LEAST)
                    self._llama(background)
                    owed = False
                    continue
                reserve = _SECONDS["llama"] + _START if owed else 0.0
                if self._ends - time.monotonic() - reserve < _LEAST and reserve:
                    # what was promised first comes first, however long its building takes
                    self._wait(background, self._ends - _LEAST)
                    continue
                self._part(waiting.pop(0), reserve)
        finally:
            for process in background:
                _end(process)
        self._report["seconds"] = round(time.monotonic() - begun, 1)
        return self._report

    def _begin_llama(self) -> list[subprocess.Popen[bytes]]:
        """The compiler and the writer of the model, both behind everything else."""
        steps = ["gguf"] if self._told.smoke else ["build", "gguf"]
        return [self._process(step, self._ends) for step in steps]

    def _wait(self, processes: Sequence[subprocess.Popen[bytes]], until: float) -> None:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def _llama(self, background: Sequence[subprocess.Popen[bytes]]) -> None:
        before = {"build": self._told_by("build"), "gguf": self._told_by("gguf")}
        late = [process.poll() is None for process in background]
        failed = next((b["failed"] for b in before.values() if "failed" in b), None)
        if any(late) or failed:
            what = failed or "it was not built in the time there was"
            self._report["parts"]["llama"] = {**before, "failed": what}
            return
        self._part("llama", 0.0)
        self._report["parts"]["llama"] |= before

    def _part(self, name: str, reserve: float) -> None:
        left = self._ends - time.monotonic() - reserve
        if name == "real" and self._model() is None:
            self._report["parts"][name] = {"failed": "no small real model was carried"}
            return
        if left < min(_LEAST, self._told.seconds / 2):
            self._report["parts"][name] = {"failed": "no time was left"}
            return
        begun = time.monotonic()
        # tiny models are measured soon, on a machine that does much else too
        seconds = left if self._told.smoke else min(left, _SECONDS[name] + _START)
        process = self._process(name, time.monotonic() + seconds - _END)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
        found = self._told_by(name)
        if process.returncode and "failed" not in found:
            took = round(time.monotonic() - begun)
            found["failed"] = f"it was ended after {took} s (exit code {process.returncode})"
        found["seconds"] = round(time.monotonic() - begun, 1)
        self._report["parts"][name] = found

    def _process(self, name: str, until: float) -> subprocess.Popen[bytes]:
        told = self._told
        # what an earlier run in this folder found is not this one's
        (self._work / f"{name}.json").unlink(missing_ok=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
        command += ["--until", repr(until), "--work", str(self._work)]
        command += ["--carried", str(told.carried), *(["--smoke"] if told.smoke else [])]
        if model := self._model():
            command += ["--model", str(model)]
        lower = ["nice", "-n", "10"] if name in ("build", "gguf") else []
        log = (self._work / f"{name}.log").open("wb")
        with log:
            return subprocess.Popen(
                [*lower, *command], stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def _model(self) -> Path | None:
        found: Path = self._told.model or self._told.carried / "model"
        return found if (found / "config.json").is_file() else None

    def _told_by(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._work / f"{name}.json").read_text())
            return found
        except (OSError, ValueError):
            return {}


def _end(process: subprocess.Popen[bytes]) -> None:
    """A part and whatever it started: compilers outlive the one that called them."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _child(told: argparse.Namespace) -> int:
    """One part; what it finds is written as soon as it is found."""
    path = told.work / f"{told.child}.json"
    results: dict[str, Any] = {}

    def found(key: str, value: Any) -> None:
        results[key] = value
        part = path.with_suffix(".part")
        part.write_text(json.dumps(results))
        part.rename(path)

    try:
        _measure(told, found)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        found("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return 1
    return 0


def _measure(told: argparse.Namespace, found: Any) -> None:
    # time.monotonic is the same clock in every process of a machine
    name, work, model = told.child, told.work, told.work / "random.gguf"
    if name in ("build", "gguf", "llama"):
        from scripts import device_llama

        if name == "build":
            begun = time.monotonic()
            device_llama.build(told.carried / "llama.tar.gz", work, work / "build-llama.log")
            found("seconds", round(time.monotonic() - begun, 1))
        elif name == "gguf":
            for key, value in device_llama.write_model(model, smoke=told.smoke).items():
                found(key, value)
        else:
            device_llama.use_build(work)
            device_llama.measure(model, told.until, found, smoke=told.smoke)
        return
    from scripts import device_torch

    if name == "real":
        device_torch.real(told.model, ROOT, told.until, found, tiny=told.smoke)
    else:
        device_torch.measure(name, told.until, found)


def _machine() -> dict[str, Any]:
    from agentspec.machine import describe

    found: dict[str, Any] = {**describe(), "processes": multiprocessing.cpu_count()}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = "--query-gpu=name,driver_version,memory.total,clocks.sm"
        told = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        found["gpu"] = told.strip()
    for package in ("torch", "transformers", "numpy"):
        from importlib import metadata

        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def table(report: dict[str, Any]) -> str:
    """One line per model and context, then one per model for the engine around it."""
    machine = report["machine"]
    lines = [machine.get("gpu") or f"{machine['cpu']}, no GPU"]
    lines.append(f"{'model':<34}{'context':>8}{'1 row ms':>10}{'prefill/s':>11}  cost of k rows")
    for name, part in report["parts"].items():
        title = f"{name}: {part.get('model', '')}"[:33]
        for key, value in part.items():
            if not key.startswith("context "):
                continue
            where = key.removeprefix("context ")
            if "skipped" in value:
                lines.append(f"{title:<34}{where:>8}  {value['skipped']}")
                continue
            ms = {int(k): v for k, v in value["ms"].items()}
            costs = "  ".join(f"{k}: {ms[k] / ms[1]:.2f}" for k in _SHOWN if k in ms)
            speed = value["prefill_tokens_per_second"]
            lines.append(f"{title:<34}{where:>8}{ms[1]:>10.2f}{speed:>11.0f}  {costs}")
    for name, part in report["parts"].items():
        if "failed" in part:
            lines.append(f"{name}: {'ended' if len(part) > 2 else 'skipped'}: {part['failed']}")
        if engine := part.get("engine"):
            own = engine["engine_ms_per_step"]
            equal = sum(at is None for at in engine["first_difference"])
            lines.append(
                f"{name}: engine {own['plain']:.2f} ms a step plain, {own['accelerated']:.2f} with "
                f"drafts; {engine['speed_up']:.2f} times plain at "
                f"{engine['acceptance_length']:.2f} tokens a pass; {equal} of "
                f"{engine['prompts']} texts equal; equal bits for rows {part['equal_rows']}"
                if "equal_rows" in part
                else f"{name}: {engine['speed_up']:.2f} times plain, acceptance length "
                f"{engine['acceptance_length']:.2f}, {equal} of {engine['prompts']} texts equal"
            )
        if verify := part.get("verify"):
            lines.append(f"{name}: verify {verify}")
        if used := part.get("memory_bytes"):
            lines.append(f"{name}: {used / 2**30:.1f} GiB on the device")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
