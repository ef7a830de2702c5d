"""A search that cannot be read is told once, with a caret at its place, wherever one can be typed; a stranger too."""

from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

from apps.accounts.models import Project
from apps.registry.models import Version
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.models import Trajectory
from tests.factories.accounts import AgentFactory
from tests.factories.datasets import DatasetFactory

BAD = "agent:clerk reward<<1"
PLACE = f"{BAD}\n{' ' * 19}^"
QUEUE = {"name": "one", "query": BAD, "n_reviews": "1", "hold_minutes": "30", "sample_percent": "100"}
QUEUE |= {"tolerance_percent": "25", "field_names": "reward"}
GRADER = {
    "kind": "regex",
    "name": "polite",
    "settings.pattern": "please",
    "field": "reward",
    "query": BAD,
    "sample": "1",
}
DOORS = {
    "list": ("/p/shop/trajectories", None),
    "view": ("/p/shop/trajectories", {"save_view": "1", "name": "mine", "query": BAD}),
    "queue, counted": ("/p/shop/review/new", {**QUEUE, "count": "1"}),
    "queue, made": ("/p/shop/review/new", QUEUE),
    "export": ("/p/shop/exports", {"query": BAD, "shape": "messages", "format": "jsonl"}),
    "dataset": ("/p/shop/datasets/{dataset}/add", {"query": BAD}),
    "grader": ("/p/shop/graders/new", GRADER),
}


@pytest.fixture
def dataset(project: Project) -> Dataset:
    found: Dataset = DatasetFactory.create(project=project)
    return found


@pytest.mark.parametrize("door", DOORS)
def test_a_search_that_cannot_be_read_is_told_once_with_its_place(
    door: str, trainer_browser: Client, dataset: Dataset, base: Version
) -> None:
    address, form = DOORS[door]
    address = address.format(dataset=dataset.id)
    answer = trainer_browser.get(address, {"q": BAD}) if form is None else trainer_browser.post(address, form)
    html = unescape(answer.content.decode())
    assert html.count(PLACE) == 1
    assert f'<pre class="place">{PLACE}</pre>' in html
    assert html.count("Character 20: ") == 1


@pytest.mark.parametrize("query", ["agent:clrk", "-agent:clrk,clerk reward:none", 'agent:"The clerk"'])
def test_an_agent_that_there_is_not_is_told_with_the_one_that_may_be_meant(
    query: str, trainer_browser: Client, trajectory: Trajectory
) -> None:
    html = trainer_browser.get("/p/shop/trajectories", {"q": query}).content.decode()
    assert "This project has no agent" in html
    assert "do you mean <code>clerk</code>?" in html
    counted = trainer_browser.post("/p/shop/review/new", {**QUEUE, "query": query, "count": "1"}).content.decode()
    assert "do you mean <code>clerk</code>?" in counted


def test_a_version_that_there_is_not_is_told(trainer_browser: Client, trajectory: Trajectory) -> None:
    html = trainer_browser.get("/p/shop/trajectories", {"q": "version:v9,v0,7"}).content.decode()
    told = ["no version <code>v9</code>" in html, "no version <code>7</code>" in html, "<code>v0</code>" in html]
    assert told == [True, True, False]
    assert "This project has no" not in trainer_browser.get("/p/shop/trajectories?q=version>9").content.decode()


def test_another_teams_agent_is_as_unknown_as_any(
    trainer_browser: Client, trajectory: Trajectory, add_trajectory: Callable[..., Trajectory]
) -> None:
    AgentFactory.create(slug="stranger", name="Stranger")
    html = trainer_browser.get("/p/shop/trajectories", {"q": "agent:strangr"}).content.decode()
    assert "no agent <code>strangr</code>" in html
    assert "do you mean" not in html
    assert "This project has no agent" not in trainer_browser.get("/p/shop/trajectories?q=agent:clerk").content.decode()
