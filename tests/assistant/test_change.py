"""A change of one file, as it is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentspec.assistant.change import Change


def test_the_changed_lines_with_those_around_them() -> None:
    before = b"".join(b"line %d\n" % n for n in range(1, 10))
    change = Change("a", before, before.replace(b"line 5", b"new"))
    assert change.now() == "    3  line 3\n    4  line 4\n    5  new\n    6  line 6\n    7  line 7"
    gone = Change("a", before, before.replace(b"line 5\n", b""))
    assert gone.now() == "    3  line 3\n    4  line 4\n    5  line 6\n    6  line 7"
    assert Change("a", before, None).now() == ""
    assert Change("a", b"", b"x\n" * 50).now() == ""


@given(st.lists(st.sampled_from("ab"), max_size=8), st.lists(st.sampled_from("ab"), max_size=8))
def test_every_changed_line_is_among_them(old: list[str], new: list[str]) -> None:
    change = Change(
        "a", "".join(f"{x}\n" for x in old).encode(), "".join(f"{x}\n" for x in new).encode()
    )
    told = {int(line[:5]): line[7:] for line in change.now(0).split("\n") if line}
    assert all(new[number - 1] == text for number, text in told.items())
    for i, (a, b) in enumerate(zip(old, new, strict=False), 1):
        if a != b and len(old) == len(new):
            assert told[i] == b
