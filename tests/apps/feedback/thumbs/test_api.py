"""End users' thumbs from any page: what a token can do, how often, and that it can read nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.core.ids import new_id
from apps.feedback.models import Label, Source
from apps.feedback.thumbs import limits
from apps.feedback.thumbs.models import ThumbToken
from apps.feedback.thumbs.services import create_token
from apps.trajectories.models import Step
from apps.trajectories.recorder import fold_pending
from tests.factories.accounts import AgentFactory, ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
TOKENS = "/api/v1/thumb-tokens"


@pytest.fixture
def token(agent: Agent, trainer: User) -> ThumbToken:
    return create_token(caller=Caller(user=trainer), agent=agent, origins=["https://shop.example"])


@pytest.fixture
def page(token: ThumbToken) -> APIClient:
    """A web page that shows the token."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token.token}", HTTP_ORIGIN="https://shop.example")
    return client


@pytest.fixture
def url(key: ApiKey) -> str:
    return f"/api/v1/responses/{ExchangeFactory.create(key=key).response_id}/thumb"


def test_a_thumb_is_an_end_users_label(page: APIClient, url: str, token: ThumbToken) -> None:
    answer = page.post(url, {"value": 1, "text": "great", "end_user": "u1"})
    assert (answer.status_code, answer.json()) == (202, {"accepted": True})
    assert answer["Access-Control-Allow-Origin"] == "*"
    label = Label.objects.get()
    assert (label.source, label.value, label.text, label.end_user) == (Source.END_USER, 1, "great", "u1")
    assert (label.token, label.author, label.key) == (token, None, None)
    assert Step.objects.get().reward == 1


def test_each_user_has_one_voice_and_may_take_it_back(page: APIClient, url: str) -> None:
    for user, value in (("u1", 1), ("u2", -1), ("u1", -1)):
        assert page.post(url, {"value": value, "end_user": user}).status_code == 202
    assert Label.objects.standing().count() == 2
    assert page.post(url, {"value": None, "end_user": "u1"}).status_code == 202
    assert page.post(url, {"value": None, "end_user": "u1"}).status_code == 409
    assert [label.end_user for label in Label.objects.standing()] == ["u2"]


def test_a_browser_may_ask_from_another_origin(page: APIClient, url: str) -> None:
    answer = page.options(url)
    assert answer.status_code == 204
    assert answer["Access-Control-Allow-Origin"] == "*"
    assert answer["Access-Control-Allow-Headers"] == "authorization, content-type"
    refused = APIClient().post(url, {"value": 1})
    assert (refused.status_code, refused["Access-Control-Allow-Origin"]) == (403, "*")


def test_other_pages_are_refused(page: APIClient, url: str, token: ThumbToken) -> None:
    page.credentials(HTTP_AUTHORIZATION=f"Bearer {token.token}", HTTP_ORIGIN="https://evil.example")
    answer = page.post(url, {"value": 1})
    assert answer.status_code == 403
    assert "not for pages of https://evil.example" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["get", "put", "delete", "patch"])
def test_nothing_else_can_be_done_here(page: APIClient, url: str, method: str) -> None:
    assert getattr(page, method)(url).status_code == 405


@pytest.mark.parametrize(
    "path", ["trajectories", "labels", "thumb-tokens", "score-schemas", "graders", "preferences", "projects"]
)
def test_it_can_read_nothing(page: APIClient, path: str) -> None:
    assert page.get(f"/api/v1/{path}").status_code in {401, 404}


def test_it_judges_its_own_agents_answers_alone(
    page: APIClient, project: Project, other_key: ApiKey, token: ThumbToken
) -> None:
    mate = ApiKeyFactory.create(agent=AgentFactory.create(project=project))
    others = [ExchangeFactory.create(key=key).response_id for key in (mate, other_key)]
    fold_pending()
    for response_id in (*others, "chatcmpl-none"):  # whether it is there is not told either
        refused = page.post(f"/api/v1/responses/{response_id}/thumb", {"value": 1})
        assert (refused.status_code, refused.json()["detail"]) == (404, f"there is no answer {response_id!r}")
    assert page.post("/api/v1/responses/%00/thumb", {"value": 1}).status_code == 404
    assert not Label.objects.exists()
    own = create_token(caller=Caller(user=token.created_by), agent=mate.agent)  # of the first one's agent it may
    page.credentials(HTTP_AUTHORIZATION=f"Bearer {own.token}")
    assert page.post(f"/api/v1/responses/{others[0]}/thumb", {"value": 1}).status_code == 202
    assert Label.objects.get().trajectory.agent == mate.agent


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"value": 2},
        {"value": "good"},
        {"value": 10**400},
        {"value": 1, "text": "x" * 2001},
        {"value": 1, "text": "\x00"},
        {"value": 1, "end_user": "x" * 101},
        {"value": 1, "end_user": "\x00"},
        {"value": 1, "source": "human"},
        {"value": 1, "field": "clarity"},
    ],
)
def test_a_bad_body_is_refused(page: APIClient, url: str, body: dict[str, Any]) -> None:
    assert page.post(url, body).status_code == 400
    assert not Label.objects.exists()


