"""How far a training has come: one file that is replaced as a whole, so that no kill harms it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, ModelFileError
from agentspec.files import replacing


@dataclass(slots=True)
class Progress:
    """Steps made, and what the held-out losses were; `tried` counts those since the best."""

    step: int = 0
    best: float = float("inf")
    best_step: int = 0
    tried: int = 0
    done: str = ""
    """Why it has ended, "" while it goes on."""
    history: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


class State:
    """The weights as they are, the best ones, and AdamW's moments, in `path`.

    `settings` are what a run must share with the one it continues.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = dict(settings)
        self.best: dict[str, Any] = {}

    def load(self, module: Any, adam: Any) -> Progress:
        """Put back what was saved, or start anew where nothing was.

        Raises ConfigError naming a setting that was another, ModelFileError for a damaged file.
        """
        from safetensors import SafetensorError, safe_open

        if not self._path.exists():
            return Progress()
        try:
            with safe_open(self._path, framework="pt") as opened:
                told = json.loads((opened.metadata() or {})["told"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            before, progress = told["settings"], Progress(**told["progress"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ModelFileError(
                f"{self._path} is damaged ({type(error).__name__}); remove it to start anew"
            ) from error
        for name, value in self._settings.items():
            if before.get(name) != value:
                raise ConfigError(
                    f"{self._path.parent} was begun with {name} {before.get(name)!r}, not "
                    f"{value!r}; continue with that, or remove the folder"
                )
        progress.history = [(int(step), float(loss)) for step, loss in progress.history]
        module.load_state_dict(_below(tensors, "now."))
        self.best = _below(tensors, "best.")
        for name, weight in module.named_parameters():
            if f"first.{name}" in tensors:
                adam.state[weight] = {
                    "step": tensors[f"steps.{name}"],
                    "exp_avg": tensors[f"first.{name}"].to(weight.device),
                    "exp_avg_sq": tensors[f"second.{name}"].to(weight.device),
                }
        return progress

    def save(self, module: Any, adam: Any, progress: Progress) -> None:
        """Raises ConfigError when the folder cannot be written to."""
        from safetensors.torch import save

        tensors = {f"now.{name}": value for name, value in module.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        for name, weight in module.named_parameters():
            if weight in adam.state:
                tensors[f"steps.{name}"] = adam.state[weight]["step"]
                tensors[f"first.{name}"] = adam.state[weight]["exp_avg"]
                tensors[f"second.{name}"] = adam.state[weight]["exp_avg_sq"]
        whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        told = json.dumps({"settings": self._settings, "progress": asdict(progress)})
        try:
            with replacing(self._path) as file:
                file.write(save(whole, metadata={"told": told}))
        except OSError as error:
            raise ConfigError(
                f"nothing can be saved in {self._path.parent}: {error.strerror or error}"
            ) from error

    def keep_best(self, module: Any) -> None:
        self.best = {n: value.detach().cpu().clone() for n, value in module.state_dict().items()}


def _below(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
