"""Every address of labels, preferences, graders and queues, in REST and on pages: a stranger is told nothing at any of
them, another project of the team does not have what this one has, and an id that is none makes nothing fall over.

The addresses are read from the routes, so that a new one is tried too.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, Team, User
from apps.core.ids import is_id, new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.models import DryRun
from apps.feedback.graders.services import VersionDraft, create_grader, start_backfill
from apps.feedback.models import Label
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_correction
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.feedback.services import add_label
from apps.feedback.thumbs.services import create_token
from apps.trajectories.bulk.services import start_job
from tests.conftest import OTHER_SECRET, client_with_secret
from tests.factories.accounts import ProjectFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

METHODS = ("GET", "POST", "PATCH", "DELETE")
PAGES = ("review", "review_work", "rewards", "graders", "said", "playground", "trajectories")
MODULES = ("apps.feedback.", *(f"apps.console.views.{name}" for name in PAGES))
FOR_ALL = "api/v1/grader-kinds"  # which kinds of graders there are is no secret
NONSENSE = ("%00", "x" * 300, "traj_%E2%82%AC", "99999999999999999999", "queue_00000000000000000000000000")
WORDS = "nobody else's business"
_PLACE = re.compile(r"<(?:\w+:)?(\w+)>")
Ids = dict[str, str]


def walk(resolver: URLResolver, before: str = "") -> Iterator[str]:
    for found in resolver.url_patterns:
        route = before + str(found.pattern)
        if isinstance(found, URLResolver):
            yield from walk(found, route)
        elif isinstance(found, URLPattern) and found.lookup_str.startswith(MODULES):
            yield route


ROUTES = sorted(set(walk(get_resolver())) - {FOR_ALL})
NAMED = [route for route in ROUTES if set(_PLACE.findall(route)) - {"slug"}]


def fill(route: str, ids: Ids) -> str:
    address = "/" + _PLACE.sub(lambda place: ids[place[1]], route)
    return address if address.startswith("/p/") else f"{address}?project={ids['slug']}"


def ask(client: Client, method: str, address: str) -> Any:
    return client.generic(method, address, "{}", content_type="application/json")


def miss(ids: Ids) -> Ids:
    """Ids of the same kinds that nothing has."""
    return {
        name: new_id(value.split("_")[0]) if is_id(value, value.split("_")[0]) else value for name, value in ids.items()
    }


@pytest.fixture
def ids(project: Project, agent: Agent, trainer: User) -> Ids:
    """A value for every place of the routes: of a project in which there is one of everything."""
    caller = Caller(user=trainer)
    trajectory = TrajectoryFactory.create(agent=agent, state="complete", title=WORDS)
    step = StepFactory.create(trajectory=trajectory, index=0, text=WORDS)
    queue = create_queue(caller=caller, project=project, settings={"name": WORDS})
    add_trajectories(caller=caller, queue=queue, ids=[trajectory.pk])
    review = take_review(caller=caller, queue=queue)
    assert review is not None
    version, _ = create_grader(
        caller=caller, project=project, name="g", kind="regex", draft=VersionDraft(settings={"pattern": WORDS})
    )
    dry_run = DryRun.objects.create(version=version, n_wanted=1, state="done")
    return {
        "slug": project.slug,
        "trajectory_id": trajectory.pk,
        "step_id": step.pk,
        "response_id": step.response_id,
        "label_id": add_label(caller=caller, trajectory=trajectory, value=1, text=WORDS).pk,
        "preference_id": add_correction(caller=caller, step=step, message=f"still {WORDS}").pk,
        "queue_id": queue.pk,
        "item_id": review.item_id,
        "review_id": review.pk,
        "action": "skip",
        "grader_id": version.grader_id,
        "number": "1",
        "dry_run_id": dry_run.pk,
        "backfill_id": start_backfill(caller=caller, version=version).pk,
        "job_id": start_job(
            caller=caller, project=project, action=ACTIONS["tag"], settings={"tag": "x"}, ids=[trajectory.pk]
        ).pk,
        "token_id": create_token(caller=caller, agent=agent, name=WORDS).pk,
        "place": "0",
    }


def is_refusal(answer: Any) -> bool:
    """Whether it is an error in words, or the way to the log-in, and tells nothing of what there is."""
    is_sent_away = answer.status_code == 302 and answer["Location"].startswith("/login")
    return (is_sent_away or 400 <= answer.status_code < 500) and WORDS not in answer.content.decode()


def read_words(answer: Any, ids: Ids) -> str:
    """What an answer in JSON says, with the names of ids in their place."""
    words = str(answer.json()["detail"])
    for name, value in ids.items():
        words = words.replace(repr(value), name)
    return words


def log_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_strangers_are_told_nothing(ids: Ids, stranger: User, other_key: ApiKey, anonymous_client: APIClient) -> None:
    person, gone = log_in(stranger), miss(ids)
    for route, method in product(ROUTES, METHODS):
        for client in (person, client_with_secret(OTHER_SECRET), anonymous_client):
            answer = ask(client, method, fill(route, ids))
            assert is_refusal(answer), (method, route, answer.status_code)
        there = ask(person, method, fill(route, ids))
        missing = ask(person, method, fill(route, gone))
        assert there.status_code == missing.status_code, (method, route)
        if not route.startswith("p/"):
            assert read_words(there, ids) == read_words(missing, gone), (method, route)
    assert not Label.objects.filter(is_undo=True).exists()
    assert Preference.objects.standing().count() == 1


def test_another_project_of_the_team_does_not_have_it(ids: Ids, owner: User, team: Team) -> None:
    other, person = ProjectFactory.create(team=team, slug="second"), log_in(owner)
    for route, method in product(NAMED, METHODS):
        if route.startswith("p/"):
            answer = ask(person, method, fill(route, {**ids, "slug": other.slug}))
            assert answer.status_code in {404, 405}, (method, route, answer.status_code)


def test_what_is_no_id_is_refused_in_words(ids: Ids, owner: User) -> None:
    person = log_in(owner)
    for route, method, nonsense in product(NAMED, ("GET", "POST"), NONSENSE):
        for name in set(_PLACE.findall(route)) - {"slug"}:
            answer = ask(person, method, fill(route, {**ids, name: nonsense}))
            assert is_refusal(answer), (method, route, name, nonsense, answer.status_code)
