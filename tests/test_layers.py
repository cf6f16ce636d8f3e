"""Who may import whom. Imports inside functions and under TYPE_CHECKING count like any other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "agentspec": ROOT / "agentspec",
    "agentspec.adapters": ROOT / "adapters",
    "agentspec.prompts": ROOT / "prompts",
}

BASE = {"types", "errors", "files", "visible", "closing"}
CONTRACT = BASE | {"backends.base"}
# What one decode step is made of.
PARTS = CONTRACT | {"engine", "control", "propose", "context", "syntax"}
CHAT = PARTS | {"engine.decode", "chat", "wire", "prompts"}
# The engine as callers see it, and what it is loaded from.
FRONT = {
    "api", "aio", "answer", "drafting", "generation", "loading", "loading_heads", "loading_torch",
    "machine",
    "remote", "request", "scheduler", "shared", "turns",
}  # fmt: skip
API = CHAT | FRONT | {"models", "backends", "config"}
EVERYTHING = {""}

# A module -> what it may import, both without the leading "agentspec."; the longest row counts,
# and a row allows what lies below it. Rows for "engine" mean its parts: engine.decode has its own.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "closing": set(),
    "visible": set(),
    "types": {"errors"},
    "config": BASE,
    "prompts": BASE | {"prompts"},
    "models": BASE | {"models"},
    "backends.base": BASE,
    "backends": BASE | {"backends", "models.gguf"},
    "engine": CONTRACT | {"engine"},
    # What is known of a candidate is worded once, for those that find it and those that weigh it.
    "control": CONTRACT | {"control", "syntax", "context.evidence"},
    "propose": CONTRACT | {"propose", "context", "syntax", "engine"},
    "context": CONTRACT | {"context", "syntax"},
    "syntax": CONTRACT | {"syntax"},
    "engine.decode": PARTS | {"engine.decode"},
    "wire": BASE | {"wire"},
    "chat": CHAT,
    **dict.fromkeys(FRONT, API),
    # Calibration is part of loading; the rest of it stands on the engine.
    "loading": API | {"audit"},
    "audit": API | {"audit"},
    "testing": PARTS | {"engine.decode", "testing"},
    "replay": API | {"replay"},
    "training": API | {"replay", "training"},
    # A command line is put together from what is known of models; nothing is loaded.
    "vllm": BASE | {"models", "vllm"},
    "bench": API | {"bench", "audit", "replay", "testing"},
    "server": API | {"server"},
    "assistant": API | {"assistant"},
    "terminal": API | {"assistant", "terminal"},
    "adapters": API | {"adapters"},
    # The application itself is asked, in this process.
    "adapters.openai_client": API | {"adapters", "server"},
    "cli": EVERYTHING,
    "": EVERYTHING,
}

# Library -> where it may be imported.
LIBRARIES: dict[str, set[str]] = {
    "llama_cpp": {"backends"},
    # Training is work on a model's own tensors.
    "torch": {"backends", "training"},
    "transformers": {"backends", "training"},
}

# Not parts of a decode step, though they lie in the same folder.
SEPARATE = {"engine.decode"}


def below(name: str, row: str) -> bool:
    return row == "" or name == row or name.startswith(row + ".")


def row_of(module: str) -> str:
    return max((row for row in LAYERS if below(module, row)), key=len)


def allowed(target: str, rows: set[str]) -> bool:
    if any(below(target, own) for own in SEPARATE):
        return any(below(target, row) for row in rows if row == "" or row in SEPARATE)
    return any(below(target, row) for row in rows)


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, however deep."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
            in {"import_module", "__import__", "find_spec"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield node.lineno, node.args[0].value


def violations(module: str, source: str, modules: set[str]) -> Iterator[str]:
    """One line for each import in `module` (without "agentspec.") that breaks a rule."""
    for line, name in imports(source):
        library = name.partition(".")[0]
        if library in LIBRARIES and not any(below(module, row) for row in LIBRARIES[library]):
            yield f"{module}:{line} imports {library}"
        if library != "agentspec":
            continue
        target = name.removeprefix("agentspec").removeprefix(".")
        # `from agentspec.types import Draft` names a thing in a module, not a module.
        while target and target not in modules:
            target = target.rpartition(".")[0]
        if not allowed(target, LAYERS[row_of(module)]):
            yield f"{module}:{line} imports agentspec.{target}"
        if below(target, "adapters") and not below(module, "adapters"):
            yield f"{module}:{line} imports an adapter"
        if (
            module.startswith("propose.")
            and target.startswith("propose.")
            and target != module
            and not target.removeprefix("propose.").startswith("_")
        ):
            yield f"{module}:{line}: a proposer imports the proposer {target}"


def sources() -> dict[str, str]:
    found: dict[str, str] = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name.removeprefix("agentspec").removeprefix(".")] = path.read_text("utf-8")
    return found


def test_the_layers_hold() -> None:
    found = sources()
    assert {"errors", "types", "backends.base", "adapters", "prompts"} <= set(found)
    broken = [
        line for name, source in found.items() for line in violations(name, source, set(found))
    ]
    assert not broken, "\n".join(broken)


def test_every_row_has_its_module_or_is_to_come() -> None:
    names = set(sources())
    to_come = {"api", "wire", "testing", "replay", "bench", "server", "engine.decode"}
    assert set(LAYERS) <= names | to_come


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "import agentspec.wire"),
        ("types", "from agentspec import wire"),
        ("models.gguf", "from llama_cpp import llama_cpp"),
        ("chat.template", "def f():\n    import torch.nn"),
        ("chat.template", "import importlib\nx = importlib.import_module('transformers')"),
        ("engine.session", "from agentspec.engine.decode import x"),
        ("engine.session", "from agentspec.engine import decode"),
        ("engine.verify", "from agentspec.chat import template"),
        ("propose.lookup", "from agentspec.propose.draft_model import x"),
        ("propose.lookup", "from agentspec.propose import draft_model"),
        ("context.index", "from agentspec.propose.lookup import x"),
        ("backends.torch", "from agentspec.engine import session"),
        ("cli.complete", "import agentspec.adapters"),
        ("server.app", "from agentspec.adapters import x"),
        ("server.app", "from agentspec.cli import main"),
        ("models.pull", "from agentspec.config import Settings"),
        (
            "control.cost",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from agentspec.chat import x",
        ),
    ],
)
def test_what_breaks_a_rule_is_found(module: str, source: str) -> None:
    modules = {"", "wire", "types", "config", "models", "engine", "engine.decode", "chat", "cli"}
    modules |= {"engine.session", "propose", "propose.lookup", "propose.draft_model", "adapters"}
    assert list(violations(module, source, modules))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("types", "from agentspec.errors import AgentspecError"),
        ("engine.decode", "from agentspec.propose import lookup"),
        ("chat.stream", "from agentspec.engine.decode import x"),
        ("backends.llama_cpp", "import llama_cpp.llama_cpp as lib"),
        ("propose.lookup", "from agentspec.propose import _common"),
        ("cli.bench", "from agentspec.bench import report\nfrom agentspec import models"),
    ],
)
def test_what_keeps_the_rules_passes(module: str, source: str) -> None:
    modules = {"", "errors", "types", "engine", "engine.decode", "propose", "propose.lookup"}
    modules |= {"propose._common", "bench", "bench.report", "models"}
    assert not list(violations(module, source, modules))
