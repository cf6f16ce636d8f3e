from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant import repository as module
from agentspec.assistant.errors import ConflictError, RefusedError
from agentspec.assistant.repository import Repository, shown


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(b"x = 1\n")
    (root / ".git" / "hooks").mkdir(parents=True)
    evil = tmp_path / "repo-evil"
    evil.mkdir()
    (evil / "plain.txt").write_text("outside")
    return Repository(root)


def test_the_top_of_a_git_repository_is_found_from_below(repo: Repository) -> None:
    assert Repository.around(repo.root / "src").root == repo.root
    assert repo.git


def test_a_folder_without_git_is_its_own_root(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    found = Repository.around(tmp_path / "plain")
    assert found.root == tmp_path / "plain"
    assert not found.git


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no folder"):
        Repository(tmp_path / "absent")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../repo-evil/plain.txt", r"'\.\.'"),
        ("src/../../repo-evil/plain.txt", r"'\.\.'"),
        ("src/../src/a.py", r"'\.\.'"),
        ("{root}-evil/plain.txt", "outside"),
        ("{root}/../repo-evil/plain.txt", r"'\.\.'"),
        ("/etc/passwd", "outside"),
        ("//etc/passwd", "outside"),
        ("/", "outside"),
        ("src/a.py\0.txt", "NUL"),
        ("a" * 5000, "too long"),
        ("\ud800", "Unicode"),
        ("", "empty"),
        ("  ", "empty"),
        (".git/config", "git"),
        (".GIT/hooks/pre-commit", "git"),
        (".g\u200dit/config", "git"),
        ("src/.git/config", "git"),
        (".git./config", "git"),
        ("git~1/config", "git"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(repo: Repository, path: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        repo.name(path.replace("{root}", str(repo.root)))
    assert "\n" not in str(caught.value)


def test_names_of_the_same_file(repo: Repository) -> None:
    for path in ("src/a.py", "./src//a.py", f"{repo.root}/src/a.py"):
        assert repo.name(path) == "src/a.py"
        assert repo.read(path).data == b"x = 1\n"


@given(st.text(st.sampled_from("./\\ab~\0\ud800é-"), max_size=12))
def test_a_name_never_leaves_the_root(path: str) -> None:
    repo = Repository(Path(__file__).parent)
    try:
        name = repo.name(path)
    except RefusedError:
        return
    assert os.path.normpath(repo.root / name).startswith(str(repo.root))


def test_links_are_not_followed(repo: Repository, tmp_path: Path) -> None:
    (repo.root / "file").symlink_to(tmp_path / "repo-evil" / "plain.txt")
    (repo.root / "folder").symlink_to(tmp_path / "repo-evil")
    (repo.root / "inside").symlink_to("src/a.py")
    for path in ("file", "folder/plain.txt", "inside", "folder/new.txt"):
        with pytest.raises(RefusedError, match="link"):
            repo.read(path)
        with pytest.raises(RefusedError, match="link"):
            repo.replace(path, b"evil", expected=b"outside", part=".part")
    assert (tmp_path / "repo-evil" / "plain.txt").read_text() == "outside"
    assert sorted(os.listdir(tmp_path / "repo-evil")) == ["plain.txt"]
    assert [entry.path for entry in repo.files()] == ["src/a.py"]


def test_a_folder_swapped_for_a_link_after_the_check(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo-evil" / "a.py").write_text("outside")
    real = module._status

    def status(folder: int, name: bytes) -> os.stat_result | None:
        found = real(folder, name)
        if name == b"src":
            (repo.root / "src").rename(repo.root / "moved")
            (repo.root / "src").symlink_to(tmp_path / "repo-evil")
        return found

    monkeypatch.setattr(module, "_status", status)
    with pytest.raises(RefusedError, match="cannot be used"):
        repo.read("src/a.py")
    (repo.root / "src").unlink()
    (repo.root / "moved").rename(repo.root / "src")
    with pytest.raises(RefusedError, match="cannot be used"):
        repo.replace("src/a.py", b"evil", expected=b"x = 1\n", part=".part")
    assert (tmp_path / "repo-evil" / "a.py").read_text() == "outside"


def test_a_file_swapped_for_a_link_after_the_check(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._status

    def status(folder: int, name: bytes) -> os.stat_result | None:
        found = real(folder, name)
        if name == b"a.py":
            (repo.root / "src" / "a.py").unlink()
            (repo.root / "src" / "a.py").symlink_to(tmp_path / "repo-evil" / "plain.txt")
        return found

    monkeypatch.setattr(module, "_status", status)
    with pytest.raises(RefusedError, match="cannot be used"):
        repo.read("src/a.py")


def test_special_files_are_refused_and_do_not_hold_us(repo: Repository) -> None:
    os.mkfifo(repo.root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(repo.root)
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        for path, kind in (("fifo", "fifo"), ("sock", "socket"), ("src", "folder")):
            with pytest.raises(RefusedError, match=kind):
                repo.read(path)
            with pytest.raises(RefusedError, match=kind):
                repo.replace(path, b"", expected=None, part=".part")
    assert stat.S_ISFIFO(os.stat(repo.root / "fifo").st_mode)
    assert sorted(os.listdir(repo.root)) == [".git", "fifo", "sock", "src"]


def test_a_device_is_refused(tmp_path: Path) -> None:
    if not os.path.exists("/dev/null"):
        pytest.skip("there is no /dev/null here")
    with pytest.raises(RefusedError, match="device"):
        Repository("/dev").read("null")


def test_secrets_are_read_only_when_the_user_names_them(repo: Repository) -> None:
    (repo.root / ".env").write_text("KEY=1")
    (repo.root / "notes.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    for path in (".env", "notes.txt"):
        with pytest.raises(RefusedError, match=r"secret|private key"):
            repo.read(path)
    repo.named |= {".env", "notes.txt"}
    assert repo.read(".env").data == b"KEY=1"
    assert repo.read("notes.txt").data.startswith(b"-----BEGIN")


def test_large_files_are_refused(repo: Repository) -> None:
    small = Repository(repo.root, max_file=3)
    with pytest.raises(RefusedError, match="6 bytes"):
        small.read("src/a.py")
    with pytest.raises(RefusedError, match="more than 3 bytes"):
        small.replace("b", b"1234", expected=None, part=".part")


def test_listing_obeys_ignore_files_and_takes_odd_names(repo: Repository) -> None:
    (repo.root / ".gitignore").write_text("*.log\n")
    (repo.root / "x.log").write_text("")
    (repo.root / "--help").write_text("h")
    (repo.root / "new\nline").write_text("n")
    with open(os.fsencode(repo.root) + b"/\xff.txt", "wb") as file:
        file.write(b"raw")
    names = [entry.path for entry in repo.files()]
    assert names == ["--help", ".gitignore", "new\nline", "src/a.py", "\udcff.txt"]
    assert [shown(name) for name in names][2:5:2] == ["new\\nline", "\\xff.txt"]
    assert repo.read("\udcff.txt").data == b"raw"
    assert repo.read("--help").data == b"h"


def test_replace_keeps_the_mode_and_leaves_nothing_behind(repo: Repository) -> None:
    path = repo.root / "src" / "a.py"
    path.chmod(0o751)
    repo.replace("src/a.py", b"new", expected=b"x = 1\n", part=".part")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(repo.root / "src") == ["a.py"]


def test_replace_makes_folders_and_removes(repo: Repository) -> None:
    assert repo.missing_folders("x/y/z.txt") == ["x", "x/y"]
    repo.replace("x/y/z.txt", b"z", expected=None, part=".part")
    assert (repo.root / "x/y/z.txt").read_bytes() == b"z"
    repo.replace("x/y/z.txt", None, expected=b"z", part=".part")
    repo.remove_empty(["x", "x/y"])
    assert not (repo.root / "x").exists()


def test_replace_refuses_what_somebody_else_changed(repo: Repository) -> None:
    for expected, why in ((b"old", "somebody"), (None, "exists")):
        with pytest.raises(ConflictError, match=why):
            repo.replace("src/a.py", b"new", expected=expected, part=".part")
    with pytest.raises(ConflictError, match="gone"):
        repo.replace("src/b.py", b"new", expected=b"old", part=".part")
    with pytest.raises(ConflictError):
        repo.replace("src/a.py", None, expected=b"old", part=".part")
    assert (repo.root / "src/a.py").read_bytes() == b"x = 1\n"
    assert os.listdir(repo.root / "src") == ["a.py"]


def test_what_is_saved_while_we_write_is_not_lost(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        (repo.root / "src" / "a.py").write_bytes(b"theirs")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConflictError):
        repo.replace("src/a.py", b"ours", expected=b"x = 1\n", part=".part")
    assert (repo.root / "src/a.py").read_bytes() == b"theirs"


def test_files_that_are_read_only_stay(repo: Repository) -> None:
    (repo.root / "src" / "a.py").chmod(0o444)
    with pytest.raises(RefusedError, match="read-only on disk"):
        repo.replace("src/a.py", b"new", expected=b"x = 1\n", part=".part")
    repo.protected.add("src/b.py")
    with pytest.raises(RefusedError, match="read-only"):
        repo.check_writable("src/b.py")
