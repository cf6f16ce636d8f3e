"""A tool loop of twenty turns through `agentspec serve`: time to first token, total, reuse.

python scripts/server_loop.py [--model NAME] [--repeat 2] [--llama-server PATH] [--draft NAME]
                              [--out FILE]

Every turn sends the whole history again, the server's own calls in it as another JSON writer would
put them, and asks for one call of a named tool; the results are fixed. Servers run one after
another, in turn. Where an answer differs from plain decoding's (ties), so does what follows it.
llama-server runs plain and with its ngram-simple, and with a draft model where `--draft` names one.
It hears no name of a tool, so a grammar holds it to the call.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentspec.bench.llama_server import command_of
from agentspec.bench.served import PORT, served

CART = '''"""A shopping cart."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Item:
    """One line of a cart."""

    name: str
    price: float
    count: int = 1

    def total(self) -> float:
        return self.price * self.count


@dataclass
class Cart:
    """Items in the order they were added."""

    items: list[Item] = field(default_factory=list)

    def add(self, item: Item) -> None:
        self.items.append(item)

    def remove(self, name: str) -> None:
        self.items = [item for item in self.items if item.name == name]

    def total(self, discount: float = 0.0) -> float:
        amount = 0
        for item in self.items:
            amount += item.price
        return amount * (1 - discount)
