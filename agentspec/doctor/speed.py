"""The kept cost curve and what it lets speculation gain; what else keeps the machine busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from agentspec.doctor import Check, ok, warn
from agentspec.doctor.model_file import find
from agentspec.doctor.pair import find_draft
from agentspec.models.plan import LIKELY_ACCEPTANCE

if TYPE_CHECKING:
    from agentspec.config import Settings
    from agentspec.control.cost import CostCurve

_LONGEST = 16
_GAIN = 1.05
_BUSY = 0.3
_LOOK_SECONDS = 0.2


def machine(chosen: Settings) -> Iterator[Check]:
    from agentspec.machine import cores, cpu_model

    count = cores()
    yield ok("processor", f"{cpu_model()}, {count} cores usable")
    if chosen.n_threads > count:
        yield warn(
            "threads",
            f"n_threads is {chosen.n_threads} on {count} cores: threads wait for each other",
            f"agentspec config set n_threads {count}",
        )
    others = busy_processes()
    passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if not others:
        yield ok("other load", "no other process keeps a core busy")
    else:
        named = ", ".join(f"{name} ({share:.1f} cores)" for name, share in others[:4])
        waiting = "" if passive else ", or set OMP_WAIT_POLICY=passive: threads that spin wait long"
        yield warn("other load", f"busy beside us: {named}", f"stop them while measuring{waiting}")


def cost(chosen: Settings, *, measure: bool) -> Iterator[Check]:
    from agentspec.control.cost import CostCurve, DraftCost
    from agentspec.control.json_store import JsonStore
    from agentspec.files import cache_folder
    from agentspec.loading import NO_DRAFT, gpu_in_use, load_engine, speed_key

    target = find(chosen)
    # a draft model is part of it where it would be loaded
    draft = find_draft(chosen) if chosen.draft is not None or gpu_in_use(chosen) else None
    if measure:
        load_engine(str(target.path), draft=str(draft) if draft else NO_DRAFT).close()
    store = JsonStore(cache_folder("cost"), "cost curve")
    key = speed_key(_unloaded(target.path, chosen), chosen)
    kept = store.get(key)
    if kept is None:
        yield ok(
            "cost curve",
            "none is kept for these settings yet; it is measured in two seconds when the model is "
            "loaded (now: agentspec doctor --measure)",
        )
        return
    try:
        curve = CostCurve.of(kept)
        if curve.of_one_row:
            yield warn(
                "cost curve",
                "the one that is kept knows one row only: the machine was busy then",
                "load the model again while it is idle (agentspec doctor --measure)",
            )
            return
        yield verdict(curve)
        if draft is None:
            return
        both = {"target": key, "draft": speed_key(_unloaded(draft, chosen), chosen)}
        if (pass_cost := store.get(both)) is not None:
            yield draft_verdict(curve, DraftCost.of(pass_cost)())
    except (ValueError, LookupError, TypeError, AttributeError):
        yield warn("cost curve", "the one that is kept is damaged", "agentspec doctor --measure")


def _unloaded(path: Path, chosen: Settings) -> Any:
    """What a key is made of; it is known without loading the model."""
    from agentspec.loading import llama_settings

    return SimpleNamespace(path=path, settings=llama_settings(chosen))


def verdict(curve: CostCurve) -> Check:
    """What speculation can gain on a curve, in words."""
    said = ", ".join(f"{k} rows {curve(k):.2f}" for k in (2, 4, 8, 16))
    best = max(range(1, _LONGEST + 1), key=lambda k: (k + 1) / curve(k + 1))
    top = (best + 1) / curve(best + 1)
    found = (
        f"a pass over {said} times one row; at best {top:.1f} times as fast, by copies of {best}"
    )
    if top < _GAIN:
        return warn("cost curve", f"{found}: drafting cannot pay", "set speculation off")
    rate = pays_from(curve)
    if rate is None:
        return ok("cost curve", f"{found}; only long copies pay, and only those are drafted")
    return ok("cost curve", f"{found}; drafting pays from an acceptance rate of {rate:.2f} on")


def draft_verdict(curve: CostCurve, each: float) -> Check:
    """What the draft model can gain, a pass of which costs `each` target passes."""
    rate = pays_from(curve, each)
    found = f"a pass of it costs {each:.2f} target passes"
    if rate is None or rate > LIKELY_ACCEPTANCE:
        needed = "no acceptance rate" if rate is None else f"only a rate of {rate:.2f} or more"
        return warn("draft model", f"{found}; {needed} pays here", "set draft to none")
    return ok("draft model", f"{found}; it pays from an acceptance rate of {rate:.2f} on")


def pays_from(curve: Callable[[int], float], each: float = 0.0) -> float | None:
    """The least acceptance rate at which some draft length gains 5 %, None where none below 1.

    `each` is what drafting one token costs, in target passes.
    """
    for percent in range(1, 100):
        rate = percent / 100
        for k in range(1, _LONGEST + 1):
            if (1 - rate ** (k + 1)) / (1 - rate) / (curve(k + 1) + k * each) >= _GAIN:
                return rate
    return None


def busy_processes(seconds: float = _LOOK_SECONDS) -> list[tuple[str, float]]:
    """Name and cores of other processes that keep one busy now, the busiest first; Linux only."""
    before = _times()
    if not before:
        return []
    begun = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - begun
    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for pid, (name, used) in _times().items():
        share = (used - before.get(pid, (name, used))[1]) / ticks / spent
        if share >= _BUSY and pid != os.getpid():
            found.append((name, share))
    return sorted(found, key=lambda item: -item[1])


def _times() -> dict[int, tuple[str, int]]:
    """Process -> its name and the ticks it has run, of those that can be seen."""
    found: dict[int, tuple[str, int]] = {}
    try:
        folders = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return found
    for folder in folders:
        try:
            line = (folder / "stat").read_text("utf-8", "replace")
            # the name is in brackets and may hold any character, brackets too
            head, _, rest = line.rpartition(")")
            fields = rest.split()
            name = "".join(c for c in head.partition("(")[2] if c.isprintable())
            found[int(folder.name)] = (name, int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):
            continue
    return found
