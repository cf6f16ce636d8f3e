"""Ignore rules, one by one and against git's own verdicts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context.ignore import MAX_PATTERN, MAX_RULES, IgnoreRules


def ignored(rules: str, path: str) -> bool | None:
    """The verdict on a path; one that ends with "/" is a folder."""
    parts = path.rstrip("/").encode().split(b"/")
    return IgnoreRules(rules.encode()).verdict(parts, path.endswith("/"))


@pytest.mark.parametrize(
    ("rules", "path", "verdict"),
    [
        ("*.log", "a.log", True),
        ("*.log", "a/b.log", True),
        ("*.log", "a.log.txt", None),
        ("/a.log", "b/a.log", None),
        ("/a.log", "a.log", True),
        ("a/b", "a/b", True),
        ("a/b", "c/a/b", None),
        ("build/", "build/", True),
        ("build/", "build", None),
        ("build/", "x/build/", True),
        ("*\n!keep", "keep", False),
        ("!keep\n*", "keep", True),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a/", None),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "b/z", None),
        ("a/**/m/**/z", "a/1/m/2/z", True),
        ("a/**/m/**/z", "a/1/2/z", None),
        ("a/*/z", "a/b/c/z", None),
        ("a**z", "a/z", None),
        ("a**z", "abcz", True),
        ("?.c", "a.c", True),
        ("?.c", "ab.c", None),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", None),
        ("[^a-c]x", "dx", True),
        ("[]-]x", "]x", True),
        ("[]-]x", "-x", True),
        ("[[:digit:]]x", "7x", True),
        ("[[:digit:]]x", "ax", None),
        ("[a", "[a", None),
        ("[[:nothing:]]", "a", None),
        ("\\#a", "#a", True),
        ("#a", "#a", None),
        ("\\!a", "!a", True),
        ("a  ", "a", True),
        ("a\\ ", "a ", True),
        ("a\\", "a\\", None),
        ("a\r\n", "a", True),
        ("\ufeffa", "a", True),
        ("x*y*z", "xayaz", True),
        ("x*y*z", "xazay", None),
        ("", "a", None),
        ("/", "a", None),
        ("a.c", "abc", None),
    ],
)
def test_a_rule(rules: str, path: str, verdict: bool | None) -> None:
    assert ignored(rules, path) is verdict


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 400 + "b", "a" * 255),
        ("**/" * 200 + "x", "/".join("a" * 64)),
        ("a/" + "**/a/" * 150 + "b", "/".join("a" * 64)),
        ("[a-z]*" * 150 + "!", "a" * 255),
        ("?*" * 500 + "b", "a" * 255),
    ],
)
def test_a_pathological_pattern_takes_no_time(pattern: str, name: str) -> None:
    rules = IgnoreRules(pattern.encode())
    parts = name.encode().split(b"/")
    start = time.process_time()
    for _ in range(20):
        assert rules.verdict(parts, False) is None
    assert time.process_time() - start < 1.0
    assert rules.cost > 100


def test_what_cannot_be_obeyed_in_full_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        IgnoreRules(b"a\n" * (MAX_RULES + 1))
    with pytest.raises(ValueError, match="longer"):
        IgnoreRules(b"a" * (MAX_PATTERN + 1))
    IgnoreRules(b"#\n" * (MAX_RULES + 1))


@given(st.binary(max_size=60), st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=5))
def test_any_bytes_are_rules(text: bytes, parts: list[bytes]) -> None:
    parts = [part.replace(b"/", b"_") for part in parts]
    assert IgnoreRules(text).verdict(parts, True) in (True, False, None)


NAMES = ["a", "b", "ab", "a.b", "!a", "#a", "a b", "[a]", "-"]
PIECES = ["a", "b", "*", "**", "?", "/", "[ab]", "[!a]", "[a-]", ".", "\\a", "!", "#", " ", "-"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join), max_size=4),
    st.lists(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join),
        min_size=1,
        max_size=12,
    ),
)
def test_git_says_the_same(repository: Path, patterns: list[str], paths: list[str]) -> None:
    # git takes what stands before the first star literally and then starts anew, so that "a**/b"
    # means another thing to it than gitignore(5) says
    patterns = [p for p in patterns if "**" not in p.replace("/**/", "/").strip("/*")]
    (repository / ".gitignore").write_text("\n".join(patterns) + "\n")
    said = subprocess.run(
        ["git", "check-ignore", "-v", "-n", "-z", "--no-index", "--stdin"],
        input="\0".join(paths).encode() + b"\0",
        cwd=repository,
        env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(repository)},
        capture_output=True,
        check=False,
    ).stdout.split(b"\0")
    rules = IgnoreRules((repository / ".gitignore").read_bytes())
    for i, path in enumerate(paths):
        parts = path.encode().split(b"/")
        expected = said[4 * i + 2]
        ours: bool | None = None
        for n in range(1, len(parts) + 1):  # a folder that is ignored takes all below with it
            ours = rules.verdict(parts[:n], n < len(parts))
            if ours:
                break
        verdict = None if not expected else not expected.startswith(b"!")
        assert bool(ours) == bool(verdict), (path, expected)
