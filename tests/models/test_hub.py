"""Hugging Face as a source: delivery, resuming, wrong bytes, and a hub that is out of reach."""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ChecksumError, DiskSpaceError, DownloadError, ModelNotFoundError
from agentspec.models import catalog
from agentspec.models import hub as hub_module
from agentspec.models.pull import pull, verify
from agentspec.models.staging import Staged

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(hub_module, "CHUNK", 4096)


def partial(tmp_path: Path) -> Path:
    return tmp_path / "tiny" / ".tiny.gguf.partial"


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "tiny").iterdir()}


def test_delivers_and_asks_no_second_time(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    entry = make_entry(hub.data, hub_source)
    path = pull(entry, dir=tmp_path, progress=log)
    assert path == tmp_path / "tiny" / "tiny.gguf"
    assert path.read_bytes() == hub.data
    assert log.starts == [(len(hub.data), 0)]
    assert log.done == len(hub.data)
    assert names(tmp_path) == {"tiny.gguf", "tiny.gguf.json", ".lock"}
    before = list(hub.requests)
    assert pull(entry, dir=tmp_path) == path
    assert hub.requests == before


def test_unknown_hash_is_read_from_the_hub_and_kept(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    entry = make_entry(None, hub_source)
    path = pull(entry, dir=tmp_path)
    assert path.read_bytes() == hub.data
    (checked,) = verify(entry, dir=tmp_path)
    assert checked.ok
    assert checked.expected == checked.sha256
    path.write_bytes(b"x" + hub.data[1:])
    assert not verify(entry, dir=tmp_path)[0].ok


def test_unknown_hash_takes_a_file_that_is_there(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    path = tmp_path / "tiny" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(hub.data)
    assert pull(make_entry(None, hub_source), dir=tmp_path) == path
    assert hub.gets == []


def test_a_hub_without_a_hash_is_refused(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    hub.etag = "a" * 40
    with pytest.raises(DownloadError, match="no SHA-256"):
        pull(make_entry(None, hub_source), dir=tmp_path)
    assert hub.gets == []


def test_wrong_bytes_are_deleted_and_said(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    hub.sent = b"x" * len(hub.data)
    with pytest.raises(ChecksumError, match=r"should have sha256 .* deleted"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert names(tmp_path) == {".lock"}


def test_wrong_bytes_leave_the_file_that_is_there(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    path = tmp_path / "tiny" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(b"the user's own")
    hub.sent = b"x" * len(hub.data)
    with pytest.raises(ChecksumError):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert path.read_bytes() == b"the user's own"
    hub.sent = None
    pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert path.read_bytes() == hub.data


def test_too_many_bytes_are_refused(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    hub.sent = hub.data + b"more"
    with pytest.raises(ChecksumError, match="more than the"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert not partial(tmp_path).exists()


def test_another_hash_or_size_on_the_hub_costs_no_download(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    with pytest.raises(ChecksumError, match=r"offers sha256 .* nothing was downloaded"):
        pull(make_entry(hub.data[::-1], hub_source), dir=tmp_path)
    entry = make_entry(hub.data, hub_source)
    file = dataclasses.replace(entry.files[0], size=7)
    with pytest.raises(ChecksumError, match=r"offers 51204 bytes, not 7; nothing"):
        pull(dataclasses.replace(entry, files=(file,)), dir=tmp_path)
    assert hub.gets == []


def test_a_cut_connection_goes_on_where_it_stopped(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    hub.cuts = [10_000, 20_000]
    path = pull(make_entry(hub.data, hub_source), dir=tmp_path, progress=log)
    assert path.read_bytes() == hub.data
    assert hub.gets[0] == ""
    starts = [int(wanted.removeprefix("bytes=").rstrip("-")) for wanted in hub.gets[1:]]
    assert len(starts) == 2
    assert 0 < starts[0] <= 10_000 < starts[1] <= 30_000


def test_a_server_without_ranges_starts_again(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    hub.cuts, hub.ranges = [10_000], False
    path = pull(make_entry(hub.data, hub_source), dir=tmp_path, progress=log)
    assert path.read_bytes() == hub.data
    assert log.starts == [(len(hub.data), 0), (len(hub.data), 0)]
    assert log.done == len(hub.data)


def test_a_hub_that_gives_up_leaves_a_partial_for_the_next_pull(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    entry = make_entry(hub.data, hub_source)
    hub.cuts = [10_000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"at byte .* try again with: agentspec models pull"):
        pull(entry, dir=tmp_path)
    kept = partial(tmp_path).stat().st_size
    assert kept > 0
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == hub.data
    assert hub.gets[-1] == f"bytes={kept}-"
    assert log.starts == [(len(hub.data), kept)]


def test_a_spoilt_partial_is_dropped_and_fetched_anew(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    entry = make_entry(hub.data, hub_source)
    hub.cuts = [10_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        pull(entry, dir=tmp_path)
    with open(partial(tmp_path), "r+b") as handle:
        handle.write(b"spoilt")
    assert pull(entry, dir=tmp_path, progress=log).read_bytes() == hub.data
    assert any("starting anew" in note for note in log.notes)


def test_a_partial_that_grew_too_long_is_cut(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    entry = make_entry(hub.data, hub_source)
    hub.cuts = [10_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        pull(entry, dir=tmp_path)
    partial(tmp_path).write_bytes(hub.data + b"a tail")
    assert pull(entry, dir=tmp_path).read_bytes() == hub.data


def test_a_partial_of_another_file_is_not_used(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    hub.cuts = [10_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    hub.data = hub.data[::-1]
    hub.requests.clear()
    path = pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert path.read_bytes() == hub.data
    assert hub.gets == [""]


def test_ctrl_c_leaves_a_partial(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, log: Any
) -> None:
    entry = make_entry(hub.data, hub_source)

    class Interrupting(type(log)):  # type: ignore[misc]
        def advance(self, n: int) -> None:
            super().advance(n)
            if self.done > 20_000:
                raise KeyboardInterrupt

    interrupted = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        pull(entry, dir=tmp_path, progress=interrupted)
    assert interrupted.finished == 1
    kept = partial(tmp_path).stat().st_size
    assert kept > 20_000
    assert pull(entry, dir=tmp_path).read_bytes() == hub.data
    assert hub.gets[-1] == f"bytes={kept}-"


def test_a_disk_without_room_is_said_before_the_download(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DiskSpaceError, match=r"51 kB needed, 1 kB available in .*AGENTSPEC_MODELS"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert hub.gets == []


def test_a_disk_that_fills_up_keeps_the_partial(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make_entry(hub.data, hub_source)
    append = Staged.append

    def full(self: Staged, block: bytes) -> None:
        if self.length > 20_000:
            raise OSError(28, "No space left on device")
        append(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(Staged, "append", full)
        with pytest.raises(DiskSpaceError, match="full; free some space and pull again"):
            pull(entry, dir=tmp_path)
    kept = partial(tmp_path).stat().st_size
    assert kept > 20_000
    assert pull(entry, dir=tmp_path).read_bytes() == hub.data
    assert hub.gets[-1] == f"bytes={kept}-"


@pytest.mark.parametrize("status", [401, 404, 429, 503])
def test_a_refusal_is_one_line(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, status: int
) -> None:
    hub.status = status
    with pytest.raises(DownloadError) as caught:
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert "someone/tiny-GGUF" in str(caught.value)


def test_a_closed_port_costs_no_time(
    tmp_path: Path, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    begun = time.monotonic()
    with pytest.raises(DownloadError, match="out of reach"):
        pull(make_entry(b"x", hub_source), dir=tmp_path)
    assert time.monotonic() - begun < 30


def test_a_hub_that_does_not_answer_is_given_up(
    tmp_path: Path,
    hub: Any,
    make_entry: Any,
    hub_source: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.silent = True
    monkeypatch.setattr(hub_module, "CONNECT_SECONDS", 0.2)
    with pytest.raises(DownloadError, match=r"out of reach: .*timed? ?out"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)


def test_a_name_look_up_that_hangs_is_given_up(
    tmp_path: Path, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "METADATA_SECONDS", 0.1)
    given_up = threading.Event()
    ended: list[bool] = []

    def look_up(*_: object, **__: object) -> None:
        ended.append(given_up.wait(60))

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", look_up)
    with pytest.raises(DownloadError, match=r"out of reach: no answer within 0\.1 seconds"):
        pull(make_entry(b"x", hub_source), dir=tmp_path)
    assert not ended
    given_up.set()


def test_offline_mode_is_honoured(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert hub.requests == []


def test_a_missing_library_is_said(
    tmp_path: Path, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"not installed \(in the clone.*pip install '\.\[hub"):
        pull(make_entry(b"x", hub_source), dir=tmp_path)


def test_an_old_library_is_said(
    tmp_path: Path, make_entry: Any, hub_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "__version__", "0.36.0")
    with pytest.raises(DownloadError, match=r"0\.36\.0 is too old"):
        pull(make_entry(b"x", hub_source), dir=tmp_path)


def test_a_good_file_is_taken_without_asking(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    path = tmp_path / "tiny" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(hub.data)
    pull(make_entry(hub.data, hub_source), dir=tmp_path)
    assert hub.requests == []
    assert (tmp_path / "tiny" / "tiny.gguf.json").exists()


def test_a_file_that_changed_is_fetched_again(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    entry = make_entry(hub.data, hub_source)
    path = pull(entry, dir=tmp_path)
    path.write_bytes(b"x" + hub.data[1:])
    assert pull(entry, dir=tmp_path).read_bytes() == hub.data


def test_a_planted_link_is_not_written_through(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    entry = make_entry(hub.data, hub_source)
    hub.cuts = [10_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        pull(entry, dir=tmp_path)
    partial(tmp_path).unlink()
    partial(tmp_path).symlink_to(victim)
    with pytest.raises(DownloadError, match="cannot write in"):
        pull(entry, dir=tmp_path)
    assert victim.read_bytes() == b"precious"


def test_a_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any
) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(DownloadError, match=r"cannot write in .*AGENTSPEC_MODELS"):
        pull(make_entry(hub.data, hub_source), dir=tmp_path / "models")


def test_verify_wants_the_file(tmp_path: Path, hub: Any, make_entry: Any, hub_source: Any) -> None:
    with pytest.raises(ModelNotFoundError, match="agentspec models pull tiny"):
        verify(make_entry(hub.data, hub_source), dir=tmp_path)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean qwen2\.5-coder-1\.5b"):
        pull("qwen2.5-coder-1.6b", dir=tmp_path)
    assert not list(tmp_path.iterdir())
    assert catalog.locate(catalog.entry("smollm2-135m"), tmp_path) is None