'''
TESTS = """from cart import Cart, Item


def test_total_counts_every_piece():
    cart = Cart()
    cart.add(Item("tea", 2.5, 4))
    assert cart.total() == 10.0


def test_remove_takes_one_item_out():
    cart = Cart([Item("tea", 2.5), Item("milk", 1.0)])
    cart.remove("tea")
    assert [item.name for item in cart.items] == ["milk"]
"""
FIXED = CART.replace("item.name == name]", "item.name != name]").replace(
    "amount += item.price\n", "amount += item.total()\n"
)
FAILS = """============================= test session starts ==============================
collected 2 items

tests/test_cart.py FF                                                    [100%]

=================================== FAILURES ===================================
________________________ test_total_counts_every_piece _________________________
>       assert cart.total() == 10.0
E       assert 2.5 == 10.0

tests/test_cart.py:7: AssertionError
________________________ test_remove_takes_one_item_out ________________________
>       assert [item.name for item in cart.items] == ["milk"]
E       AssertionError: assert ['tea'] == ['milk']

tests/test_cart.py:13: AssertionError
=========================== 2 failed in 0.03 seconds ============================
"""
ONE_FAILS = FAILS.replace("FF  ", ".F  ").replace("2 failed", "1 failed, 1 passed")
PASSES = "collected 2 items\n\ntests/test_cart.py ..    [100%]\n\n2 passed in 0.01 seconds\n"
STATUS = " M cart.py\n\nno changes added to commit\n"

STEPS: Sequence[tuple[str, str]] = (
    ("list_files", "cart.py\nREADME.md\ntests/test_cart.py\n"),
    ("read_file", CART),
    ("read_file", TESTS),
    ("run_command", FAILS),
    ("search", "cart.py:30:    def total(self, discount: float = 0.0) -> float:\n"),
    ("edit_file", "edited cart.py\n"),
    ("run_command", ONE_FAILS),
    ("read_file", CART.replace("amount += item.price\n", "amount += item.total()\n")),
    ("edit_file", "edited cart.py\n"),
    ("run_command", PASSES),
    ("read_file", FIXED),
    ("write_file", "wrote cart.py\n"),
    ("run_command", PASSES),
    ("run_command", STATUS),
    ("read_file", "# Cart\n\nA small example.\n"),
    ("write_file", "wrote README.md\n"),
    ("search", "README.md:1:# Cart\n"),
    ("run_command", PASSES),
    ("run_command", STATUS),
    ("run_command", "[main 3f1c2aa] Cart: remove and total\n 2 files changed\n"),
)
TASK = (
    "The tests of this small repository fail. Find out why, repair cart.py, write the whole "
    "repaired file once more with a docstring for every method, describe it in README.md and "
    "commit. Use the tools, one call at a time."
)
_TEXT = {"type": "string"}


def _tool(name: str, description: str, *fields: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": dict.fromkeys(fields, _TEXT),
        "required": list(fields),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("list_files", "List the files of the repository.", "folder"),
    _tool("read_file", "Read a file.", "path"),
    _tool("search", "Search all files for a pattern.", "pattern"),
    _tool("edit_file", "Replace a piece of text in a file.", "path", "old_string", "new_string"),
    _tool("write_file", "Write a whole file.", "path", "content"),
    _tool("run_command", "Run a command in the repository.", "command"),
]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer; seconds from sending the request to the first delta and to the end.

    `read` and `decode` are the seconds that the server says it read the prompt and wrote. A call is
    given when it is complete, so its first delta comes late whatever the model is doing.
    """

    first: float
    total: float
    read: float
    decode: float
    prompt: int
    cached: int
    tokens: int
    call: dict[str, Any]
    timed: int = 0
    """Tokens that `decode` is the time of: llama-server's begins behind the first one."""


def grammar_of(tool: str) -> str:
    """A call of the tool as Qwen writes it, in llama.cpp's notation."""
    fields = next(
        each["function"]["parameters"]["required"]
        for each in TOOLS
        if each["function"]["name"] == tool
    )
    head = json.dumps(f'<tool_call>\n{{"name": "{tool}", "arguments": {{')
    keys = [json.dumps(("" if at == 0 else ", ") + f'"{key}": ') for at, key in enumerate(fields)]
    end = json.dumps("}}\n</tool_call>")
    return "\n".join(
        (
            f"root ::= {head} {' text '.join(keys)} text {end}",
            r'text ::= "\"" char* "\""',
            r'char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4})',
        )
    )


def written(text: str) -> dict[str, Any]:
    """The call in a text that the grammar held; without a name where it was cut off."""
    inner = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    try:
        found = json.loads(inner)
    except ValueError:
        return {}
    return {"name": found["name"], "arguments": json.dumps(found["arguments"])}


def ask(url: str, messages: Sequence[Any], tool: str, most: int, *, named: bool) -> Turn:
    """One streamed answer that calls the tool, which is `named` or held to it by a grammar.

    Raises RuntimeError for any failure.
    """
    where = urlsplit(url)
    choice: dict[str, Any] = {"tool_choice": "none", "grammar": grammar_of(tool)}
    if named:
        choice = {"tool_choice": {"type": "function", "function": {"name": tool}}}
    body = {
        "model": "any",
        "messages": messages,
        "tools": TOOLS,
        **choice,
        "max_tokens": most,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=900)
    call: dict[str, Any] = {"id": "", "name": "", "arguments": ""}
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    text = ""
    first, started = 0.0, time.perf_counter()
    with contextlib.closing(connection):
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read(2000).decode('utf-8', 'replace')}")
        for line in reply:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
            for each in event.get("choices", ()):
                text += each["delta"].get("content") or ""
                if text:
                    first = first or time.perf_counter() - started
                for part in each["delta"].get("tool_calls") or ():
                    first = first or time.perf_counter() - started
                    call["id"] = part.get("id") or call["id"]
                    function = part.get("function") or {}
                    call["name"] += function.get("name") or ""
                    call["arguments"] += function.get("arguments") or ""
    total = time.perf_counter() - started
    if not named:
        call |= written(text)
    details = usage.get("prompt_tokens_details") or {}
    decode = timings.get("predicted_ms", 0.0) / 1000
    return Turn(
        first or total,
        total,
        timings.get("prompt_ms", 0.0) / 1000,
        decode,
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens", 0),
        usage.get("completion_tokens", 0),
        call,
        round(timings.get("predicted_per_second", 0.0) * decode),
    )


def rewritten(arguments: str) -> str:
    """The same JSON with its keys in another order and other white space."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(dict(reversed(value.items())), indent=1) if value else arguments


def loop(url: str, most: int, turns_most: int, *, named: bool) -> list[Turn]:
    """The turns of one conversation."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful programmer who works with tools."},
        {"role": "user", "content": TASK},
    ]
    turns = []
    for number, (tool, result) in enumerate(STEPS[:turns_most]):
        turn = ask(url, messages, tool, most, named=named)
        turns.append(turn)
        # an answer that was cut off is no call: the loop goes on as if it had been an empty one
        arguments = rewritten(turn.call["arguments"] or "{}")
        function = {"name": turn.call["name"] or tool, "arguments": arguments}
        said = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [said]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
        ]
    return turns


_THEIRS = "llama-server"


def commands(
    model: str, n_ctx: int, llama_server: Path | None, draft: str | None
) -> dict[str, list[str]]:
    """The servers to compare, by name; PORT stands for a port."""
    own = [sys.executable, "-m", "agentspec", "serve", model, "--port", PORT]
    own += ["--n-ctx", str(n_ctx), "--draft"]
    found = {"plain": [*own, "none", "--no-speculation"], "accelerated": [*own, "none"]}
    if draft is not None:
        found["accelerated, draft model"] = [*own, draft]
    if llama_server is not None:
        from agentspec.backends.llama_params import LlamaSettings
        from agentspec.models import catalog

        theirs = command_of(str(llama_server), catalog.resolve(model).path, LlamaSettings(), n_ctx)
        found[_THEIRS] = theirs
        found[f"{_THEIRS}, ngram-simple"] = [*theirs, "--spec-type", "ngram-simple"]
        if draft is not None:
            path = str(catalog.resolve(draft).path)
            found[f"{_THEIRS}, draft model"] = [*theirs, "--spec-type", "draft-simple", "-md", path]
    return found


def summary(turns: Sequence[Turn]) -> dict[str, float]:
    """Sums and medians over a loop; `reused` is the share of history tokens, the first left out."""
    later = turns[1:]
    history = sum(before.prompt + before.tokens for before in turns[:-1])
    return {
        "seconds": sum(turn.total for turn in turns),
        "first_median": statistics.median(turn.first for turn in turns),
        "read": sum(turn.read for turn in turns),
        "decode": sum(turn.decode for turn in turns),
        "tokens": sum(turn.tokens for turn in turns),
        "speed": sum(turn.timed or turn.tokens for turn in turns) / sum(t.decode for t in turns),
        "prompt_tokens": sum(turn.prompt for turn in turns),
        "cached_tokens": sum(turn.cached for turn in turns),
        "reused": sum(turn.cached for turn in later) / history if history else 0.0,
    }


def show(runs: Mapping[str, list[list[Turn]]]) -> None:
    """Print the table of all servers; ratios are those of tokens per second of writing."""
    some = next(iter(runs.values()))
    print(f"{len(some[0])} turns, medians of {len(some)} runs, servers in turn\n")
    print(
        "server                      seconds  reading  writing  tokens  tok/s  ratio  first delta  "
        "prompt tokens  of history reused"
    )
    totals = {
        name: {key: statistics.median(summary(t)[key] for t in many) for key in summary(many[0])}
        for name, many in runs.items()
    }
    for name, row in totals.items():
        ratio = row["speed"] / totals["plain"]["speed"]
        print(
            f"{name:26s} {row['seconds']:8.1f} {row['read']:8.1f} {row['decode']:8.1f} "
            f"{row['tokens']:7.0f} {row['speed']:6.1f} {ratio:6.2f} {row['first_median']:11.2f}s "
            f"{row['prompt_tokens']:14.0f} {row['reused']:18.1%}"
        )
    print()
    same = [turn.call["arguments"] for turn in runs["plain"][0]]
    for name, many in runs.items():
        equal = sum(a == t.call["arguments"] for a, t in zip(same, many[0], strict=True))
        print(f"{name}: {equal} of {len(same)} calls equal to the first plain run's")


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; 0 when every turn was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--n-ctx", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--turns", type=int, default=len(STEPS), help="the first so many")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--draft", help="a draft model, for each server in a run of its own too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path, help="print the table of a report that --out wrote")
    chosen = parser.parse_args(argv)
    if chosen.again is not None:
        kept = json.loads(chosen.again.read_text("utf-8"))
        show({k: [[Turn(**t) for t in turns] for turns in many] for k, many in kept.items()})
        return 0
    runs: dict[str, list[list[Turn]]] = {}
    for _ in range(chosen.repeat):
        for name, command in commands(
            chosen.model, chosen.n_ctx, chosen.llama_server, chosen.draft
        ).items():
            theirs = name.startswith(_THEIRS)
            with served(command, quiet=theirs) as port:
                url = f"http://127.0.0.1:{port}"
                turns = loop(url, chosen.max_tokens, chosen.turns, named=not theirs)
            runs.setdefault(name, []).append(turns)
            print(name, json.dumps(summary(turns)), file=sys.stderr, flush=True)
    print(f"{date.today()}: {chosen.model}, {platform.machine()}, {os.cpu_count()} cores")
    show(runs)
    if chosen.out is not None:
        report = {
            name: [[asdict(t) for t in turns] for turns in many] for name, many in runs.items()
        }
        chosen.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
