"""What every model on the wire has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Base of every model here: keys that are not known are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())
