"""Providers and teachers over REST, and what reconciling makes of them."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from apps.accounts.models import AuditEvent, Project, User
from apps.core.errors import Forbidden
from apps.core.ids import new_id
from apps.registry import reconcile
from apps.registry.client import ProviderClient
from apps.registry.models import Engine, EngineState, Policy, Teacher
from apps.registry.reconcile import reconcile_engines
from apps.registry.refresh import serving_engines
from tests.factories.registry import EngineFactory, ProviderFactory, TeacherFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

ClientOf = Callable[[User], APIClient]

ENGINES = "/api/v1/engines?project=shop"
TEACHERS = "/api/v1/teachers?project=shop"
BODY = {"base_url": "https://api.example.com/v1/", "credential": "sk-0123456789abcdef"}


@pytest.fixture
def owner_client(client_of: ClientOf, owner: User, project: Project) -> APIClient:
    return client_of(owner)


@pytest.fixture
def provider(project: Project) -> Engine:
    return ProviderFactory.create(project=project)


@pytest.fixture
def server() -> Iterator[FakeEngine]:
    with serve_engine(FakeEngine()) as server:
        yield server


def reread(engine: Engine) -> Engine:
    return Engine.objects.get(pk=engine.pk)


def test_an_owner_adds_a_provider_and_its_credential_is_never_seen_again(owner_client: APIClient) -> None:
    answer = owner_client.post(ENGINES, BODY)
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    assert (body["kind"], body["base_url"], body["state"]) == ("openai", "https://api.example.com/v1", "unknown")
    assert (body["credential_last_four"], body["max_in_flight"]) == ("cdef", None)

    shown = [answer.content, owner_client.get(ENGINES).content]
    shown += [str(event.detail).encode() for event in AuditEvent.objects.all()]
    with connection.cursor() as cursor:
        cursor.execute("SELECT registry_engine::text FROM registry_engine")
        shown += [row[0].encode() for row in cursor.fetchall()]
    assert len(shown) >= 4
    assert not any(b"sk-0123456789" in text for text in shown)
    assert AuditEvent.objects.filter(action="engine.created", object_id=body["id"]).exists()


def test_a_short_credential_shows_nothing_of_itself(owner_client: APIClient) -> None:
    assert owner_client.post(ENGINES, {**BODY, "credential": "pw-1234"}).json()["credential_last_four"] == ""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"base_url": "ftp://example.com/v1"}, "base_url"),
        ({"base_url": "file:///etc/passwd"}, "base_url"),
        ({"base_url": "https:///v1"}, "base_url"),
        ({"base_url": "https://user:pw@example.com/v1"}, "base_url"),
        ({"base_url": "https://example.com/v1?key=1"}, "base_url"),
        ({"base_url": "https://example.com/v1#"}, "base_url"),
        ({"base_url": "https://example.com/\r\nX: y"}, "base_url"),
        ({"base_url": "https://example.com/ v1"}, "base_url"),
        ({"base_url": "https://example.com:99999/v1"}, "base_url"),
        ({"base_url": "https://example.com/" + "x" * 200}, "base_url"),
        ({"base_url": ""}, "base_url"),
        ({"base_url": "http://127.1/v1"}, "base_url"),
        ({"base_url": "http://2130706433:8000/v1"}, "base_url"),
        ({"base_url": "http://0x7f000001/v1"}, "base_url"),
        ({"base_url": "http://api.example.0x7f/v1"}, "base_url"),
        ({"credential": "sk 1\nX-Evil: 1"}, "credential"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"kind": "vllm"}, "kind"),
    ],
)
def test_a_bad_provider_is_refused_by_field(owner_client: APIClient, change: dict[str, object], field: str) -> None:
    answer = owner_client.post(ENGINES, {**BODY, **change})
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert not Engine.objects.exists()


def test_operators_decide_which_hosts_are_called(owner_client: APIClient, settings: Settings) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"provider_hosts": ("api.example.com",)})
    assert owner_client.post(ENGINES, BODY).status_code == 201
    refused = owner_client.post(ENGINES, {**BODY, "base_url": "http://169.254.169.254/v1"})
    assert (refused.status_code, refused.json()["field"]) == (403, "base_url")


CLOUDS = ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]"]
CLOUDS += ["[fd00:ec2::254]", "100.100.100.200", "168.63.129.16"]


@pytest.mark.parametrize("host", CLOUDS)
def test_no_provider_is_where_clouds_keep_their_secrets(owner_client: APIClient, settings: Settings, host: str) -> None:
    body = {**BODY, "base_url": f"http://{host}/latest"}
    refused = owner_client.post(ENGINES, body)
    assert (refused.status_code, refused.json()["field"]) == (403, "base_url")
    settings.CLAW = settings.CLAW.model_copy(update={"provider_hosts": (host.strip("[]"),)})
    assert owner_client.post(ENGINES, body).status_code == 201


NUMBERS = ["127.0.0.1", "127.9.9.9", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"]  # noqa: S104 (nothing is bound)
LOCAL = [*NUMBERS, "localhost", "a.localhost"]


@pytest.mark.parametrize("host", LOCAL)
def test_no_provider_is_on_the_machine_that_others_than_its_users_reach(
    owner_client: APIClient, settings: Settings, host: str
) -> None:
    body = {**BODY, "base_url": f"http://{host}:11434/v1"}
    settings.CLAW = settings.CLAW.model_copy(update={"base_url": "https://claw.example.com"})
    refused = owner_client.post(ENGINES, body)
    assert (refused.status_code, refused.json()["field"]) == (403, "base_url")
    assert "this machine itself" in refused.content.decode()
    settings.CLAW = settings.CLAW.model_copy(update={"provider_hosts": (host.strip("[]"),)})
    assert owner_client.post(ENGINES, body).status_code == 201


@pytest.mark.parametrize("host", LOCAL)
def test_a_platform_for_one_machine_has_providers_there(owner_client: APIClient, host: str) -> None:
    assert owner_client.post(ENGINES, {**BODY, "base_url": f"http://{host}:11434/v1"}).status_code == 201


def test_a_name_that_leads_to_the_machine_itself_is_not_called(
    project: Project, server: FakeEngine, settings: Settings
) -> None:
    name = "127.1"  # to the resolver, a name that means this machine
    address = server.base_url.replace("127.0.0.1", name)
    provider = ProviderFactory.create(project=project, base_url=f"{address}/v1")
    settings.CLAW = settings.CLAW.model_copy(update={"allowed_hosts": "claw.example.com"})
    checked = reconcile.check_provider(provider)
    assert checked.state == EngineState.DOWN
    assert f"{name} is this machine itself" in checked.last_error
    settings.CLAW = settings.CLAW.model_copy(update={"allowed_hosts": ""})
    assert reconcile.check_provider(provider).state == EngineState.UP


def test_a_name_that_means_another_place_by_the_time_of_the_call_is_not_called(
    server: FakeEngine, settings: Settings
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"allowed_hosts": "claw.example.com"})
    with ProviderClient(server.base_url, credential="sk-1") as client, pytest.raises(Forbidden, match="this machine"):
        client.check()


def test_one_address_is_added_once_a_project(owner_client: APIClient, other_project: Project) -> None:
    ProviderFactory.create(project=other_project, base_url="https://api.example.com/v1")
    assert owner_client.post(ENGINES, BODY).status_code == 201
    assert owner_client.post(ENGINES, BODY).status_code == 409


def test_engines_are_shown_to_their_own_project_only(
    owner_client: APIClient, provider: Engine, other_project: Project
) -> None:
    ProviderFactory.create(project=other_project)
    items = owner_client.get(ENGINES).json()["items"]
    assert [item["id"] for item in items] == [provider.id]


def test_an_owner_changes_a_provider(owner_client: APIClient, provider: Engine) -> None:
    path = f"/api/v1/engines/{provider.id}"
    Engine.objects.update(state=EngineState.DOWN, last_error="x", checked_at=timezone.now())
    answer = owner_client.patch(path, {"credential": "sk-another-one-9999", "max_in_flight": 5})
    assert answer.status_code == 200, answer.json()
    changed = reread(provider)
    assert (changed.credential_last_four, changed.max_in_flight) == ("9999", 5)
    assert (changed.state, changed.last_error, changed.checked_at) == (EngineState.UNKNOWN, "", None)
    assert changed.sealed_credential != provider.sealed_credential
    assert owner_client.patch(path, {"max_in_flight": None, "is_enabled": False}).json()["is_enabled"] is False
    for body in ({}, {"base_url": "https://evil.example"}, {"max_in_flight": 0}, {"credential": "a b"}):
        assert owner_client.patch(path, body).status_code == 400


def test_an_owner_deletes_a_provider_when_no_teacher_stands_on_it(owner_client: APIClient, provider: Engine) -> None:
    teacher = TeacherFactory.create(engine=provider, name="gpt")
    path = f"/api/v1/engines/{provider.id}"
    refused = owner_client.delete(path)
    assert refused.status_code == 409
    assert "gpt" in refused.json()["detail"]
    assert owner_client.delete(f"/api/v1/teachers/{teacher.id}").status_code == 204
    assert owner_client.delete(path).status_code == 204
    assert owner_client.delete(path).status_code == 404
    assert not Engine.objects.exists()


def test_the_platforms_own_engines_cannot_be_changed_here(owner_client: APIClient, policy: Policy) -> None:
    replica = EngineFactory.create()
    path = f"/api/v1/engines/{replica.id}"
    assert owner_client.delete(path).status_code == 404
    assert owner_client.patch(path, {"is_enabled": False}).status_code == 404
    assert [item["base_url"] for item in owner_client.get(ENGINES).json()["items"]] == [None]


def test_an_owner_names_a_teacher(owner_client: APIClient, provider: Engine) -> None:
    body = {"name": "openrouter/gpt-large:free", "model": "gpt-large", "engine": provider.id}
    answer = owner_client.post(TEACHERS, body)
    assert answer.status_code == 201, answer.json()
    assert {name: answer.json()[name] for name in body} == body
    assert [item["name"] for item in owner_client.get(TEACHERS).json()["items"]] == ["openrouter/gpt-large:free"]
    assert owner_client.post(TEACHERS, body).status_code == 409


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "default"}, 409),
        ({"name": "shop"}, 409),
        ({"name": "a@live"}, 400),
        ({"name": "a b"}, 400),
        ({"name": ""}, 400),
        ({"name": "x" * 101}, 400),
        ({"model": ""}, 400),
        ({"engine": "engn_x"}, 404),
        ({"weight": 3}, 400),
    ],
)
def test_a_bad_teacher_is_refused(
    owner_client: APIClient, provider: Engine, policy: Policy, change: dict[str, object], status: int
) -> None:
    body = {"name": "gpt", "model": "gpt-large", "engine": provider.id, **change}
    assert owner_client.post(TEACHERS, body).status_code == status
    assert not Teacher.objects.exists()


def test_a_teacher_stands_on_an_engine_of_its_own_project(
    owner_client: APIClient, other_project: Project, policy: Policy
) -> None:
    for foreign in (ProviderFactory.create(project=other_project), EngineFactory.create()):
        body = {"name": "gpt", "model": "gpt-large", "engine": foreign.id}
        assert owner_client.post(TEACHERS, body).status_code == 404


def test_who_is_no_owner_changes_nothing(
    client_of: ClientOf,
    trainer: User,
    stranger: User,
    manage_client: APIClient,
    other_client: APIClient,
    anonymous_client: APIClient,
    provider: Engine,
) -> None:
    teacher = TeacherFactory.create(engine=provider)
    engine_path, teacher_path = f"/api/v1/engines/{provider.id}", f"/api/v1/teachers/{teacher.id}"
    callers = [
        (client_of(trainer), 403),
        (manage_client, 403),
        (client_of(stranger), 404),
        (other_client, 404),
        (anonymous_client, 401),
    ]
    for client, status in callers:
        answers = [
            client.post(ENGINES, BODY),
            client.post(TEACHERS, {"name": "x", "model": "y", "engine": provider.id}),
            client.patch(engine_path, {"is_enabled": False}),
            client.delete(engine_path),
            client.delete(teacher_path),
        ]
        assert [answer.status_code for answer in answers] == [status] * 5
    assert reread(provider).is_enabled
    assert Teacher.objects.count() == 1


def test_viewers_see_teachers_and_strangers_do_not(
    client_of: ClientOf, viewer: User, stranger: User, provider: Engine
) -> None:
    TeacherFactory.create(engine=provider)
    assert client_of(viewer).get(TEACHERS).status_code == 200
    assert client_of(stranger).get(TEACHERS).status_code == 404


def test_missing_things_and_wrong_methods(owner_client: APIClient, provider: Engine) -> None:
    for path in (f"/api/v1/engines/{new_id('engn')}", "/api/v1/engines/x", "/api/v1/teachers/x"):
        assert owner_client.delete(path).status_code == 404
    assert owner_client.get(f"/api/v1/engines/{provider.id}").status_code == 405
    assert owner_client.put(ENGINES, BODY).status_code == 405
    assert owner_client.delete(TEACHERS).status_code == 405


def test_the_database_keeps_replicas_and_providers_apart(project: Project) -> None:
    for fields in ({"project": project}, {"sealed_credential": "x"}, {"max_in_flight": 0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            EngineFactory.create(**fields)
    with pytest.raises(IntegrityError), transaction.atomic():
        ProviderFactory.create(project=None)


def test_reconciling_learns_whether_a_provider_answers(project: Project, server: FakeEngine) -> None:
    provider = ProviderFactory.create(project=project, base_url=f"{server.base_url}/v1", state=EngineState.UNKNOWN)
    reconcile_engines()
    provider = reread(provider)
    assert (provider.state, provider.base_model) == (EngineState.UP, "")
    assert provider.last_seen_at is not None
    assert [path for path, _ in server.calls] == ["/v1/models"]

    reconcile_engines()
    assert len(server.calls) == 1  # it is somebody else's server: not each time
    Engine.objects.update(checked_at=timezone.now() - timedelta(seconds=reconcile.PROVIDER_EVERY_S + 1))
    server.breaks = "/v1/models"
    reconcile_engines()
    assert reread(provider).state == EngineState.DOWN


def test_a_provider_that_lists_no_models_is_up(project: Project, server: FakeEngine) -> None:
    provider = ProviderFactory.create(project=project, base_url=f"{server.base_url}/openai", state=EngineState.UNKNOWN)
    reconcile_engines()
    assert reread(provider).state == EngineState.UP


@pytest.mark.parametrize(("status", "reason"), [(401, "refuses the credential"), (307, "points elsewhere")])
def test_a_provider_that_does_not_take_us_is_down_with_a_reason_of_our_own(
    project: Project, status: int, reason: str
) -> None:
    class Rejecting(FakeEngine):
        def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            return status, {"error": {"message": "your key sk-of-a-teacher is wrong"}}

    with serve_engine(Rejecting()) as server:
        provider = ProviderFactory.create(project=project, base_url=f"{server.base_url}/v1")
        reconcile_engines()
    provider = reread(provider)
    assert provider.state == EngineState.DOWN
    assert reason in provider.last_error
    assert "sk-of" not in provider.last_error


def test_a_changed_signing_key_marks_the_engine_with_the_way_out(
    project: Project, server: FakeEngine, settings: Settings
) -> None:
    provider = ProviderFactory.create(project=project, base_url=f"{server.base_url}/v1")
    settings.SECRET_KEY = "another key than before"
    reconcile_engines()
    provider = reread(provider)
    assert provider.state == EngineState.DOWN
    assert "CLAW_SECRET_KEY" in provider.last_error
    assert server.calls == []


def test_providers_are_never_given_versions(project: Project, policy: Policy) -> None:
    provider = ProviderFactory.create(project=project)
    Engine.objects.filter(pk=provider.pk).update(base_model=policy.base_model)
    assert serving_engines(policy) == []


def test_an_owner_has_a_provider_asked_now(owner_client: APIClient, project: Project, server: FakeEngine) -> None:
    engine = ProviderFactory.create(project=project, base_url=f"{server.base_url}/v1", checked_at=timezone.now())
    Engine.objects.filter(pk=engine.pk).update(state=EngineState.DOWN, last_error="it was away")

    answer = owner_client.post(f"/api/v1/engines/{engine.id}/check")

    assert (answer.status_code, answer.json()["state"], answer.json()["last_error"]) == (200, "up", "")
    silent = ProviderFactory.create(project=project, base_url="http://127.0.0.1:9/v1")
    told = owner_client.post(f"/api/v1/engines/{silent.id}/check").json()
    assert told["state"] == "down"
    assert "cannot be reached" in told["last_error"]


def test_who_may_have_a_provider_asked(
    client_of: ClientOf,
    mate: User,
    stranger: User,
    anonymous_client: APIClient,
    owner_client: APIClient,
    provider: Engine,
) -> None:
    address = f"/api/v1/engines/{provider.id}/check"

    assert client_of(mate).post(address).status_code == 403
    assert client_of(stranger).post(address).status_code == 404
    assert anonymous_client.post(address).status_code == 401
    assert owner_client.get(address).status_code == 405
    assert owner_client.post(f"/api/v1/engines/{new_id('engn')}/check").status_code == 404
