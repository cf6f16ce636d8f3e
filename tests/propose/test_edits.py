"""A file that is written again with a change in it takes few passes, whatever the change."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from dataclasses import replace

import pytest

from agentspec.context import pool
from agentspec.control.controller import FixedController
from agentspec.control.cost import CostCurve
from agentspec.drafting import Drafting
from agentspec.propose.longest import LongestMatch
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedTokenizer

FLAT = CostCurve.from_points({1: 1.0, 64: 1.3})
VOCAB, MARK, FIRST, END = 1 << 14, 256, 260, (1 << 14) - 1
PIECE = re.compile(r'\\[nt"\\]|\n+| ?\w+|\s+|[^\w\s]')

FILE = '''"""Accounts and what moves between them."""

from dataclasses import dataclass, field


@dataclass
class Account:
    owner: str
    balance: int = 0
    history: list[str] = field(default_factory=list)

    def deposit(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError("nothing to deposit")
        self.balance += amount
        self.history.append(f"deposit {amount}")

    def withdraw(self, amount: int) -> None:
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        self.history.append(f"withdraw {amount}")


def transfer(source: Account, target: Account, amount: int) -> None:
    """Move money; raises ValueError when there is too little."""
    source.withdraw(amount)
    target.deposit(amount)


def report(accounts: list[Account]) -> str:
    lines = []
    for account in sorted(accounts, key=lambda a: a.owner):
        lines.append(f"{account.owner}: {account.balance}")
        for entry in account.history:
            lines.append(f"    {entry}")
    return "\\n".join(lines)


def main() -> None:
    alice, bob = Account("alice", 100), Account("bob")
    transfer(alice, bob, 30)
    print(report([alice, bob]))
'''


class Words(ScriptedTokenizer):
    """A token per word, run of spaces or escape, as they come; bytes for what is left."""

    def __init__(self) -> None:
        super().__init__(VOCAB, special={MARK: "<|im_end|>"}, words={}, eos_ids=frozenset({END}))
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        found = []
        for piece in PIECE.findall(text):
            if piece not in self._ids:
                self._ids[piece] = FIRST + len(self._ids)
                assert self._ids[piece] < END
                self._words[self._ids[piece]] = piece.encode()
            found.append(self._ids[piece])
        return found

    def encode_special(self, text: str) -> list[int]:
        return self.encode(text)


def tokens_per_pass(
    prompt: str, answer: str, *, plain: bool, without: Set[str] = frozenset(), leaves: int = 1
) -> float:
    """Of the answer to a prompt that a mark ends, with all parts or with prompt lookup alone."""
    tokenizer = Words()
    asked = [*tokenizer.encode(prompt), MARK, *tokenizer.encode("Now:\n")]
    written = [*tokenizer.encode(answer), END]
    assert tokenizer.decode(written).decode() == answer
    backend = ScriptedBackend.following([*asked, *written], VOCAB)
    backend.tokenizer = tokenizer
    backend.capabilities = replace(backend.capabilities, tree=leaves > 1, max_leaves=leaves)
    loop = Loop(backend)
    if plain:
        found = loop.answer(
            asked, [LongestMatch(min_match=3)], controller=FixedController(), max_tokens=4096
        )
    else:
        drafting = Drafting(tokenizer, cost=FLAT, without=without, leaves=leaves)
        proposers = drafting.proposers()
        found = loop.answer(
            asked, proposers, controller=drafting.controller(proposers), max_tokens=4096
        )
    assert found.tokens == written
    assert found.finish == "stop"
    assert not found.stats.notes
    return len(found.tokens) / len(found.verdicts)


def numbered(text: str) -> str:
    return "".join(f"{n:6d}\t{line}\n" for n, line in enumerate(text.splitlines(), 1))


def quoted(text: str) -> str:
    return json.dumps({"path": "bank.py", "content": text})


CHANGED = FILE.replace("amount > self.balance", "amount > self.balance + limit").replace(
    '"not enough money"', '"over the limit"'
)
RENAMED = FILE.replace("amount", "cents")
INSERTED = FILE.replace(
    "    source.withdraw(amount)\n",
    "    if source is target:\n        return\n    source.withdraw(amount)\n",
).replace("    return ", "    print(lines)\n    return ")
DELETED = FILE.replace(
    '            raise ValueError("nothing to deposit")\n', "            return\n"
)
DEEPER = "class Bank:\n" + "".join(
    f"    {line}" if line.strip() else line for line in FILE.splitlines(keepends=True)
)

EDITS = {
    "the same": (FILE, FILE, 15.0),
    "changed lines": (FILE, CHANGED, 11.0),
    "renamed": (FILE, RENAMED, 7.0),
    "inserted lines": (FILE, INSERTED, 8.5),
    "a line less": (FILE, DELETED, 12.0),
    "changed indentation": (FILE, DEEPER, 3.3),
    "quoted": (FILE, quoted(CHANGED), 8.0),
    "quoted from numbered lines": (numbered(FILE), quoted(CHANGED), 8.0),
    "numbered lines as they are": (numbered(FILE), CHANGED, 9.0),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_pass_gives_many_tokens_of_an_edited_file(what: str) -> None:
    prompt, answer, least = EDITS[what]
    drafted = tokens_per_pass(prompt, answer, plain=False)
    assert drafted >= least
    assert drafted >= 1.6 * tokens_per_pass(prompt, answer, plain=True)


@pytest.mark.parametrize("what", ["quoted", "quoted from numbered lines"])
def test_it_is_the_quoted_shape_that_does_it(what: str) -> None:
    prompt, answer, least = EDITS[what]
    without = tokens_per_pass(prompt, answer, plain=False, without={"edit"})
    assert without < least / 2


@pytest.mark.parametrize(("what", "gain"), [("renamed", 1.15), ("changed indentation", 1.05)])
def test_it_is_the_broken_alignment_that_does_it(
    what: str, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, answer, _ = EDITS[what]
    drafted = tokens_per_pass(prompt, answer, plain=False)
    monkeypatch.setattr(pool, "_HELD", 0)
    assert drafted > gain * tokens_per_pass(prompt, answer, plain=False)


@pytest.mark.parametrize("what", ["renamed", "inserted lines", "quoted from numbered lines"])
def test_trees_give_more(what: str) -> None:
    prompt, answer, _ = EDITS[what]
    chain = tokens_per_pass(prompt, answer, plain=False)
    assert tokens_per_pass(prompt, answer, plain=False, leaves=4) > 1.04 * chain
