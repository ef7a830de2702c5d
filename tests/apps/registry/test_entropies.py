"""How undecided a version was, as an engine tells it; the bounds by hand."""

from math import log

import pytest
from django.core.cache import cache

from apps.registry import entropies
from apps.registry.entropies import bound_entropy, find_scorer, read_entropies
from apps.registry.models import Deployment, DeploymentState, Engine, EngineState, Version
from tests.apps.registry.conftest import Publish
from tests.fakes.adapter_engine import FakeEngine

HALF = log(0.5)


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    cache.clear()


@pytest.fixture
def version(publish: Publish, engine: Engine, fake_engine: FakeEngine) -> Version:
    """Version 1, on the engine; version 0 is live."""
    row = publish()
    fake_engine.adapters[row.engine_name] = "x"
    Deployment.objects.create(version=row, engine=engine, state=DeploymentState.LOADED)
    return row


@pytest.mark.parametrize(
    ("probabilities", "nats"),
    [
        ([1.0], 0.0),
        ([0.5, 0.5], log(2)),
        ([0.25] * 4, log(4)),
        # 0.2 is left, on tokens of at most 0.2 each (none is likelier than the last): as little as one of 0.2
        ([0.5, 0.3], 0.5 * log(2) + 0.3 * log(1 / 0.3) + 0.2 * log(1 / 0.2)),
        # 0.5 is left, on tokens of at most 0.1 each: as little as five of them
        ([0.4, 0.1], 0.4 * log(1 / 0.4) + 0.1 * log(10) + 0.5 * log(10)),
        # twenty of 0.03 and, sampled beyond them, one of 0.0001: of the 0.4 left none is likelier than 0.03, but
        # some may be likelier than what was sampled
        ([0.03] * 20 + [0.0001], log(1 / 0.03)),
    ],
)
def test_an_entropy_is_at_least_so_much(probabilities: list[float], nats: float) -> None:
    assert bound_entropy(map(log, probabilities)) == pytest.approx(nats)


def test_the_bound_lies_below_the_entropy_and_near_it() -> None:
    weights = [0.7**place for place in range(200)]
    probabilities = [weight / sum(weights) for weight in weights]
    entropy = -sum(probability * log(probability) for probability in probabilities)
    bound = bound_entropy(map(log, probabilities[:20]))
    assert entropy - 0.01 < bound <= entropy


def ask(version: Version, n_tokens: int, temperature: float = 1.0) -> entropies.Entropies:
    return read_entropies(version, prompt_ids=[1, 2], completion_ids=range(10, 10 + n_tokens), temperature=temperature)


def test_each_token_is_asked_for_once(version: Version, fake_engine: FakeEngine) -> None:
    fake_engine.tops = {2: [HALF, HALF], 10: [0.0], 11: [2 * HALF] * 4}
    found = ask(version, 3, temperature=0.5)
    assert found.values == pytest.approx([log(2), 0.0, log(4)], abs=1e-6)
    [asked] = fake_engine.asked
    assert asked["prompt"] == [[1, 2], [1, 2, 10], [1, 2, 10, 11]]
    assert (asked["model"], asked["temperature"]) == (version.engine_name, 0.5)
    assert ask(version, 3, temperature=0.5).values == found.values
    assert len(fake_engine.asked) == 1
    ask(version, 3, temperature=1.0)
    ask(version, 4, temperature=0.5)
    assert len(fake_engine.asked) == 3  # another question


def test_patience_ends_and_the_next_look_goes_on(
    version: Version, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine.delay_s = 0.2
    monkeypatch.setattr(entropies, "PATIENCE_S", 0.1)
    n_at_once = entropies.N_AT_ONCE
    assert [len(ask(version, 2 * n_at_once + 1).values) for _ in range(4)] == [
        n_at_once, 2 * n_at_once, 2 * n_at_once + 1, 2 * n_at_once + 1,
    ]  # fmt: skip
    assert len(fake_engine.asked) == 3


def test_an_engine_that_breaks_is_told_and_what_came_is_kept(
    version: Version, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropies, "PATIENCE_S", 0.0)
    assert ask(version, 40) == entropies.Entropies(values=[])
    monkeypatch.setattr(entropies, "PATIENCE_S", 5.0)
    assert len(ask(version, 40).values) == 40
    cache.clear()
    fake_engine.lies["/v1/completions"] = {"choices": []}
    assert "no usable log-probs" in ask(version, 40).error
    fake_engine.breaks = "/v1/completions"
    assert "out of memory" in ask(version, 40).error
    Engine.objects.update(state=EngineState.DOWN)
    assert ask(version, 40).error == f"no engine serves {version} at the moment"


def test_the_version_that_spoke_is_asked_or_else_the_live_one(version: Version) -> None:
    project_id = version.policy.project_id
    assert find_scorer(project_id, spoke=version) == version
    assert find_scorer(project_id, spoke=None).is_base
    Deployment.objects.update(state=DeploymentState.UNLOADED)
    assert find_scorer(project_id, spoke=version).is_base
