"""The pool's whole REST API by its table of addresses: what is added there and not told here fails.

Each method of each address: it works, no key, another team, a missing id, a role that is not enough, a bad body; and
each method that an address does not have. What an endpoint does is tested beside its room.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import URLPattern, URLResolver
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.feedback.api import urls as feedback_urls
from apps.trajectories.api import urls as pool_urls
from apps.trajectories.assigned import AssignedCall
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.datasets import exporting, importing, services
from apps.trajectories.datasets.shapes import TOKENS
from apps.trajectories.search.models import SavedView
from tests.factories.datasets import MemberFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

METHODS = ("get", "post", "put", "patch", "delete")
NOBODY = "0" * 26
OF_FEEDBACK = {"api-steps", "api-exports", "api-bulk-jobs", "api-bulk-job", "api-bulk-failures", "api-bulk-undo"}
BY_TOKEN = "api-export-file"  # whoever has the link may fetch: tested with exports


@dataclass(frozen=True, kw_only=True)
class Door:
    """A method of an address. `body` None: it takes none; ids in it are filled in. `is_form`: no JSON."""

    body: Mapping[str, Any] | None = None
    query: str = ""
    is_form: bool = False
    is_open_to_viewers: bool = False


READ = Door(is_open_to_viewers=True)
ACT = Door()
STEP = {"prompt_ids": [1], "response_ids": [2], "log_probs": [-0.5]}
DOORS: dict[tuple[str, str], Door] = {
    ("api-views", "get"): READ,
    ("api-views", "post"): Door(body={"name": "New", "query": "turns>5"}),
    ("api-view", "delete"): ACT,
    ("api-view-restore", "post"): ACT,
    ("api-inbox", "get"): READ,
    ("api-retry-call", "post"): ACT,
    ("api-assign-call", "post"): Door(body={"trajectory": "{trajectory_id}"}),
    ("api-take-out-call", "post"): ACT,
    ("api-side-call", "post"): Door(body={"side": True}),
    ("api-trajectories", "get"): READ,
    ("api-trajectories", "post"): Door(body={"agent": "clerk"}),
    ("api-trajectory", "get"): READ,
    ("api-complete", "post"): ACT,
    ("api-exclusion", "post"): Door(body={"excluded": True}),
    ("api-steps", "get"): READ,
    ("api-steps", "post"): Door(body={"steps": [STEP]}),
    ("api-tokens", "get"): READ,
    ("api-datasets", "get"): READ,
    ("api-datasets", "post"): Door(body={"name": "New"}),
    ("api-dataset", "get"): READ,
    ("api-dataset", "patch"): Door(body={"name": "Renamed"}),
    ("api-dataset", "delete"): ACT,
    ("api-members", "get"): READ,
    ("api-members", "post"): Door(body={"trajectories": ["{trajectory_id}"]}),
    ("api-members-remove", "post"): Door(body={"trajectories": ["{trajectory_id}"]}),
    ("api-snapshots", "get"): READ,
    ("api-snapshots", "post"): Door(body={"note": "first"}),
    ("api-snapshot", "get"): READ,
    ("api-entries", "get"): READ,
    ("api-diff", "get"): Door(query="base={snapshot_id}", is_open_to_viewers=True),
    ("api-exports", "get"): READ,
    ("api-exports", "post"): Door(body={"query": "", "shape": "tokens"}),
    ("api-export", "get"): READ,
    ("api-export-cancel", "post"): ACT,
    ("api-imports", "get"): READ,
    ("api-imports", "post"): Door(body={"file": b"{}\n", "agent": "clerk"}, is_form=True),
    ("api-import", "get"): READ,
    ("api-import-cancel", "post"): ACT,
    ("api-import-problems", "get"): READ,
    ("api-bulk-jobs", "get"): READ,
    ("api-bulk-jobs", "post"): Door(body={"action": "exclude", "q": ""}),
    ("api-bulk-job", "get"): READ,
    ("api-bulk-failures", "get"): READ,
    ("api-bulk-undo", "post"): ACT,
}


def walk(patterns: list[Any]) -> Iterator[URLPattern]:
    """Yield the addresses of a table and of those that it includes."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from walk(pattern.url_patterns)
        else:
            yield pattern


ADDRESSES: dict[str, URLPattern] = {
    str(pattern.name): pattern
    for pattern in [
        *walk(pool_urls.urlpatterns),
        *(pattern for pattern in walk(feedback_urls.urlpatterns) if pattern.name in OF_FEEDBACK),
    ]
    if pattern.name != BY_TOKEN
}


def methods_of(name: str) -> set[str]:
    view: Any = ADDRESSES[name].callback
    return {method for method in METHODS if hasattr(view.view_class, method)}


HAS = [(name, method) for name in ADDRESSES for method in METHODS if method in methods_of(name)]
LACKS = [(name, method) for name in ADDRESSES for method in METHODS if method not in methods_of(name)]
NAMES_ONE = [door for door in HAS if "<" in str(ADDRESSES[door[0]].pattern)]
CHANGES = [door for door in HAS if door in DOORS and not DOORS[door].is_open_to_viewers]
TAKES_BODY = [door for door in HAS if door in DOORS and DOORS[door].body is not None]


