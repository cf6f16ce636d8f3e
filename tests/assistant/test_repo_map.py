from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agentspec.assistant import repo_map
from agentspec.assistant.repo_map import Focus, RepoMap, mentioned_names, ranking
from agentspec.assistant.repository import Repository
from agentspec.assistant.symbols import Symbols, symbols

FILES = {
    "core/engine.py": (
        "class FlowEngine:\n    def run_once(self):\n        pass\n\ndef make_engine():\n"
        "    return FlowEngine()\n"
    ),
    "app.py": "from core.engine import make_engine\n\ndef start_app():\n    make_engine()\n",
    "cli.py": (
        "from core.engine import FlowEngine\n\ndef start_cli():\n    FlowEngine().run_once()\n"
    ),
    "lonely.py": "def never_called_here():\n    pass\n",
    "notes.md": "Nothing about code.\n",
}


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    root = tmp_path / "repo"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Repository(root)


def test_what_is_referred_to_comes_first(repo: Repository) -> None:
    chart = RepoMap(repo)
    assert chart.refresh() == 5
    text = chart.render(1000, words)
    assert text.startswith("core/engine.py:\n    1  class FlowEngine:\n")
    assert "    2      def run_once(self):" in text
    assert "notes.md" not in text


def test_the_budget_holds_and_less_of_it_shows_less(repo: Repository) -> None:
    chart = RepoMap(repo)
    chart.refresh()
    sizes = [words(chart.render(budget, words)) for budget in (0, 5, 10, 20, 1000)]
    assert all(size <= budget for size, budget in zip(sizes, (0, 5, 10, 20, 1000), strict=True))
    assert sizes == sorted(sizes)
    assert sizes[0] == 0
    assert "FlowEngine" in chart.render(5, words)


def test_what_the_conversation_mentions_comes_first(repo: Repository) -> None:
    chart = RepoMap(repo)
    chart.refresh()
    named = chart.render(6, words, Focus(names=frozenset({"never_called_here"})))
    assert named.startswith("lonely.py")
    assert chart.render(6, words, Focus(files=frozenset({"lonely.py"}))).startswith("lonely.py")


def test_files_that_the_model_has_are_not_shown_again(repo: Repository) -> None:
    chart = RepoMap(repo)
    chart.refresh()
    assert "lonely.py" not in chart.render(1000, words, Focus(held=frozenset({"lonely.py"})))


def test_only_what_changed_is_read_again(repo: Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "map.json"
    chart = RepoMap(repo, cache)
    chart.refresh()
    assert chart.refresh() == 0
    path = repo.root / "lonely.py"
    path.write_text("def other_name():\n    pass\n")
    os.utime(path, ns=(1, 1))
    (repo.root / "app.py").unlink()
    again = RepoMap(repo, cache)
    assert again.refresh() == 1
    assert [path for path, _ in again.definitions("other_name")] == ["lonely.py"]
    assert not again.definitions("never_called_here")
    assert not again.definitions("start_app")
    assert RepoMap(repo, cache).refresh() == 0


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"version": 1}', b"\xff", b'{"version": 0}'])
def test_a_damaged_cache_is_made_again(repo: Repository, tmp_path: Path, kept: bytes) -> None:
    cache = tmp_path / "map.json"
    cache.write_bytes(kept)
    assert RepoMap(repo, cache).refresh() == 5
    assert RepoMap(repo, cache).refresh() == 0


def test_progress_is_told(repo: Repository) -> None:
    told: list[tuple[int, int]] = []
    RepoMap(repo).refresh(lambda done, all_: told.append((done, all_)))
    assert told[-1] == (5, 5)


def test_hostile_files_do_no_harm(repo: Repository) -> None:
    (repo.root / "a.py").write_bytes(b"\xff\xfe def x" * 50)
    (repo.root / "deep.py").write_text("(" * 20_000)
    (repo.root / "long.py").write_text("x = '" + "y" * 400_000 + "'\n")
    (repo.root / "nul.py").write_bytes(b"def a():\0\n")
    (repo.root / "odd\x1b[31m.py").write_text("def odd_name():\n    pass\n")
    os.mkfifo(repo.root / "fifo.py")
    (repo.root / "link.py").symlink_to("/etc/passwd")
    chart = RepoMap(repo)
    chart.refresh()
    text = chart.render(1000, words)
    assert "\x1b" not in text
    assert "odd_name" in text
    assert all(len(line) < 300 for line in text.split("\n"))