def test_a_token_that_is_off_or_expired_opens_nothing(page: APIClient, url: str, token: ThumbToken) -> None:
    for change in ({"disabled_at": timezone.now()}, {"disabled_at": None, "expires_at": timezone.now()}):
        ThumbToken.objects.filter(pk=token.pk).update(**change)
        assert page.post(url, {"value": 1}).status_code == 403


def test_one_address_is_slowed_down(page: APIClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PER_ADDRESS", 2)
    assert [page.post(url, {"value": 1}).status_code for _ in range(2)] == [202, 202]
    answer = page.post(url, {"value": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert page.post(url, {"value": 1}, REMOTE_ADDR="10.0.0.9").status_code == 202


def test_a_token_is_slowed_down_as_a_whole(page: APIClient, url: str, token: ThumbToken) -> None:
    ThumbToken.objects.filter(pk=token.pk).update(per_minute=1)
    codes = [page.post(url, {"value": 1}, REMOTE_ADDR=f"10.0.0.{n}").status_code for n in range(3)]
    assert 429 in codes  # two of the three fall into one minute


def test_without_valkey_thumbs_are_taken(page: APIClient, url: str, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert page.post(url, {"value": 1}).status_code == 202


class TestTokens:
    def test_a_trainer_makes_lists_and_ends_them(self, manage_client: APIClient, agent: Agent) -> None:
        body = {"agent": agent.slug, "name": "shop", "origins": ["https://Shop.example:8443"], "per_minute": 5}
        made = manage_client.post(TOKENS, body)
        assert (made.status_code, made.json()["token"].startswith("clawthumb-")) == (201, True)
        assert made.json()["origins"] == ["https://shop.example:8443"]  # as browsers send it
        assert manage_client.get(TOKENS).json()["items"] == [made.json()]
        for _ in range(2):
            ended = manage_client.post(f"{TOKENS}/{made.json()['id']}/switch-off")
            assert ended.json()["disabled_at"] is not None

    def test_origins_are_kept_as_browsers_send_them(self, manage_client: APIClient, agent: Agent) -> None:
        given = ["https://Shop.example:443", "http://shop.example:80", "https://[::1]:8443", "http://127.0.0.1:3000"]
        made = manage_client.post(TOKENS, {"agent": agent.slug, "origins": given}).json()
        sent = ["https://shop.example", "http://shop.example", "https://[::1]:8443", "http://127.0.0.1:3000"]
        assert made["origins"] == sent

    @pytest.mark.parametrize(
        "change",
        [
            {"agent": "nobody"},
            {"origins": ["shop.example"]},
            {"origins": ["https://shop.example/page"]},
            {"origins": ["*"]},
            {"origins": ["https://shop.example:0"]},
            {"origins": ["https://shop.example:70000"]},
            {"origins": ["https://:443"]},
            {"origins": ["https://shop..example"]},
            {"origins": ["https://[::1"]},
            {"origins": ["https://[12]"]},
            {"origins": ["https://1.2.3"]},
            {"origins": [f"https://{'x' * 300}"]},
            {"origins": ["https://shop.example"] * 21},
            {"per_minute": 0},
            {"name": "x" * 101},
            {"colour": "red"},
        ],
    )
    def test_a_bad_body_is_refused(self, manage_client: APIClient, agent: Agent, change: dict[str, Any]) -> None:
        assert manage_client.post(TOKENS, {"agent": agent.slug, **change}).status_code in {400, 404}
        assert not ThumbToken.objects.exists()

    def test_who_may(
        self,
        client_of: Login,
        key_client: APIClient,
        other_client: APIClient,
        anonymous_client: APIClient,
        mate: User,
        stranger: User,
        agent: Agent,
        token: ThumbToken,
    ) -> None:
        off = f"{TOKENS}/{token.id}/switch-off"
        for client, status in ((anonymous_client, 401), (key_client, 403), (other_client, 404)):
            assert client.post(off).status_code == status
        assert client_of(stranger).post(off).status_code == 404
        assert client_of(mate).post(f"{TOKENS}?project=shop", {"agent": agent.slug}).status_code == 403
        assert client_of(stranger).get(f"{TOKENS}?project=shop").status_code == 404
        assert client_of(mate).get(f"{TOKENS}?project=shop").status_code == 200
        assert client_of(mate).delete(f"{TOKENS}?project=shop").status_code == 405
        assert client_of(mate).post(f"{TOKENS}/{new_id('thmb')}/switch-off").status_code == 404