@pytest.fixture
def ids(settings: Settings, tmp_path: Path, project: Project, agent: Agent, key: ApiKey, owner: User) -> dict[str, str]:
    """One of everything that an address names, by the word that it has there. The dataset may be deleted."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    caller = Caller(user=owner)
    trajectory = TrajectoryFactory.create(agent=agent)
    frozen, free = (services.create_dataset(project=project, caller=caller, name=name) for name in ("Frozen", "Free"))
    for dataset in (frozen, free):
        MemberFactory.create(dataset=dataset, trajectory=trajectory)
    imported = importing.ImportSettings()
    named = {
        "trajectory": trajectory,
        "step": StepFactory.create(trajectory=trajectory, index=0),
        "exchange": ExchangeFactory.create(key=key, fold_error="odd", folded_at=timezone.now()),
        "moved": ExchangeFactory.create(key=key, folded_at=timezone.now()),
        "dataset": free,
        "snapshot": services.take_snapshot(dataset=frozen, caller=caller),
        "export": exporting.start_export(project=project, caller=caller, shape=TOKENS, file_format="jsonl", query=""),
        "import": importing.start_import(
            agent=agent, caller=caller, chunks=[b"{}"], file_name="a", n_bytes=2, settings=imported
        ),
        "view": SavedView.objects.create(project=project, owner=owner, name="Old", query="turns>5"),
        "job": BulkJob.objects.create(project=project, author=owner, action="exclude", ids=[trajectory.pk]),
    }
    AssignedCall.objects.create(
        exchange_id=named["moved"].pk,
        project_id=project.pk,
        trajectory=trajectory,
        was_unassigned=True,
        has_error=False,
        last_step_at=timezone.now(),
    )
    return {f"{name}_id": row.pk for name, row in named.items()}


@pytest.fixture
def owners(client_of: Callable[[User], APIClient], owner: User) -> APIClient:
    return client_of(owner)


def call(client: APIClient, door: tuple[str, str], ids: Mapping[str, str], *, body: Any = None) -> Any:
    """Call a method of an address of the project; `body` stands for the one that works."""
    name, method = door
    told = DOORS.get(door, ACT)
    route = str(ADDRESSES[name].pattern).replace("<str:", "{").replace(">", "}")
    address = f"/api/v1/{route.format(**ids)}"
    query = "project=shop" if "<" not in str(ADDRESSES[name].pattern) else told.query.format(**ids)
    sent = fill(told.body, ids) if body is None else body
    if told.is_form:
        sent = {
            key: SimpleUploadedFile("a", value) if isinstance(value, bytes) else value for key, value in sent.items()
        }
    form = {"format": "multipart"} if told.is_form else {}
    return getattr(client, method)(f"{address}?{query}", *([] if method == "get" else [sent]), **form)


def fill(body: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(body, str):
        return body.format(**ids)
    if isinstance(body, list):
        return [fill(inner, ids) for inner in body]
    if isinstance(body, Mapping):
        return {name: fill(inner, ids) for name, inner in body.items()}
    return body


def miss(ids: Mapping[str, str], missing: str) -> dict[str, str]:
    """Ids of the same kinds that nothing has."""
    return {name: f"{value.partition('_')[0]}_{missing}" for name, value in ids.items()}


def read_words(answer: Any, ids: Mapping[str, str]) -> str:
    """What an answer says, with the kinds of ids in their place."""
    words = str(answer.json()["detail"])
    for value in ids.values():
        words = words.replace(repr(value), value.partition("_")[0])
    return words


def test_every_address_is_told() -> None:
    assert set(DOORS) == set(HAS)


@pytest.mark.parametrize("door", HAS)
def test_it_works(door: tuple[str, str], ids: dict[str, str], owners: APIClient) -> None:
    answer = call(owners, door, ids)
    assert 200 <= answer.status_code < 300, answer.content


@pytest.mark.parametrize("door", HAS)
def test_no_key(door: tuple[str, str], ids: dict[str, str], anonymous_client: APIClient) -> None:
    assert call(anonymous_client, door, ids).status_code == 401


@pytest.mark.parametrize("door", HAS)
def test_another_team(
    door: tuple[str, str],
    ids: dict[str, str],
    other_client: APIClient,
    client_of: Callable[[User], APIClient],
    stranger: User,
) -> None:
    for client in (other_client, client_of(stranger)):
        answer = call(client, door, ids)
        assert answer.status_code == 404, answer.content
        assert "Shop" not in answer.content.decode()
        gone = miss(ids, NOBODY)
        assert read_words(answer, ids) == read_words(call(client, door, gone, body=fill(DOORS[door].body, ids)), gone)


@pytest.mark.parametrize("door", NAMES_ONE)
@pytest.mark.parametrize("missing", [NOBODY, "x", "%00"])
def test_what_is_not_there(door: tuple[str, str], missing: str, ids: dict[str, str], owners: APIClient) -> None:
    answer = call(owners, door, miss(ids, missing), body=fill(DOORS[door].body, ids))
    assert answer.status_code == 404


@pytest.mark.parametrize("door", CHANGES)
def test_a_viewer(
    door: tuple[str, str], ids: dict[str, str], client_of: Callable[[User], APIClient], viewer: User
) -> None:
    answer = call(client_of(viewer), door, ids)
    assert answer.status_code == 403, answer.content
    assert answer.json()["detail"]


@pytest.mark.parametrize("door", TAKES_BODY)
@pytest.mark.parametrize("body", [{"odd": 1}, [], "text", 5])
def test_a_bad_body(door: tuple[str, str], body: Any, ids: dict[str, str], owners: APIClient) -> None:
    if DOORS[door].is_form:
        body = {"odd": "1"}
    answer = call(owners, door, ids, body=body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["detail"]


@pytest.mark.parametrize("door", LACKS)
def test_a_wrong_method(door: tuple[str, str], ids: dict[str, str], owners: APIClient) -> None:
    answer = call(owners, door, ids, body={})
    assert answer.status_code == 405
    assert answer.headers["Allow"]
