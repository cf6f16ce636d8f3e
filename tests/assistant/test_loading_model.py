"""A model that is still being loaded."""

from __future__ import annotations

import threading

import pytest

from agentspec.aio import Stop
from agentspec.assistant.engine_model import EngineModel
from agentspec.assistant.loading_model import LoadingModel
from agentspec.assistant.model import Finished
from agentspec.errors import BackendError, CancelledError
from tests.assistant.test_engine_model import HI, engine_saying


def test_it_answers_once_it_is_loaded() -> None:
    go = threading.Event()
    engine = engine_saying("hello")

    def load() -> EngineModel:
        assert go.wait(60)
        return EngineModel(engine)

    model = LoadingModel("name", 1234, load)
    try:
        assert (model.name, model.n_ctx, model.ready) == ("name", 1234, False)
        assert model.plain_per_second() is None
        assert model.reading() is None
        stop = Stop()
        stop.set()
        with pytest.raises(CancelledError):
            list(model.answer(HI, [], stop=stop))
        threading.Timer(0.2, go.set).start()
        *_, last = model.answer(HI, [], stop=Stop())
        assert isinstance(last, Finished)
        assert model.count("abc") == 3
        assert model.ready
    finally:
        go.set()
        model.close()
        model.close()
    with pytest.raises(Exception, match="closed"):
        list(EngineModel(engine).answer(HI, [], stop=Stop()))


def test_what_the_loading_raised_is_raised_by_every_use() -> None:
    def load() -> EngineModel:
        raise BackendError("no room")

    model = LoadingModel("name", 10, load)
    for _ in range(2):
        with pytest.raises(BackendError, match="no room"):
            list(model.answer(HI, [], stop=Stop()))
    with pytest.raises(BackendError):
        model.count("a")
    model.close()
