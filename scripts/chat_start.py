"""How long `agentspec chat` takes to its first prompt, and to index a repository of 5,000 files.

Run it alone: `python scripts/chat_start.py [--files N] [--repeat N]`. Files are made in a temporary
folder; the model is a server that never answers, so that nothing but agentspec is measured.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from agentspec.assistant.repo_map import RepoMap
from agentspec.assistant.repository import Repository
from agentspec.machine import cores, cpu_model
from tests.terminal.driven import Terminal
from tests.terminal.scripted_server import Script, serving


def make_files(folder: Path, count: int) -> None:
    """Modules of some 60 lines that refer to each other."""
    for n in range(count):
        path = folder / f"package{n // 50}" / f"module{n}.py"
        path.parent.mkdir(exist_ok=True)
        lines = [
            f"from package{(n * 7) % count // 50}.module{(n * 7) % count} import function{n}_0"
        ]
        for k in range(6):
            lines += [
                "",
                "",
                f"def function{n}_{k}(first, second):",
                f'    """Number {k} of module {n}."""',
                f"    value = first * {k} + second",
                "    for item in range(value):",
                f"        value += function{n}_{max(k - 1, 0)}(item, {n})",
                "    return value",
            ]
        path.write_text("\n".join(lines) + "\n")


def first_prompt(folder: Path, home: Path, url: str) -> float:
    """Seconds from the start of the program to the prompt that takes keys."""
    begun = time.perf_counter()
    terminal = Terminal(["chat", "--base-url", url], folder, home)
    try:
        # the line below the prompt is drawn with it
        terminal.until("scripted ·")
        return time.perf_counter() - begun
    finally:
        terminal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    print(f"{cpu_model()}, {cores()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name, serving(Script([])) as script:
        folder, home = Path(name) / "project", Path(name) / "home"
        folder.mkdir()
        home.mkdir()
        make_files(folder, options.files)
        subprocess.run(["git", "init", "-q", folder], check=True)
        seconds = [first_prompt(folder, home, script.url) for _ in range(options.repeat)]
        print(
            f"first prompt in a repository of {options.files:,} files: median "
            f"{statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s "
            f"({options.repeat} starts)"
        )
        for which in ("first", "second"):
            begun = time.perf_counter()
            chart = RepoMap(Repository(folder), Path(name) / "map.json")
            read = chart.refresh()
            indexed = time.perf_counter() - begun
            text = chart.render(2_000, lambda text: len(text) // 4)
            whole = time.perf_counter() - begun
            print(
                f"{which} time: {read:,} files read in {indexed:.2f} s, map of "
                f"{len(text.splitlines())} lines in {whole:.2f} s"
            )


if __name__ == "__main__":
    main()
