"""What drafts from the inside of a torch target: an early exit, and heads from files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.backends.base import Rows, SeqId
from agentspec.control.cost_draft import DraftCost
from agentspec.control.source import ExitSource, HeadSource, Source
from agentspec.errors import ConfigError, ModelNotFoundError

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend
    from agentspec.config import Settings
    from agentspec.control.cost import CostCurve
    from agentspec.control.pace import Pace
    from agentspec.drafting import Inner
    from agentspec.engine.session import LiveSequence
    from agentspec.propose.early_exit import Exit

_SHARES = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 5 / 6)
"""Where in a model an exit is tried, as shares of its layers."""
_ROUNDS = 3
_BUDGET = 2.0
_PROMPT = 16


def inner_of(target: object, settings: Settings) -> list[Inner]:
    """The proposers from the inside of a target that the settings ask for, the cheapest first.

    Raises ConfigError where the target is no torch model, and what the files' readers raise:
    ModelNotFoundError, ModelFileError, PairMismatchError.
    """
    check_asked(settings, torch=hasattr(target, "listen"))
    exit_at = _exit_setting(settings.early_exit)
    if not settings.speculation or not (settings.heads or exit_at is not None):
        return []
    model: TorchBackend = target  # type: ignore[assignment]
    # rows of a tree pass differ by rounding from those of a chain: not in exact mode
    leaves = 1 if settings.exact else model.capabilities.max_leaves
    found = [_of_file(Path(name).expanduser(), model, leaves) for name in settings.heads]
    if exit_at is not None:
        found.append(exits(model, layers_of(model, exit_at)))
    return found


def check_asked(settings: Settings, *, torch: bool) -> None:
    """What `inner_of` would refuse and can be seen before a target is loaded, which takes long.

    Raises ConfigError and ModelNotFoundError.
    """
    exit_at = _exit_setting(settings.early_exit)
    if not settings.speculation or not (settings.heads or exit_at is not None):
        return
    if not torch:
        raise ConfigError(
            "heads and early exits need the inside of the target, which llama.cpp does not give; "
            "set backend to torch"
        )
    for name in settings.heads:
        path = Path(name).expanduser()
        if not path.exists():
            raise ModelNotFoundError(f"there are no heads at {path}")


def _of_file(path: Path, target: TorchBackend, leaves: int) -> Inner:
    from agentspec.backends.torch_exit import AdaptedExit, is_exit_adapter, load_exit
    from agentspec.backends.torch_heads import is_eagle, read_heads
    from agentspec.backends.torch_medusa import MedusaHeads

    if is_eagle(path):
        from agentspec.backends.torch_eagle import open_eagle

        return eagle(open_eagle(path, target), target, leaves)
    file = read_heads(path)
    if is_exit_adapter(file):
        adapter = load_exit(file, target)
        return exits(target, [adapter.layer], AdaptedExit(adapter, target))
    return medusa(MedusaHeads(file, target), target, leaves)


def medusa(heads: Any, target: TorchBackend, leaves: int = 1) -> Inner:
    """Medusa heads (`MedusaHeads`) as a source, what one of them costs measured."""
    from agentspec.drafting import Inner
    from agentspec.propose.medusa import Medusa

    state = target.embed([0])[0]
    with _some_text(target) as seq:
        one, many = _timed(
            target, seq, [_whole(target, seq), lambda: heads.guesses(state, heads.count, 1)]
        )
    ratio = many / heads.count / one

    def account(curve: CostCurve, pace: Pace) -> HeadSource:
        return HeadSource(curve, pace, cost=DraftCost(ratio))

    return Inner(lambda sequence: Medusa(heads, sequence, leaves=leaves), account)


def eagle(net: Any, target: TorchBackend, leaves: int = 1) -> Inner:
    """Layers of EAGLE (`EagleNet`) as a source, what a pass of them costs measured."""
    from agentspec.backends.torch_eagle import EagleReading, pass_seconds
    from agentspec.drafting import Inner
    from agentspec.propose.eagle import Eagle

    with _some_text(target) as seq:
        (one,) = _timed(target, seq, [_whole(target, seq)])
    ratio = pass_seconds(net) / one

    def account(curve: CostCurve, pace: Pace) -> Source:
        return Source(curve, pace, cost=DraftCost(ratio))

    return Inner(lambda _: Eagle(EagleReading(net), leaves=leaves), account)


def exits(target: TorchBackend, layers: Sequence[int], way_out: Exit | None = None) -> Inner:
    """Early exits behind these layers as one source; what each costs is measured."""
    from agentspec.drafting import Inner
    from agentspec.propose.draft_model import DraftModel
    from agentspec.propose.early_exit import ExitReading, PlainExit

    leave = way_out or PlainExit(target)
    ratios = exit_costs(target, layers, leave)
    # the account of an engine chooses the layer for all its live sequences
    chosen: list[ExitSource] = []

    def account(curve: CostCurve, pace: Pace) -> ExitSource:
        costs = {layer: DraftCost(ratio) for layer, ratio in ratios.items()}
        chosen[:] = [ExitSource(curve, pace, costs=costs, layers=target.layers)]
        return chosen[0]

    def make(sequence: Callable[[], LiveSequence]) -> DraftModel:
        reading = ExitReading(target, sequence, lambda: chosen[0].layer, leave)
        return DraftModel(
            target_vocab=target.vocab_size, p_min=0.0, reading=reading, name="early_exit"
        )

    return Inner(make, account)


def layers_of(target: TorchBackend, exit_at: int | None) -> list[int]:
    """The layers to exit behind: the one given, or some of all to choose from (0).

    Raises ConfigError for one that this target does not have.
    """
    known = target.capabilities.exit_layers
    if not known:
        raise ConfigError(f"{target.path.name} has no early exits: it keeps a recurrent state")
    if not exit_at:
        return sorted({min(known, key=lambda n: abs(n - s * target.layers)) for s in _SHARES})
    if exit_at not in known:
        raise ConfigError(
            f"early_exit {exit_at} is no exit of {target.path.name}, which has {target.layers} "
            f"layers; 1 to {max(known)} are"
        )
    return [exit_at]


def exit_costs(target: TorchBackend, layers: Sequence[int], leave: Exit) -> Mapping[int, float]:
    """What a pass of one row that ends behind each layer costs, in whole passes of one row."""

    def ending(layer: int) -> Callable[[], object]:
        return lambda: leave(seq, [1], 1, layer).argmax(0)

    with _some_text(target) as seq:
        whole, *ended = _timed(target, seq, [_whole(target, seq), *map(ending, layers)])
    return {layer: seconds / whole for layer, seconds in zip(layers, ended, strict=True)}


@contextmanager
def _some_text(target: TorchBackend) -> Iterator[SeqId]:
    seq = target.open()
    try:
        target.forward([Rows(seq, [1] * min(_PROMPT, target.max_rows))]).argmax(0)
        yield seq
    finally:
        target.drop(seq)


def _whole(target: TorchBackend, seq: SeqId) -> Callable[[], object]:
    return lambda: target.forward([Rows(seq, [1])]).argmax(0)


def _timed(target: TorchBackend, seq: SeqId, works: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each, taken in turn after one untimed round, within a budget."""
    length, ends = target.length(seq), time.perf_counter() + _BUDGET
    best = [float("inf")] * len(works)
    for number in range(_ROUNDS + 1):
        for i, work in enumerate(works):
            started = time.perf_counter()
            work()
            took = time.perf_counter() - started
            target.rollback(seq, length)
            if number:
                best[i] = min(best[i], took)
        if number and time.perf_counter() > ends:
            break
    return best


def _exit_setting(text: str) -> int | None:
    """None for off, 0 for auto, else a number of layers. Raises ConfigError."""
    if text == "off":
        return None
    if text == "auto":
        return 0
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"early_exit must be off, auto or a number of layers, not {text!r}")
