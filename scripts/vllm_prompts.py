"""Six prompts as coding agents send them, each with the beginning of an answer that repeats it.

Written for SmolLM2-135M, which is too small to act by itself: the answer is begun, so that it goes
on as an agent's would. ChatML, raw text, each under 700 tokens of its vocabulary.
"""

from __future__ import annotations

import json

_FILE = """class Inventory:
    def __init__(self, name: str) -> None:
        self.name = name
        self.items: dict[str, int] = {}

    def add_item(self, item: str, count: int) -> None:
        if count < 0:
            raise ValueError(f"count must not be negative: {count}")
        self.items[item] = self.items.get(item, 0) + count

    def remove_item(self, item: str, count: int) -> None:
        if item not in self.items:
            raise KeyError(f"no such item: {item}")
        if self.items[item] < count:
            raise ValueError(f"not enough of {item}: {self.items[item]}")
        self.items[item] -= count

    def total_count(self) -> int:
        return sum(self.items.values())
"""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": keys,
            },
        },
    }
    for name, description, keys in (
        ("read_file", "Read a file.", ["path"]),
        ("replace_text", "Replace text in a file.", ["path", "old_text", "new_text"]),
        ("run_command", "Run a command.", ["command"]),
    )
]

_RECORDS = [
    {"id": n, "user": user, "email": f"{user}@example.com", "active": n % 2 == 0}
    for n, user in enumerate(("ada", "grace", "linus", "guido", "barbara", "edsger"), 1)
]

_LOG = "\n".join(
    f"FAILED tests/test_inventory.py::test_{name} - ValueError: count must not be negative: -1"
    for name in ("add_item", "remove_item", "total_count", "empty_name", "two_items")
)


def _turns(*turns: tuple[str, str], answer: str) -> str:
    told = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{told}<|im_start|>assistant\n{answer}"


def _call(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


_SYSTEM = "You are a coding agent. You may call these tools:\n<tools>\n{}\n</tools>".format(
    "\n".join(map(json.dumps, _TOOLS))
)
_NUMBERED = "\n".join(f"{n}: {line}" for n, line in enumerate(_FILE.splitlines(), 1))
_QUOTED = json.dumps(_FILE[:260])[1:-1]

PROMPTS: dict[str, str] = {
    "rewrite a file": _turns(
        ("system", "You are a coding agent. You answer with the whole file."),
        ("user", f"Add a method to this file:\n```python\n{_FILE}```"),
        answer="Here is the whole file:\n```python\nclass Inventory:\n",
    ),
    "quote for an edit": _turns(
        ("system", _SYSTEM),
        ("user", "Read inventory.py and rename add_item."),
        ("assistant", _call("read_file", path="inventory.py")),
        ("tool", _NUMBERED[:420]),
        answer='<tool_call>\n{"name": "replace_text", "arguments": {"path": "inventory.py", '
        f'"old_text": "{_QUOTED[:90]}',
    ),
    "call by call": _turns(
        ("system", _SYSTEM),
        ("user", "Read all five modules of the package."),
        *(
            turn
            for name in ("orders", "prices", "stock")
            for turn in (
                ("assistant", _call("read_file", path=f"src/shop/{name}.py")),
                ("tool", f"def load_{name}(path):\n    return open(path).read()"),
            )
        ),
        answer="<tool_call>\n",
    ),
    "failures again": _turns(
        ("user", f"These tests fail:\n{_LOG}\nList them again with what they say."),
        answer="These tests fail:\nFAILED tests/test_inventory.py::test_add_item - ValueError:",
    ),
    "records": _turns(
        ("user", "Make a JSON list of these records:\n" + "\n".join(map(json.dumps, _RECORDS))),
        answer="[\n" + json.dumps(_RECORDS[0]) + ",\n",
    ),
    "the same function for more": _turns(
        ("user", "Write load_orders, load_prices, load_stock, load_users and load_taxes."),
        answer="".join(
            f'def load_{name}(path: str) -> list[str]:\n    """Load the {name} from a file."""\n'
            '    with open(path, encoding="utf-8") as file:\n'
            "        return [line.strip() for line in file if line.strip()]\n\n\n"
            for name in ("orders", "prices")
        )
        + "def load_stock(path:",
    ),
}