def test_an_empty_repository(tmp_path: Path) -> None:
    chart = RepoMap(Repository(tmp_path))
    assert chart.refresh() == 0
    assert chart.render(100, words) == ""


def test_ranks_are_shares_of_one() -> None:
    files = {path: symbols(path, text) for path, text in FILES.items()}
    rank = ranking(files, Focus())
    assert sum(rank.values()) == pytest.approx(1)
    assert max(rank, key=lambda path: rank[path]) == "core/engine.py"
    assert ranking({}, Focus()) == {}


def test_what_a_text_is_about(repo: Repository) -> None:
    chart = RepoMap(repo)
    chart.refresh()
    focus = chart.focus("Why does `start_app` in (core/engine.py) and @cli.py fail?", ["app.py"])
    assert focus.files == {"core/engine.py", "cli.py"}
    assert focus.names == {"start_app"}
    assert focus.held == {"app.py"}


def test_too_much_code_is_cut(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo_map, "_MAX_TOTAL", 100)
    chart = RepoMap(repo)
    assert 0 < chart.refresh() < 5


def test_names_in_a_text() -> None:
    assert mentioned_names("fix run_once() in FlowEngine", ["run_once", "FlowEngine", "in"]) == {
        "run_once",
        "FlowEngine",
    }


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("a.py", "class A:\n  async def f(self): pass\n@x\ndef g(): pass\n", "A f g"),
        ("a.js", "class A { m() {} }\nfunction f() {}\n", "A m f"),
        ("a.ts", "interface I { x: number }\ntype T = I\nenum E { A }\nfunction f() {}\n",
         "I T E f"),
        ("a.go", "package p\ntype T struct{}\nfunc (t T) M() {}\nfunc F() {}\n", "T M F"),
        ("a.rs", "struct S;\nimpl S { fn m(&self) {} }\nfn f() {}\ntrait R {}\n", "S m f R"),
        ("a.c", "struct s { int x; };\nstatic int *f(struct s *p) { return 0; }\n", "s f"),
        ("a.cpp", "namespace n { class C { void m() {} }; }\nint n::C::k() { return 0; }\n",
         "n C m k"),
        ("A.java", "class A { void m() {} }\ninterface I {}\n", "A m I"),
        ("a.sh", "f() { echo; }\n", "f"),
        ("a.unknown", "def f(): pass\n", ""),
    ],
)  # fmt: skip
def test_definitions_of_each_language(path: str, text: str, names: str) -> None:
    found = symbols(path, text)
    assert [definition.name for definition in found.definitions] == names.split()
    lines = text.split("\n")
    for definition in found.definitions:
        assert definition.name in lines[definition.line - 1]


def test_depth_and_references() -> None:
    found = symbols("a.py", "class A:\n    def f(self):\n        g(h.k)\n\ndef z(): pass\n")
    assert [(d.name, d.depth) for d in found.definitions] == [("A", 0), ("f", 1), ("z", 0)]
    assert found.references["g"] == 1
    assert found.references["k"] == 1
    assert "A" not in found.references
    assert symbols("x.unknown", "g h") == Symbols()


@pytest.mark.parametrize("text", ["(" * 60_000, "[" * 60_000, "def f():\n  x = " + "(" * 60_000])
def test_brackets_that_never_close_take_no_time_by_the_square(text: str) -> None:
    begun = time.thread_time()
    symbols("a.py", text + " word")
    assert time.thread_time() - begun < 3  # 10 s and more before


def test_a_text_with_a_mistake_keeps_its_definitions() -> None:
    found = symbols("a.py", "x = = 1\n\ndef g():\n    return 1\n\ndef h(): pass\n")
    assert [definition.name for definition in found.definitions] == ["g", "h"]
