"""Other people's models: providers, their credentials, and the names under which agents ask for their models."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from pytest_django.fixtures import Settings

from apps.accounts.models import Project, Role, User
from apps.core.ids import new_id
from apps.registry.credentials import unseal_credential
from apps.registry.models import Engine, EngineState, Policy, Teacher
from tests.factories.accounts import MembershipFactory
from tests.factories.registry import EngineFactory, ProviderFactory, TeacherFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

PAGE = "/p/shop/teachers"
SECRET = "sk-0123456789abcdef"


@pytest.fixture
def server() -> Iterator[FakeEngine]:
    """A provider's server."""
    with serve_engine(FakeEngine()) as server:
        yield server


@pytest.fixture
def provider(project: Project) -> Engine:
    return ProviderFactory.create(project=project, base_url="http://127.0.0.1:9/v1")


def at(engine: Engine, deed: str) -> str:
    return f"/p/shop/providers/{engine.id}/{deed}"


def told(answer: Any) -> str:
    """Return the message that the next page shows."""
    assert answer["Location"] == PAGE
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def test_the_models_page_leads_there(viewer_browser: Client, project: Project) -> None:
    assert PAGE in viewer_browser.get("/p/shop/models").content.decode()


def test_an_empty_page_says_what_to_do(viewer_browser: Client, project: Project) -> None:
    html = viewer_browser.get(PAGE).content.decode()

    assert "No teacher yet" in html
    assert "Add a provider first" in html
    assert "No provider yet" in html
    assert 'id="teacher-form"' not in html


def test_it_shows_providers_and_teachers_of_the_project(
    viewer_browser: Client, owner: User, provider: Engine, other_project: Project
) -> None:
    Engine.objects.filter(pk=provider.pk).update(state=EngineState.DOWN, last_error="it refuses <us>")
    TeacherFactory.create(engine=provider, name="big-one", model="vendor/big-1")
    TeacherFactory.create(engine=ProviderFactory.create(project=other_project), name="theirs")
    EngineFactory.create(base_url="http://replica:8000")

    html = viewer_browser.get(PAGE).content.decode()

    for words in ("big-one", "vendor/big-1", provider.base_url, "…cher", "it refuses &lt;us&gt;"):
        assert words in html
    assert "theirs" not in html
    assert "http://replica:8000" not in html
    assert "Ask owner@example.org" in html
    assert "Enter anew" not in html


class TestProviders:
    def test_an_owner_adds_one_and_hears_whether_it_answers(
        self, owner_browser: Client, project: Project, server: FakeEngine
    ) -> None:
        fields = {"base_url": f"{server.base_url}/v1", "credential": SECRET, "max_in_flight": "4"}

        answer = owner_browser.post("/p/shop/providers/add", fields)

        assert told(answer) == f"{server.base_url}/v1 answers."
        engine = Engine.objects.providers().get()
        assert (engine.project, engine.state, engine.max_in_flight) == (project, EngineState.UP, 4)
        assert unseal_credential(engine.sealed_credential) == SECRET
        html = owner_browser.get(PAGE).content.decode()
        assert SECRET not in html
        assert "…cdef" in html

    def test_one_that_does_not_answer_is_kept_with_its_reason(self, owner_browser: Client, project: Project) -> None:
        answer = owner_browser.post("/p/shop/providers/add", {"base_url": "http://127.0.0.1:9/v1"})

        assert "does not answer yet: http://127.0.0.1:9/v1 cannot be reached" in told(answer)
        assert Engine.objects.providers().get().state == EngineState.DOWN

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"base_url": ""}, "required"),
            ({"base_url": "ftp://x"}, "begins with https://"),
            ({"base_url": "https://user:pass@x/v1"}, "may hold no user"),
            ({"credential": "two words"}, "visible ASCII"),
            ({"max_in_flight": "0"}, "greater than or equal to 1"),
        ],
    )
    def test_a_bad_one_keeps_the_form_but_no_credential(
        self, owner_browser: Client, project: Project, change: dict[str, str], words: str
    ) -> None:
        fields = {"base_url": "https://api.example.com/v1", "credential": SECRET, "max_in_flight": "7", **change}

        answer = owner_browser.post("/p/shop/providers/add", fields)

        html = answer.content.decode()
        assert answer.status_code == 400
        assert words in html
        assert f'value="{fields["max_in_flight"]}"' in html
        assert fields["credential"] not in html
        assert not Engine.objects.exists()

    def test_one_address_is_added_once(self, owner_browser: Client, provider: Engine) -> None:
        answer = owner_browser.post("/p/shop/providers/add", {"base_url": provider.base_url})

        assert answer.status_code == 409
        assert "already" in answer.content.decode()

    def test_operators_decide_which_hosts_are_called(
        self, owner_browser: Client, project: Project, settings: Settings
    ) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"provider_hosts": ["api.example.com"]})

        answer = owner_browser.post("/p/shop/providers/add", {"base_url": "http://127.0.0.1:9/v1"})

        assert answer.status_code == 403
        assert "CLAW_PROVIDER_HOSTS" in answer.content.decode()

    def test_an_owner_tests_it(self, owner_browser: Client, project: Project, server: FakeEngine) -> None:
        engine = ProviderFactory.create(project=project, base_url=f"{server.base_url}/v1", state=EngineState.DOWN)

        assert told(owner_browser.post(at(engine, "test"))) == f"{server.base_url}/v1 answers."

        engine.refresh_from_db()
        assert engine.state == EngineState.UP
        assert engine.checked_at is not None

    def test_a_credential_is_entered_anew(self, owner_browser: Client, provider: Engine) -> None:
        answer = owner_browser.post(at(provider, "credential"), {"credential": SECRET})

        assert "does not answer yet" in told(answer)
        provider.refresh_from_db()
        assert unseal_credential(provider.sealed_credential) == SECRET
        assert SECRET not in owner_browser.get(PAGE).content.decode()

    @pytest.mark.parametrize("credential", ["two words", "x" * 1001])
    def test_a_bad_credential_keeps_the_old_one(self, owner_browser: Client, provider: Engine, credential: str) -> None:
        answer = owner_browser.post(at(provider, "credential"), {"credential": credential})

        assert answer.status_code == 400
        assert answer.content.decode().count('role="alert"') == 1
        assert credential not in answer.content.decode()
        provider.refresh_from_db()
        assert unseal_credential(provider.sealed_credential) == "sk-of-a-teacher"

    def test_it_rests_and_is_called_back(self, owner_browser: Client, provider: Engine) -> None:
        assert "rests" in told(owner_browser.post(at(provider, "rest")))
        provider.refresh_from_db()
        assert not provider.is_enabled
        assert "Call back" in owner_browser.get(PAGE).content.decode()

        assert "takes calls again" in told(owner_browser.post(at(provider, "rest")))
        provider.refresh_from_db()
        assert provider.is_enabled

    def test_it_is_removed_when_no_teacher_stands_on_it(self, owner_browser: Client, provider: Engine) -> None:
        teacher = TeacherFactory.create(engine=provider, name="big-one")
        refused = owner_browser.post(at(provider, "remove"))
        assert refused.status_code == 409
        assert "big-one" in refused.content.decode()
        teacher.delete()

        assert "forgotten" in told(owner_browser.post(at(provider, "remove")))

        assert not Engine.objects.exists()

    @pytest.mark.parametrize("deed", ["test", "credential", "rest", "remove"])
    def test_another_projects_looks_like_none(
        self, owner_browser: Client, owner: User, other_project: Project, deed: str
    ) -> None:
        MembershipFactory.create(user=owner, team=other_project.team, role=Role.OWNER)  # of both
        theirs = ProviderFactory.create(project=other_project)

        assert owner_browser.post(at(theirs, deed), {"credential": SECRET}).status_code == 404
        assert owner_browser.post(f"/p/shop/providers/nobody/{deed}").status_code == 404
        theirs.refresh_from_db()
        assert theirs.is_enabled
        assert unseal_credential(theirs.sealed_credential) == "sk-of-a-teacher"


