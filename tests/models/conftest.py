"""A hub and a package index on this machine, and small entries that point at them."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentspec.models.catalog import (
    Entry,
    HubSource,
    ModelFile,
    PackageSource,
    Source,
    WheelPart,
)

REPO, FILE = "someone/tiny-GGUF", "tiny.gguf"


@dataclass
class Hub:
    """Speaks what huggingface_hub asks for one file; the fields say how it misbehaves."""

    data: bytes
    sent: bytes | None = None
    etag: str | None = None
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    pause: float = 0.0
    go_on: threading.Event | None = None
    status: int = 200
    silent: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def gets(self) -> list[str]:
        return [wanted for method, wanted in self.requests if method == "GET"]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _head(self, status: int, length: int, extra: dict[str, str]) -> None:
            self.send_response(status)
            etag = hub.etag or hashlib.sha256(hub.data).hexdigest()
            headers = {
                "Content-Length": str(length),
                "ETag": '"0123"',
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(len(hub.data)),
                "X-Repo-Commit": "c" * 40,
            }
            for name, value in (headers | extra).items():
                self.send_header(name, value)
            self.end_headers()

        def _refused(self) -> bool:
            if hub.silent:
                time.sleep(20.0)
                self.close_connection = True
                return True
            known = self.path in (
                f"/{REPO}/resolve/main/{FILE}",
                f"/{REPO}/resolve/{'c' * 40}/{FILE}",
            )
            if hub.status != 200 or not known:
                self.send_response(hub.status if hub.status != 200 else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return True
            return False

        def do_HEAD(self) -> None:
            hub.requests.append(("HEAD", ""))
            if not self._refused():
                self._head(200, len(hub.data), {})

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            if "/resolve/" in self.path:
                # huggingface_hub also asks for a registry of its own, once a day.
                hub.requests.append(("GET", wanted))
            if self._refused():
                return
            body = hub.data if hub.sent is None else hub.sent
            start = 0
            if wanted and hub.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                span = f"bytes {start}-{len(body) - 1}/{len(body)}"
                self._head(206, len(body) - start, {"Content-Range": span})
            else:
                self._head(200, len(body), {})
            body = body[start:]
            if hub.cuts:
                body = body[: hub.cuts.pop(0)]
                self.close_connection = True
            for at in range(0, len(body), 4096):
                self.wfile.write(body[at : at + 4096])
                if hub.go_on is not None:
                    hub.go_on.wait(240)
                if hub.pause:
                    time.sleep(hub.pause)

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    found = Hub(data=b"GGUF" + bytes(range(256)) * 200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWheel:
    """Writes wheels into the one directory that pip sees."""
    index = tmp_path / "index"
    index.mkdir()
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_REQUIREMENT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def make(name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
        module = name.replace("-", "_")
        wheel = index / f"{module}-{version}-py3-none-any.whl"
        info = f"{module}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{module}/__init__.py", "raise SystemExit('imported')")
            for member, data in members.items():
                archive.writestr(member, data)
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            archive.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    return make


HUB = HubSource(REPO, FILE)


def packages(count: int) -> PackageSource:
    """`count` packages tiny-part1 … whose member is data/partNN.bin."""
    return PackageSource(
        tuple(
            WheelPart(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/part{i:02d}.bin")
            for i in range(1, count + 1)
        )
    )


MakeEntry = Callable[..., Entry]


@pytest.fixture
def make_entry() -> MakeEntry:
    """An entry for given bytes (None: size and hash unknown) and sources."""

    def make(data: bytes | None, *sources: Source) -> Entry:
        sha256 = hashlib.sha256(data).hexdigest() if data is not None else None
        size = len(data) if data is not None else None
        file = ModelFile(FILE, size, sha256, sources)
        return Entry("tiny", "Tiny", (file,), "MIT", "tiny", ("target",), "tests")

    return make


@pytest.fixture
def hub_source() -> HubSource:
    return HUB


@pytest.fixture
def package_source() -> Callable[[int], PackageSource]:
    return packages


class Log:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.starts: list[tuple[int | None, int]] = []
        self.done = 0
        self.finished = 0

    def start(self, total: int | None, done: int = 0) -> None:
        self.starts.append((total, done))
        self.done = done

    def advance(self, n: int) -> None:
        self.done += n

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def log() -> Log:
    return Log()
