"""Labels over REST: by trajectory, by step, and by the id of an answer."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, User
from apps.core.ids import new_id
from apps.feedback.models import Label
from apps.trajectories import services as trajectories
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent)


@pytest.fixture
def url(trajectory: Trajectory) -> str:
    return f"/api/v1/trajectories/{trajectory.id}/labels"


class TestByTrajectory:
    def test_it_works(self, key_client: APIClient, url: str, trajectory: Trajectory) -> None:
        answer = key_client.post(url, {"value": 1, "text": "solved", "source": "environment"})
        assert answer.status_code == 201
        assert answer.json()["reward"] == 1
        assert answer.json()["author"].startswith("claw-")
        trajectory.refresh_from_db()
        assert trajectory.reward == 1

    def test_it_names_a_step(self, key_client: APIClient, url: str, trajectory: Trajectory) -> None:
        step = StepFactory.create(trajectory=trajectory)
        assert key_client.post(url, {"value": -1, "step": step.id}).json()["step"] == step.id
        step.refresh_from_db()
        assert step.reward == -1

    @pytest.mark.parametrize("step", [new_id("step"), "nonsense"])
    def test_a_foreign_step_is_404(self, key_client: APIClient, url: str, step: str) -> None:
        StepFactory.create(id=new_id("step"))
        assert key_client.post(url, {"value": 1, "step": step}).status_code == 404
        assert key_client.post(url, {"value": 1, "step": Step.objects.get().id}).status_code == 404

    def test_it_lists_with_an_explanation(self, key_client: APIClient, url: str) -> None:
        for value in (0, 1):
            key_client.post(url, {"value": value})
        shown = key_client.get(url).json()
        assert [item["value"] for item in shown["items"]] == [0, 1]
        assert shown["items"][0]["superseded_by"] == shown["items"][1]["id"]
        assert (shown["reward"], shown["explanation"]) == (1, "1, from one environment label")

    def test_a_person_is_human(self, client_of: Login, mate: User, url: str) -> None:
        answer = client_of(mate).post(url, {"value": 0.5})
        assert (answer.status_code, answer.json()["source"]) == (201, "human")
        assert answer.json()["author"] == mate.email

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "value"),
            ({"value": "good"}, "value"),
            ({"value": 2}, "value"),
            ({"value": 1, "source": "human"}, "source"),
            ({"value": 1, "source": "oracle"}, "source"),
            ({"value": 1, "text": "x" * 20_001}, "text"),
            ({"value": 1, "text": "\x00"}, "text"),
            ({"value": 1, "reward": 1}, "reward"),
            ({"value": 1, "idempotency_key": "k" * 101}, "idempotency_key"),
        ],
    )
    def test_it_refuses_a_bad_body(self, key_client: APIClient, url: str, body: dict[str, Any], field: str) -> None:
        answer = key_client.post(url, body)
        assert answer.status_code == 400
        assert answer.json()["field"] == field
        assert not Label.objects.exists()

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
    def test_it_refuses_what_is_no_number(self, key_client: APIClient, url: str, number: str) -> None:
        answer = key_client.post(url, f'{{"value": {number}}}', content_type="application/json")
        assert answer.status_code == 400

    def test_an_idempotency_key_makes_one_label(self, key_client: APIClient, url: str) -> None:
        body = {"value": 1, "idempotency_key": "k"}
        first, again = key_client.post(url, body), key_client.post(url, body)
        assert first.json()["id"] == again.json()["id"]
        assert key_client.post(url, {**body, "value": 0}).status_code == 409
        assert Label.objects.count() == 1


class TestByResponse:
    def test_it_works_at_once_before_any_recorder_came(self, key_client: APIClient, key: ApiKey) -> None:
        exchange = ExchangeFactory.create(key=key)
        answer = key_client.post(f"/api/v1/responses/{exchange.response_id}/labels", {"value": 1})
        assert answer.status_code == 201
        step = Step.objects.get()
        assert (answer.json()["step"], step.reward) == (step.id, 1)
        assert fold_pending() == 0

    def test_it_works_after_folding_too(self, key_client: APIClient, key: ApiKey) -> None:
        exchange = ExchangeFactory.create(key=key)
        fold_pending()
        url = f"/api/v1/responses/{exchange.response_id}/labels"
        key_client.post(url, {"value": 1})
        assert [item["value"] for item in key_client.get(url).json()["items"]] == [1]

    def test_it_names_one_of_several_choices(self, key_client: APIClient, key: ApiKey) -> None:
        exchange = ExchangeFactory.create(key=key, answers=[{"content": "a"}, {"content": "b"}])
        url = f"/api/v1/responses/{exchange.response_id}/labels"
        assert key_client.post(url, {"value": 1, "choice": 1}).status_code == 201
        assert [step.reward for step in Step.objects.order_by("choice")] == [None, 1]
        assert key_client.post(url, {"value": 1, "choice": 2}).status_code == 404

    def test_a_busy_recorder_means_try_again(
        self, key_client: APIClient, key: ApiKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchange = ExchangeFactory.create(key=key)
        monkeypatch.setattr(trajectories, "fold_agent", lambda _agent_id: 0)
        answer = key_client.post(f"/api/v1/responses/{exchange.response_id}/labels", {"value": 1})
        assert (answer.status_code, answer["Retry-After"]) == (409, "1")

    def test_a_call_that_was_set_aside_says_why(self, key_client: APIClient, key: ApiKey) -> None:
        exchange = ExchangeFactory.create(key=key, dialect="klingon")
        answer = key_client.post(f"/api/v1/responses/{exchange.response_id}/labels", {"value": 1})
        assert answer.status_code == 409
        assert "klingon" in answer.json()["detail"]
        assert "Retry-After" not in answer

    @pytest.mark.parametrize("method", ["get", "post"])
    def test_another_teams_answer_is_404(
        self, other_client: APIClient, client_of: Login, stranger: User, key: ApiKey, method: str
    ) -> None:
        exchange = ExchangeFactory.create(key=key)
        for client in (other_client, client_of(stranger)):
            answer = getattr(client, method)(f"/api/v1/responses/{exchange.response_id}/labels", {"value": 1})
            assert answer.status_code == 404
        assert not Label.objects.exists()

    @pytest.mark.parametrize("response_id", ["chatcmpl-none", "%00", "x" * 300])
    def test_a_missing_answer_is_404(self, key_client: APIClient, response_id: str) -> None:
        assert key_client.post(f"/api/v1/responses/{response_id}/labels", {"value": 1}).status_code == 404
        assert key_client.get(f"/api/v1/responses/{response_id}/labels").status_code == 404

    def test_the_same_id_of_two_teams_is_two_answers(
        self, key_client: APIClient, other_client: APIClient, key: ApiKey, other_key: ApiKey
    ) -> None:
        for owner in (key, other_key):
            ExchangeFactory.create(key=owner, response_id="chatcmpl-same")
        assert key_client.post("/api/v1/responses/chatcmpl-same/labels", {"value": 1}).status_code == 201
        assert other_client.post("/api/v1/responses/chatcmpl-same/labels", {"value": 0}).status_code == 201
        assert set(Trajectory.objects.values_list("reward", flat=True)) == {0, 1}

    def test_who_may(self, client_of: Login, viewer: User, anonymous_client: APIClient, key: ApiKey) -> None:
        url = f"/api/v1/responses/{ExchangeFactory.create(key=key).response_id}/labels"
        assert anonymous_client.post(url, {"value": 1}).status_code == 401
        assert client_of(viewer).post(url, {"value": 1}).status_code == 403
        assert client_of(viewer).get(url).status_code == 200
        assert client_of(viewer).put(url, {"value": 1}).status_code == 405

    def test_it_refuses_a_bad_body(self, key_client: APIClient, key: ApiKey) -> None:
        url = f"/api/v1/responses/{ExchangeFactory.create(key=key).response_id}/labels"
        for body in ({}, {"value": 3}, {"value": 1, "step": "x"}, {"value": 1, "choice": -1}):
            assert key_client.post(url, body).status_code == 400


class TestByStep:
    def test_it_works_for_a_span_too(self, key_client: APIClient, trajectory: Trajectory) -> None:
        step = StepFactory.create(trajectory=trajectory, text="hello")
        url = f"/api/v1/steps/{step.id}/labels"
        body = {"value": 0.5, "span": [0, 5], "source": "end_user", "end_user": "ann"}
        answer = key_client.post(url, body)
        assert answer.status_code == 201
        shown = answer.json()
        assert (shown["span"], shown["end_user"], shown["said"]) == ([0, 5], "ann", 0.5)
        listed = key_client.get(url).json()
        assert [item["id"] for item in listed["items"]] == [shown["id"]]
        assert listed["step_rewards"] == {step.id: 0.5}
        assert (listed["score"]["from"], listed["score"]["reward"]) == ("spans", 0.5)
        key_client.post(url, {"value": -1})
        score = key_client.get(url).json()["score"]
        assert (score["from"], score["words"]) == ("labels", "-1, from one environment label")
        other = StepFactory.create(trajectory=trajectory)
        assert key_client.get(f"/api/v1/steps/{other.id}/labels").json()["score"]["reward"] is None

    def test_a_comment_is_edited(self, key_client: APIClient, trajectory: Trajectory) -> None:
        url = f"/api/v1/steps/{StepFactory.create(trajectory=trajectory).id}/labels"
        first = key_client.post(url, {"field": "comment", "text": "so"}).json()["id"]
        second = key_client.post(url, {"field": "comment", "text": "so what", "replaces": first})
        assert (second.status_code, second.json()["value"]) == (201, None)
        assert key_client.post(url, {"field": "comment", "text": "again", "replaces": first}).status_code == 409

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"value": 1, "span": [0, 99]}, "span"),
            ({"value": 1, "span": [1]}, "span"),
            ({"value": 1, "span": "0-5"}, "span"),
            ({"value": 1, "field": "clarity"}, "field"),
            ({"field": "comment", "text": ""}, "text"),
            ({"field": "comment", "text": "x", "value": 1}, "value"),
            ({"value": 1, "end_user": "x" * 101}, "end_user"),
            ({"value": 1, "step": "x"}, "step"),
            ({"value": [1]}, "value"),
            ({"value": 10**400}, "value"),
            ({"value": {"place": 1, "of": 2}}, "value"),
        ],
    )
    def test_it_refuses_a_bad_body(
        self, key_client: APIClient, trajectory: Trajectory, body: dict[str, Any], field: str
    ) -> None:
        url = f"/api/v1/steps/{StepFactory.create(trajectory=trajectory).id}/labels"
        answer = key_client.post(url, body)
        assert (answer.status_code, answer.json()["field"]) == (400, field)

    def test_who_may(
        self,
        client_of: Login,
        viewer: User,
        stranger: User,
        anonymous_client: APIClient,
        other_client: APIClient,
        trajectory: Trajectory,
    ) -> None:
        url = f"/api/v1/steps/{StepFactory.create(trajectory=trajectory).id}/labels"
        assert anonymous_client.post(url, {"value": 1}).status_code == 401
        assert client_of(viewer).post(url, {"value": 1}).status_code == 403
        assert client_of(viewer).delete(url).status_code == 405
        for client in (client_of(stranger), other_client):
            assert client.post(url, {"value": 1}).status_code == 404
            assert client.get(url).status_code == 404
        for missing in (new_id("step"), "nonsense"):
            assert client_of(viewer).get(f"/api/v1/steps/{missing}/labels").status_code == 404


class TestTakeBack:
    @pytest.fixture
    def label_url(self, key_client: APIClient, url: str) -> str:
        return f"/api/v1/labels/{key_client.post(url, {'value': 1}).json()['id']}/take-back"

    def test_it_works_once(self, key_client: APIClient, label_url: str, trajectory: Trajectory) -> None:
        answer = key_client.post(label_url)
        assert (answer.status_code, answer.json()["reward"]) == (201, None)
        assert key_client.post(label_url).status_code == 409
        trajectory.refresh_from_db()
        assert trajectory.reward is None

    def test_who_may(
        self,
        client_of: Login,
        viewer: User,
        mate: User,
        stranger: User,
        owner: User,
        anonymous_client: APIClient,
        label_url: str,
    ) -> None:
        assert anonymous_client.post(label_url).status_code == 401
        assert client_of(stranger).post(label_url).status_code == 404
        assert client_of(viewer).post(label_url).status_code == 403
        assert client_of(mate).post(label_url).status_code == 403
        assert client_of(owner).get(label_url).status_code == 405
        assert client_of(owner).post(label_url).status_code == 201

    @pytest.mark.parametrize("label_id", [new_id("labl"), "x", "%00"])
    def test_a_missing_label_is_404(self, key_client: APIClient, label_id: str) -> None:
        assert key_client.post(f"/api/v1/labels/{label_id}/take-back").status_code == 404


def test_a_browser_needs_its_csrf_token(mate: User, url: str) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(mate)
    assert client.post(url, {"value": 1}).status_code == 403
    assert not Label.objects.exists()


class TestHints:
    def test_those_that_stand_are_listed_newest_first(
        self, key_client: APIClient, agent: Agent, trajectory: Trajectory
    ) -> None:
        other = TrajectoryFactory.create(agent=agent)
        steps = [StepFactory.create(trajectory=row) for row in (trajectory, other)]
        for step, words in zip([*steps, steps[0]], ("One word.", "In French.", "No more."), strict=True):
            given = key_client.post(f"/api/v1/steps/{step.pk}/labels", {"field": "hint", "text": words})
        key_client.post(f"/api/v1/labels/{given.json()['id']}/take-back")
        key_client.post(f"/api/v1/steps/{steps[0].pk}/labels", {"field": "comment", "text": "to people"})
        shown = key_client.get("/api/v1/hints").json()
        assert [(one["text"], one["step"]) for one in shown["items"]] == [
            ("In French.", steps[1].pk),
            ("One word.", steps[0].pk),
        ]
        assert shown["items"][0]["author"].startswith("claw-")
        first = key_client.get("/api/v1/hints", {"limit": 1}).json()
        assert [
            one["text"] for one in key_client.get("/api/v1/hints", {"before": first["next_before"]}).json()["items"]
        ] == ["One word."]
        of_one = key_client.get("/api/v1/hints", {"trajectory": other.pk}).json()["items"]
        assert [one["text"] for one in of_one] == ["In French."]
        Trajectory.objects.filter(pk=other.pk).update(deleted_at=other.started_at)
        assert [one["text"] for one in key_client.get("/api/v1/hints").json()["items"]] == ["One word."]

    def test_who_may(
        self,
        client_of: Login,
        viewer: User,
        stranger: User,
        key_client: APIClient,
        anonymous_client: APIClient,
        other_client: APIClient,
        trajectory: Trajectory,
    ) -> None:
        step = StepFactory.create(trajectory=trajectory)
        key_client.post(f"/api/v1/steps/{step.pk}/labels", {"field": "hint", "text": "One word."})
        assert anonymous_client.get("/api/v1/hints").status_code == 401
        assert len(client_of(viewer).get("/api/v1/hints", {"project": "shop"}).json()["items"]) == 1
        assert client_of(stranger).get("/api/v1/hints", {"project": "shop"}).status_code == 404
        assert other_client.get("/api/v1/hints").json()["items"] == []
        assert other_client.get("/api/v1/hints", {"trajectory": trajectory.pk}).json()["items"] == []
        assert key_client.post("/api/v1/hints", {}).status_code == 405
        for odd in ({"limit": "x"}, {"before": "y"}, {"colour": "red"}, {"trajectory": "%00" * 30}):
            assert key_client.get("/api/v1/hints", odd).status_code == 400
