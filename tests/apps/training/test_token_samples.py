"""Tokens of the engines' by which a trainer knows its tokenizer."""

import json
from pathlib import Path

import pytest

from apps.registry import services as registry
from apps.registry.models import Policy
from apps.registry.reconcile import reconcile_engines
from apps.training.token_samples import sample_token_texts
from tests.fakes.adapter_engine import FakeEngine, serve_engine

pytestmark = pytest.mark.django_db


def test_they_are_spread_over_the_vocabulary_and_in_the_engines_words(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 320}))
    policy.base_model_dir = str(tmp_path)
    assert sample_token_texts(policy) == ()  # no engine to ask
    with serve_engine(FakeEngine()) as engine:
        registry.register_engine(base_url=engine.base_url)
        reconcile_engines()
        found = sample_token_texts(policy)
    assert [token.token_id for token in found] == list(range(10, 320, 20))
    assert {token.text for token in found[:2]} == {"<10>", "<30>"}


def test_a_model_that_is_not_on_this_host_has_none(policy: Policy) -> None:
    assert sample_token_texts(policy) == ()
