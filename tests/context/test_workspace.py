"""What of a repository is indexed, and what a hostile one cannot make us read."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from agentspec.context import workspace as module
from agentspec.context.workspace import Workspace, secret
from agentspec.errors import InvalidRequestError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs openat")


@pytest.fixture(autouse=True)
def _no_rules_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def put(root: Path, path: str, text: str | bytes = "text\n", mtime: int | None = None) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    if mtime is not None:
        os.utime(file, (mtime, mtime))


def paths(root: Path, **limits: int) -> list[str]:
    return [entry.path for entry in Workspace(root, **limits).files()]


def readable(root: Path) -> set[str]:
    workspace = Workspace(root)
    return {entry.path for entry in workspace.files() if workspace.read(entry.path)}


def test_files_come_in_the_order_they_were_modified(root: Path) -> None:
    put(root, "new.py", mtime=3000)
    put(root, "a/old.py", mtime=1000)
    put(root, "b.py", mtime=2000)
    put(root, "a.py", mtime=2000)
    assert paths(root) == ["a/old.py", "a.py", "b.py", "new.py"]


def test_an_entry_tells_size_and_time_and_read_gives_the_text(root: Path) -> None:
    put(root, "ä.py", "x = 'ü'\n", mtime=1000)
    workspace = Workspace(root)
    (entry,) = workspace.files()
    assert (entry.path, entry.size, entry.mtime_ns) == ("ä.py", 9, 1000 * 10**9)
    assert workspace.read("ä.py") == (entry, "x = 'ü'\n")


def test_ignore_files_are_obeyed_nested_and_negated(root: Path) -> None:
    put(root, ".gitignore", "*.log\nbuild/\n/only-here\n!keep.log\n")
    put(root, "a/.gitignore", "!a.log\n/x/*\n!/x/y\n")
    for path in ["b.log", "keep.log", "build/x", "a/a.log", "a/b.log", "a/x/y", "a/x/z", "a/x/q/y"]:
        put(root, path)
    put(root, "only-here")
    put(root, "a/only-here")
    assert set(paths(root)) == {
        ".gitignore", "a/.gitignore", "keep.log", "a/a.log", "a/x/y", "a/only-here",
    }  # fmt: skip


def test_the_rules_around_the_root_are_obeyed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, ".git/info/exclude", "excluded\n")
    put(root, ".gitignore", "/part/left-out\n*.tmp\n")
    put(tmp_path, "config/git/ignore", "everywhere\n")
    put(tmp_path, ".gitignore", "*\n")  # outside the repository
    for name in ["excluded", "left-out", "a.tmp", "everywhere", "kept"]:
        put(root, f"part/{name}")
    assert paths(root / "part") == ["kept"]
    assert set(paths(root)) == {".gitignore", "part/kept"}


def test_an_ignore_file_that_cannot_be_obeyed_keeps_its_folder_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root, "a/.gitignore", "x\n" * 5000)
    put(root, "a/file")
    put(root, "b/.gitignore", "x" * 200_000)
    put(root, "b/file")
    put(root, "file")
    with caplog.at_level(logging.WARNING):
        assert paths(root) == ["file"]
    assert len(caplog.records) == 2


def test_an_ignore_file_that_is_a_link_or_a_folder_is_none(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "outside", "*\n")
    (root / ".gitignore").symlink_to(tmp_path / "outside")
    put(root, "a/.gitignore/x")
    put(root, "b/file")
    assert set(paths(root)) == {"a/.gitignore/x", "b/file"}


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.local", "prod.env", "id_rsa", "id_ed25519.pub", "server.pem", "TLS.KEY",
        "cert.pfx", "store.p12", "credentials", "credentials.json", ".netrc", "_netrc", ".npmrc",
        ".pypirc", "kubeconfig", "kubeconfig.yaml", "secrets.yml", ".git-credentials", ".htpasswd",
        "terraform.tfstate", "terraform.tfstate.backup", "x.tfvars", "service-account-7.json",
        ".bash_history", "vault.kdbx",
    ],
)  # fmt: skip
def test_names_that_hold_secrets_are_left_out(root: Path, name: str) -> None:
    assert secret(name)
    put(root, name)
    put(root, f"deep/{name}/below.py")
    put(root, "environment.py")
    assert paths(root) == ["environment.py"]


@pytest.mark.parametrize(
    "name", ["env.py", "keys.py", "monkey.c", "environ", "keyboard.key.ts", "npmrc.md", "secretary"]
)
def test_names_like_those_are_not(name: str) -> None:
    assert not secret(name)


def test_folders_of_tools_are_left_out(root: Path) -> None:
    for folder in [".git", "a/.git", ".ssh", ".aws", "node_modules", "a/__pycache__"]:
        put(root, f"{folder}/config")
    put(root, "a/config")
    assert paths(root) == ["a/config"]


def test_what_is_no_text_or_holds_a_private_key_is_not_read(root: Path) -> None:
    put(root, "nul", b"text\0text")
    put(root, "latin", b"caf\xe9")
    put(root, "key.txt", "x\n-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    put(root, "pgp.txt", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
    put(root, "public.txt", "-----BEGIN PUBLIC KEY-----\n")
    put(root, "picture.png", "text after all")
    put(root, "png", "text")
    put(root, "empty", "")
    assert readable(root) == {"public.txt", "empty", "png"}


def test_limits_on_a_file_on_all_and_on_entries(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        put(root, f"{i}", "x" * 100, mtime=1000 + i)
    put(root, "large", "x" * 101, mtime=1)
    for path in ["b/0", "b/1", "b/2", "c/0"]:
        put(root, f"a/{path}", mtime=1)
    assert paths(root, max_file=100)[-6:] == ["a/c/0", "0", "1", "2", "3", "4"]
    assert Workspace(root, max_file=100).read("large") is None
    assert paths(root, max_file=100, max_total=250) == ["3", "4"]
    with caplog.at_level(logging.WARNING):
        assert paths(root / "a", max_entries=4) == ["b/0", "b/1", "b/2"]
    assert "part" in caplog.text


def test_a_root_that_is_no_folder_is_an_error(root: Path) -> None:
    put(root, "file")
    for path in (root / "file", root / "absent"):
        with pytest.raises(InvalidRequestError, match="no directory"):
            Workspace(path)


def test_a_root_that_vanishes_costs_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    workspace = Workspace(root)
    root.rmdir()
    assert workspace.files() == []
    assert len(caplog.records) == 1


# Hostile repositories.


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "outside/secret.py")
    put(root, "in/side.py")
    (root / "passwd").symlink_to("/etc/passwd")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "again").symlink_to("in/side.py")
    (root / "in/loop").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "gone").symlink_to("nowhere")
    assert paths(root) == ["in/side.py"]
    workspace = Workspace(root)
    for path in ["passwd", "out/secret.py", "in/loop/in/side.py", "self", "gone", "again"]:
        assert workspace.read(path) is None


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a/../../outside", "", ".", "a//b", "a/./b", "a\0b"]
)
def test_a_path_cannot_leave_the_root(root: Path, tmp_path: Path, path: str) -> None:
    put(tmp_path, "outside")
    put(root, "a/b")
    assert Workspace(root).read(path) is None


def test_special_files_are_never_opened_to_wait(root: Path) -> None:
    os.mkfifo(root / "fifo")
    os.mkfifo(root / ".gitignore")
    with socket.socket(socket.AF_UNIX) as server:
        with contextlib.chdir(root):  # a socket's whole path may have no more than 108 bytes
            server.bind("socket")
        put(root, "file")
        results: list[object] = []

        def look() -> None:
            workspace = Workspace(root)
            results.append([entry.path for entry in workspace.files()])
            results.extend(workspace.read(name) for name in ("fifo", "socket"))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(20)
        assert results == [["file"], None, None]


@pytest.mark.parametrize("swap", ["link", "fifo", "folder-link"])
def test_what_is_swapped_after_the_check_is_not_read(root: Path, tmp_path: Path, swap: str) -> None:
    put(tmp_path, "outside/file", "outside\n")
    put(root, "a/file", "inside\n")
    workspace = Workspace(root)
    (entry,) = workspace.files()
    if swap == "folder-link":
        (root / "a/file").unlink()
        (root / "a").rmdir()
        (root / "a").symlink_to(tmp_path / "outside")
    else:
        (root / "a/file").unlink()
        if swap == "link":
            (root / "a/file").symlink_to(tmp_path / "outside/file")
        else:
            os.mkfifo(root / "a/file")
    assert workspace.read(entry.path) is None


def test_swapping_while_reading_never_shows_what_is_outside(root: Path, tmp_path: Path) -> None:
    put(tmp_path, "outside/file", "outside\n")
    put(root, "a/file", "inside\n")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "a", tmp_path / "aside")
            os.rename(tmp_path / "link", root / "a")
            os.rename(root / "a", tmp_path / "link")
            os.rename(tmp_path / "aside", root / "a")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        workspace = Workspace(root)
        seen = [workspace.read("a/file") for _ in range(2000)]
        # on a busy machine the thread may rest for all of them
        until = time.monotonic() + 240
        while (None not in seen or not any(seen)) and time.monotonic() < until:
            seen.append(workspace.read("a/file"))
    finally:
        stop.set()
        thread.join()
    assert {read[1] for read in seen if read} == {"inside\n"}
    assert None in seen


@pytest.mark.parametrize("size", [50, 100, 150])
def test_a_file_that_changes_while_it_is_read_is_left_for_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    put(root, "file", "x" * 100, mtime=1)
    real = os.read

    def slow(fd: int, n: int) -> bytes:
        put(root, "file", "y" * size)
        return real(fd, n)

    monkeypatch.setattr(os, "read", slow)
    assert Workspace(root).read("file") is None


def test_other_file_systems_are_not_entered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "file")
    put(root, "mounted/file")
    real = os.stat_result

    def fstat(fd: int) -> os.stat_result:
        status = list(os.stat(fd))
        status[2] += 1  # the root's device; its entries tell their own
        return real(status)

    assert len(paths(root)) == 2
    monkeypatch.setattr(os, "fstat", fstat)
    assert paths(root) == []


def test_names_that_are_no_text(root: Path) -> None:
    names = [
        b"\xff\xfe.py",
        b"new\nline.py",
        b"tab\t.py",
        b"'\"$(x).py",
        b"-rf",
        b"\xe2\x80\xae.py",
    ]
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(root), name))).write_text("text\n")
    workspace = Workspace(root)
    found = workspace.files()
    assert {os.fsencode(entry.path) for entry in found} == set(names)
    assert all(workspace.read(entry.path) for entry in found)


def test_a_tree_deeper_than_any_project_ends(root: Path) -> None:
    with contextlib.chdir(root):
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
            Path("file").touch()
    assert 10 < len(paths(root)) < 100


def test_ten_thousand_files_are_walked_quickly(root: Path) -> None:
    put(root, ".gitignore", "\n".join(f"*.{i}\nfolder{i}/" for i in range(30)))
    for folder in range(100):
        (root / f"d{folder}").mkdir()
        for file in range(100):
            (root / f"d{folder}/f{file}.py").touch()
    start = time.process_time()
    assert len(paths(root)) == 10_001
    assert time.process_time() - start < 5.0


def test_rules_that_would_take_too_long_stop_the_walk(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MAX_CHECKS", 10_000)
    put(root, ".gitignore", ("*a" * 500 + "\n") * 2)
    for i in range(200):
        put(root, f"{i:03}")
    found = paths(root)
    assert 5 < len(found) < 100
    assert "rules" in caplog.text


def test_nothing_is_run(root: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    put(root, ".git/config", f'[core]\n\tfsmonitor = "touch {ran}"\n\tpager = "touch {ran}"\n')
    put(root, ".gitattributes", "* filter=x\n")
    put(root, "file")
    assert readable(root) == {".gitattributes", "file"}
    assert not ran.exists()
