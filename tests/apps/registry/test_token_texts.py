"""Texts of token ids come from an engine, once, or not at all."""

import pytest
from django.core.cache import cache

from apps.registry.token_texts import read_token_texts
from tests.factories.registry import EngineFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    cache.clear()


def test_an_engine_tells_the_texts_and_they_are_kept() -> None:
    with serve_engine(FakeEngine()) as engine:
        EngineFactory.create(base_url=engine.base_url, base_model=engine.base_model)
        texts = read_token_texts(base_model=engine.base_model, token_ids=[7, 8, 7])
    assert texts == ["<7>", "<8>", "<7>"]
    assert read_token_texts(base_model=engine.base_model, token_ids=[7, 8, 7]) == texts


def test_each_token_is_asked_for_once() -> None:
    ids = [*range(300), *range(300)]
    with serve_engine(FakeEngine()) as engine:
        EngineFactory.create(base_url=engine.base_url, base_model=engine.base_model)
        texts = read_token_texts(base_model=engine.base_model, token_ids=ids)
    assert texts == [f"<{token_id}>" for token_id in ids]
    assert len(engine.calls) == 300


def test_without_an_engine_there_are_no_texts() -> None:
    assert read_token_texts(base_model="tiny", token_ids=[7]) == []
    EngineFactory.create(base_url="http://127.0.0.1:9", base_model="tiny")
    assert read_token_texts(base_model="tiny", token_ids=[7]) == []
