"""Runs over REST: each door works, and refuses what it should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.core.ids import new_id
from apps.registry.models import Policy
from apps.training import leases
from apps.training.attempts import end_attempt
from apps.training.models import Run, RunState
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import RECIPE, LaunchRun, claim, finish_step

Ready = list[Trajectory]
ClientOf = Callable[[User], APIClient]

RUNS = "/api/v1/runs"


@pytest.fixture
def run(launch: LaunchRun, two_ready: Ready) -> Run:
    return launch()


@pytest.fixture
def trained(run: Run, tmp_path: Path) -> Run:
    """A run with one step done."""
    attempt = claim(run)
    batch = leases.lease_batch(attempt, step=1)
    assert batch is not None
    leases.acknowledge_step(attempt, finish_step(batch, tmp_path))
    end_attempt(attempt, run_state=RunState.FAILED, error="the trainer was killed")
    return run


def paths_of(run_id: str) -> list[tuple[str, str]]:
    base = f"{RUNS}/{run_id}"
    reads = [("get", base), *[("get", f"{base}/{name}") for name in ("metrics", "events", "batches")]]
    return [*reads, *[("post", f"{base}/{name}") for name in ("cancel", "resume")]]


def test_a_run_is_launched(manage_client: APIClient, two_ready: Ready) -> None:
    answer = manage_client.post(RUNS, {"name": "first", "recipe": RECIPE, "selection": {"agent": "clerk"}})
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    assert (body["name"], body["state"], body["project"], body["steps_done"]) == ("first", "queued", "shop", 0)
    assert body["recipe"]["trajectories_per_step"] == 2
    assert Run.objects.get().id == body["id"]


def test_a_run_on_labels_is_launched(manage_client: APIClient, two_ready: Ready) -> None:
    recipe = {"algorithm": "sft", "n_steps": 1, "trajectories_per_step": 1, "good_above": 0.2}
    body = manage_client.post(RUNS, {"recipe": recipe}).json()
    assert (body["recipe"]["loss"], body["recipe"]["estimator"], body["recipe"]["epochs"]) == ("cross_entropy", None, 1)
    refused = manage_client.post(RUNS, {"recipe": {"algorithm": "sft", "max_staleness": 2}})
    assert refused.status_code == 400
    assert "max_staleness has no effect with the algorithm sft" in refused.json()["detail"]


def test_a_person_names_the_project(client_of: ClientOf, trainer: User, two_ready: Ready) -> None:
    client = client_of(trainer)
    assert client.post(f"{RUNS}?project=shop", {"recipe": RECIPE}).status_code == 201
    answer = client.post(RUNS, {"recipe": RECIPE})
    assert answer.status_code == 404
    assert "say which project" in answer.json()["detail"]


def test_an_idempotency_key_launches_once(manage_client: APIClient, two_ready: Ready) -> None:
    body = {"recipe": RECIPE, "idempotency_key": "monday"}
    ids = {manage_client.post(RUNS, body).json()["id"] for _ in range(2)}
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"recipe": {"n_stepz": 1}}, "recipe.n_stepz"),
        ({"recipe": []}, "recipe"),
        ({"recipe": {"lora_rank": 512}}, "recipe.lora_rank"),  # more than the engines serve
        ({"selection": {"chanel": "x"}}, "selection.chanel"),
        ({"recipie": {}}, "recipie"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"selection": {"agent": "a\0b"}}, "selection"),
        ({"selection": {"since": "0001-01-01T00:00:00+23:00"}}, "selection.since"),
        ({"selection": {"until": "9999-12-31T23:59:59-23:00"}}, "selection.until"),
        ({"recipe": {"max_tokens_per_microbatch": 10**30}}, "recipe.max_tokens_per_microbatch"),
    ],
)
def test_a_bad_body_is_refused_by_name(
    manage_client: APIClient, two_ready: Ready, body: dict[str, Any], field: str
) -> None:
    answer = manage_client.post(RUNS, body)
    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["field"] == field


def test_all_that_is_wrong_with_a_recipe_is_told(manage_client: APIClient, two_ready: Ready) -> None:
    told = manage_client.post(RUNS, {"recipe": {"n_stepz": 1, "n_steps": 0}}).json()
    assert set(told["errors"]) == {"recipe.n_stepz", "recipe.n_steps"}


def test_a_body_that_is_no_json_is_refused(manage_client: APIClient, policy: Policy) -> None:
    answer = manage_client.post(RUNS, data="{", content_type="application/json")
    assert answer.status_code == 400


def test_an_empty_pool_is_refused_with_the_reason(manage_client: APIClient, policy: Policy) -> None:
    answer = manage_client.post(RUNS, {"recipe": RECIPE})
    assert answer.status_code == 400
    assert "nothing is ready to train on" in answer.json()["detail"]


def test_a_pool_of_open_trajectories_says_how_to_complete_them(manage_client: APIClient, two_ready: Ready) -> None:
    Trajectory.objects.update(state="open", completed_at=None)
    answer = manage_client.post(RUNS, {"recipe": RECIPE})
    assert answer.status_code == 400
    assert "2 still open" in answer.json()["detail"]
    assert "POST /api/v1/trajectories/{id}/complete" in answer.json()["detail"]
    assert "without a call for 600 s" in answer.json()["detail"]


def test_a_second_run_is_a_conflict(manage_client: APIClient, run: Run) -> None:
    answer = manage_client.post(RUNS, {"recipe": RECIPE})
    assert answer.status_code == 409
    assert run.id in answer.json()["detail"]


def test_an_agents_key_may_read_but_not_launch(key_client: APIClient, run: Run) -> None:
    assert key_client.get(f"{RUNS}/{run.id}").status_code == 200
    assert key_client.post(RUNS, {"recipe": RECIPE}).status_code == 403
    assert key_client.post(f"{RUNS}/{run.id}/cancel").status_code == 403


def test_a_viewer_may_read_but_not_change(client_of: ClientOf, viewer: User, run: Run) -> None:
    client = client_of(viewer)
    assert client.get(f"{RUNS}?project=shop").status_code == 200
    for method, path in paths_of(run.id):
        expected = 200 if method == "get" else 403
        assert getattr(client, method)(path).status_code == expected, path
    assert client.post(f"{RUNS}?project=shop", {"recipe": RECIPE}).status_code == 403


def test_nobody_gets_in_without_a_key(anonymous_client: APIClient, run: Run) -> None:
    for method, path in [("get", RUNS), ("post", RUNS), *paths_of(run.id)]:
        assert getattr(anonymous_client, method)(path).status_code == 401, path


def test_another_teams_run_looks_like_a_missing_one(
    other_client: APIClient, client_of: ClientOf, stranger: User, run: Run
) -> None:
    missing = new_id("run")
    for client in (other_client, client_of(stranger)):
        for (method, path), (_, path_of_none) in zip(paths_of(run.id), paths_of(missing), strict=True):
            theirs, none = getattr(client, method)(path), getattr(client, method)(path_of_none)
            assert (theirs.status_code, theirs.json()) == (404, none.json()), path


@pytest.mark.parametrize("run_id", ["run_x", "x", "run_%00", "ver_" + "0" * 26])
def test_a_malformed_id_is_a_missing_run(manage_client: APIClient, policy: Policy, run_id: str) -> None:
    for method, path in paths_of(run_id):
        assert getattr(manage_client, method)(path).status_code == 404, path


def test_wrong_methods_are_refused(manage_client: APIClient, run: Run) -> None:
    for path in (f"{RUNS}/{run.id}/cancel", f"{RUNS}/{run.id}/resume"):
        assert manage_client.get(path).status_code == 405
    assert manage_client.post(f"{RUNS}/{run.id}/metrics").status_code == 405
    assert manage_client.delete(f"{RUNS}/{run.id}").status_code == 405


def test_runs_are_paged_newest_first(manage_client: APIClient, launch: LaunchRun, two_ready: Ready) -> None:
    ids = []
    for _ in range(3):
        run = launch()
        ids.append(run.id)
        manage_client.post(f"{RUNS}/{run.id}/cancel")
    first = manage_client.get(f"{RUNS}?limit=2").json()
    assert [item["id"] for item in first["items"]] == [ids[2], ids[1]]
    second = manage_client.get(f"{RUNS}?limit=2&before={first['next_before']}").json()
    assert [item["id"] for item in second["items"]] == [ids[0]]
    assert second["next_before"] is None


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=%EF%BC%95", "limit=1_0", "limit=1000", "before=a%00", "before=x", "befor=x"]
)
def test_a_bad_page_is_refused(manage_client: APIClient, policy: Policy, query: str) -> None:
    assert manage_client.get(f"{RUNS}?{query}").status_code == 400


def test_cancel_and_resume(manage_client: APIClient, run: Run) -> None:
    answer = manage_client.post(f"{RUNS}/{run.id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert manage_client.post(f"{RUNS}/{run.id}/cancel").status_code == 409
    answer = manage_client.post(f"{RUNS}/{run.id}/resume")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert manage_client.post(f"{RUNS}/{run.id}/resume").status_code == 409


def test_a_run_is_estimated_without_being_launched(
    manage_client: APIClient, key_client: APIClient, anonymous_client: APIClient, policy: Policy
) -> None:
    path = f"{RUNS}/estimate"
    body = manage_client.post(path, {"recipe": {"lora_rank": 8}}).json()
    assert (body["estimate"], body["fits"]) == (None, None)
    assert "folder is not on this host" in body["problem"]
    assert body["room"]["disk"] > 0
    assert key_client.post(path, {}).status_code == 200
    assert manage_client.post(path, {"recipe": {"n_steps": 0}}).json()["field"] == "recipe.n_steps"
    assert manage_client.post(path, {"recipes": {}}).status_code == 400
    assert manage_client.get(path).status_code in {404, 405}
    assert anonymous_client.post(path, {}).status_code == 401
    assert not Run.objects.exists()


def test_metrics_come_from_a_step_on(manage_client: APIClient, trained: Run) -> None:
    points = manage_client.get(f"{RUNS}/{trained.id}/metrics").json()["items"]
    assert [(point["step"], point["attempt"]) for point in points] == [(1, 1)]
    assert points[0]["values"]["reward_mean"] == 0.5
    assert manage_client.get(f"{RUNS}/{trained.id}/metrics?since_step=1").json()["items"] == []
    for bad in ("x", "-1", str(2**40)):
        assert manage_client.get(f"{RUNS}/{trained.id}/metrics?since_step={bad}").status_code == 400


def test_the_history_is_told_in_words(manage_client: APIClient, trained: Run) -> None:
    events = manage_client.get(f"{RUNS}/{trained.id}/events").json()["items"]
    kinds = [event["kind"] for event in events]
    assert kinds == ["run.launched", "attempt.started", "batch.leased", "step.done", "run.failed"]
    assert events[-1]["message"] == "the trainer was killed"
    rest = manage_client.get(f"{RUNS}/{trained.id}/events?after={events[-2]['id']}").json()["items"]
    assert [event["kind"] for event in rest] == ["run.failed"]


def test_batches_tell_what_a_step_was_trained_on(manage_client: APIClient, trained: Run) -> None:
    (batch,) = manage_client.get(f"{RUNS}/{trained.id}/batches").json()["items"]
    assert (batch["step"], batch["state"], batch["reward_mean"], batch["n_samples"]) == (1, "trained", 0.5, 2)
    assert batch["version"].startswith("ver_")


def test_a_failed_run_says_why(manage_client: APIClient, trained: Run) -> None:
    body = manage_client.get(f"{RUNS}/{trained.id}").json()
    assert (body["state"], body["error"], body["steps_done"]) == ("failed", "the trainer was killed", 1)