class TestTeachers:
    def test_an_owner_adds_and_removes_one(self, owner_browser: Client, provider: Engine) -> None:
        fields = {"name": "big-one", "model": "vendor/big-1", "engine": provider.id}

        assert "can ask for big-one" in told(owner_browser.post("/p/shop/teachers/add", fields))
        teacher = Teacher.objects.get()
        assert (teacher.project, teacher.engine, teacher.model) == (provider.project, provider, "vendor/big-1")

        assert "big-one" in told(owner_browser.post(f"/p/shop/teachers/{teacher.id}/remove"))
        assert not Teacher.objects.exists()

    @pytest.mark.parametrize(
        ("change", "words", "status"),
        [
            ({"name": ""}, "required", 400),
            ({"name": "two words"}, "begins with a letter or digit", 400),
            ({"name": "shop"}, "policy", 409),
            ({"name": "default"}, "policy", 409),
            ({"name": "taken"}, "already", 409),
            ({"model": ""}, "required", 400),
            ({"engine": "nobody"}, "valid choice", 400),
        ],
    )
    def test_a_bad_one_keeps_the_form_and_says_why(
        self,
        owner_browser: Client,
        policy: Policy,
        provider: Engine,
        change: dict[str, str],
        words: str,
        status: int,
    ) -> None:
        TeacherFactory.create(engine=provider, name="taken")
        fields = {"name": "big-one", "model": "vendor/big-1", "engine": provider.id, **change}

        answer = owner_browser.post("/p/shop/teachers/add", fields)

        html = answer.content.decode()
        assert answer.status_code == status
        assert words in html
        assert f'value="{fields["model"]}"' in html
        assert Teacher.objects.count() == 1

    def test_another_projects_provider_is_no_choice(
        self, owner_browser: Client, owner: User, provider: Engine, other_project: Project
    ) -> None:
        MembershipFactory.create(user=owner, team=other_project.team, role=Role.OWNER)
        theirs = TeacherFactory.create(engine=ProviderFactory.create(project=other_project))
        fields = {"name": "big-one", "model": "vendor/big-1", "engine": theirs.engine_id}

        assert owner_browser.post("/p/shop/teachers/add", fields).status_code == 400
        for teacher_id in (theirs.id, new_id("tchr"), "nobody"):
            assert owner_browser.post(f"/p/shop/teachers/{teacher_id}/remove").status_code == 404
        assert Teacher.objects.get() == theirs
