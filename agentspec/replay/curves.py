"""The cost curves that a replay charges by: three that come along, or those of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentspec.control.cost import CostCurve
from agentspec.errors import AgentspecError, ConfigError, InvalidRequestError

Points = Mapping[int, float]


def packaged_curves() -> dict[str, Points]:
    """Shapes of devices, not measurements of one.

    `flat` is bound by memory; `step9` has kernels that take eight rows at once; on `linear-cpu`
    every row is paid for.
    """
    return {
        "flat": {1: 1.0, 64: 1.6},
        "step9": {1: 1.0, 8: 1.2, 9: 1.9, 64: 3.0},
        "linear-cpu": {1: 1.0, 2: 1.45, 4: 2.3, 8: 4.5, 16: 6.5, 64: 20.0},
    }


def read_curves(path: Path) -> dict[str, Points]:
    """The curves of a file `{"note": …, NAME: {"source": …, "points": {"1": 1.0, …}}}`.

    Raises InvalidRequestError naming the file and the curve.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise InvalidRequestError(f"{path} is not an object of curves")
    curves: dict[str, Points] = {}
    for name, curve in data.items():
        if name == "note":
            continue
        try:
            points = {int(rows): float(cost) for rows, cost in curve["points"].items()}
            CostCurve.from_points(points)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = "it has no points of rows and cost"
            raise InvalidRequestError(f"{path}: curve {name!r} cannot be used: {why}") from error
        except AgentspecError as error:
            raise InvalidRequestError(f"{path}: curve {name!r} cannot be used: {error}") from None
        curves[name] = points
    if not curves:
        raise InvalidRequestError(f"{path} holds no curve")
    return curves


def choose_curves(names: Sequence[str], file: Path | None) -> dict[str, Points]:
    """The named curves; "all" is all of the file, or all that come along.

    Raises ConfigError naming those that there are.
    """
    own = packaged_curves()
    given = own if file is None else read_curves(file)
    known = {**own, **given}
    chosen: dict[str, Points] = {}
    for name in names or (next(iter(given)),):
        if name == "all":
            chosen.update(given)
        elif name in known:
            chosen[name] = known[name]
        else:
            raise ConfigError(f"no curve is called {name!r}; there are: {', '.join(known)}")
    return chosen
