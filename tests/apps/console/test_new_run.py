"""New run: what the form says is ready, what it refuses, and a launch."""

import json
import re
import struct
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, Role, User
from apps.core.ids import new_id
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.registry.models import Policy
from apps.training.models import Attempt, AttemptState, Metric, Run, RunState
from apps.trajectories.datasets.services import take_snapshot
from apps.trajectories.models import Trajectory
from tests.factories.accounts import MembershipFactory
from tests.factories.datasets import DatasetFactory, MemberFactory
from tests.factories.trajectories import TrajectoryFactory


def form(**settings: str) -> dict[str, str]:
    """What a browser sends."""
    return {"name": "warmer", "recipe.n_steps": "2", "recipe.trajectories_per_step": "2", **settings}


def test_a_trainer_launches_a_run(trainer_browser: Client, ready: list[Trajectory]) -> None:
    response = trainer_browser.post("/p/shop/runs/new", form())
    run = Run.objects.get()
    assert response["Location"] == f"/p/shop/runs/{run.id}"
    assert (run.name, run.n_steps, run.state) == ("warmer", 2, RunState.QUEUED)
    assert run.recipe["learning_rate"] == 5e-4


def test_the_form_tells_how_much_of_the_time_is_the_trainers_start(
    trainer_browser: Client, run: Run, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "num_key_value_heads": 1, "vocab_size": 32}))
    header = json.dumps({"a": {"shape": [10, 10]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    Policy.objects.update(base_model_dir=str(tmp_path))
    attempt = Attempt.objects.create(run=run, number=1, state=AttemptState.ENDED, host="here")
    values = {"tokens": 1000.0, "tokens_per_s": 100.0, "trajectories": 2, "seconds": 10.0}
    at = attempt.started_at + timedelta(seconds=50)
    Metric.objects.create(run=run, attempt=attempt, step=1, values=values, at=at)

    html = trainer_browser.get("/p/shop/runs/new", form()).content.decode()

    assert "60 s, 40 s of it the trainer's start" in unescape(html)


def test_sending_the_form_twice_makes_one_run(trainer_browser: Client, ready: list[Trajectory]) -> None:
    places = {trainer_browser.post("/p/shop/runs/new", form(idempotency_key="one"))["Location"] for _ in range(2)}
    assert len(places) == 1
    assert Run.objects.count() == 1


def test_the_form_says_what_is_ready_and_why_the_rest_is_not(
    trainer_browser: Client, ready: list[Trajectory], trajectory: Trajectory
) -> None:
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    assert '<span class="ready-count">2</span>' in html
    assert "without a reward" in html
    narrowed = trainer_browser.get("/p/shop/runs/new?selection.min_reward=0.5").content.decode()
    assert '<span class="ready-count">1</span>' in narrowed
    assert "min_reward" in narrowed.split("curl")[1]


def test_the_form_warns_of_what_a_launch_would_meet(trainer_browser: Client, ready: list[Trajectory]) -> None:
    def ask(**settings: str) -> str:
        return trainer_browser.get("/p/shop/runs/new", form(**settings)).content.decode()

    assert "a run would wait for 6 more, and fail without them after 10 min" in ask(
        **{"recipe.trajectories_per_step": "8"}
    )
    assert "Enough for 1 of 2 training steps" in ask()
    enough = ask(**{"recipe.n_steps": "1"})
    assert "Enough for" not in enough
    assert "notice" not in enough.split('id="readiness"')[1].split("</section>")[0]
    groups = ask(**{"recipe.estimator": "grpo", "recipe.group_size": "2"})
    assert "A launch would be refused: no group has 2 ready tries" in groups
    assert "nothing to tell them from" in ask(**{"recipe.algorithm": "unpaired", "selection.min_reward": "0.9"})
    assert "there is nothing to learn from" in ask(**{"recipe.algorithm": "preference"})


def size_of(html: str) -> tuple[str, str]:
    """The steps and the batch that stand in the form."""
    parts = [html.partition(f'id="f-recipe.{name}" value="')[2] for name in ("n_steps", "trajectories_per_step")]
    steps, batch = (part.partition('"')[0] for part in parts)
    return steps, batch


def test_the_form_opens_with_a_size_that_what_is_ready_fills(
    trainer_browser: Client, ready: list[Trajectory], add_trajectory: Callable[..., Trajectory]
) -> None:
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    assert size_of(html) == ("1", "2")
    assert "Too few" not in html
    assert '"n_steps": 1, "trajectories_per_step": 2' in html.replace("&quot;", '"')
    twice = trainer_browser.get("/p/shop/runs/new?recipe.algorithm=unpaired&recipe.epochs=3").content.decode()
    assert size_of(twice) == ("3", "2")
    said = trainer_browser.get("/p/shop/runs/new?recipe.n_steps=8&recipe.trajectories_per_step=48").content.decode()
    assert size_of(said) == ("8", "48")
    assert "Too few for the first step" in said
    assert '<a href="?">Take the size that fits</a>' in said
    for number in range(3):
        add_trajectory(reward=number / 2, group="one" if number < 2 else "")
    grouped = trainer_browser.get("/p/shop/runs/new?recipe.estimator=rloo&recipe.group_size=2").content.decode()
    assert size_of(grouped) == ("1", "2")


def test_a_size_that_nobody_typed_follows_the_choice(
    trainer_browser: Client, add_trajectory: Callable[..., Trajectory]
) -> None:
    add_trajectory(reward=1.0, step={"version": None})
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    assert size_of(html) == ("8", "48")
    assert 'name="taken_size" value="8x48"' in html
    sent = {"recipe.algorithm": "sft", "recipe.n_steps": "8", "recipe.trajectories_per_step": "48"}
    chosen = {"HX-Request": "true", "HX-Trigger-Name": "recipe.algorithm"}

    def ask(taken: str, headers: dict[str, str]) -> tuple[str, str]:
        answer = trainer_browser.get("/p/shop/runs/new", {**sent, "taken_size": taken}, headers=headers)
        return size_of(answer.content.decode())

    assert ask("8x48", chosen) == ("1", "1")
    assert ask("", chosen) == ("8", "48")
    assert ask("8x48", {"HX-Request": "true", "HX-Trigger-Name": "selection.agent"}) == ("8", "48")


def test_where_nothing_is_ready_the_size_is_the_usual_one(trainer_browser: Client, policy: Policy) -> None:
    assert size_of(trainer_browser.get("/p/shop/runs/new").content.decode()) == ("8", "48")


def test_the_address_of_the_form_says_only_what_was_chosen(trainer_browser: Client, ready: list[Trajectory]) -> None:
    untouched = {
        "recipe.max_grad_norm": "1",
        "recipe.learning_rate": "",
        "recipe.loss": "",
        "selection.channel": "train",
    }
    chosen = {"recipe.algorithm": "sft", "recipe.n_steps": "2", "recipe.trajectories_per_step": "2"}
    sent = {**untouched, **chosen, "selection.agent": "clerk", "selection.min_reward": "", "name": ""}
    answer = trainer_browser.get("/p/shop/runs/new", sent, headers={"HX-Request": "true"})
    place = answer["HX-Replace-Url"]
    assert place.startswith("/p/shop/runs/new?")
    told = dict(parse_qsl(place.partition("?")[2], keep_blank_values=True))
    assert told == {**chosen, "selection.agent": "clerk"}
    again = trainer_browser.get(place).content.decode()
    assert '<option value="sft" selected>' in again
    assert size_of(again) == ("2", "2")
    assert "HX-Replace-Url" not in trainer_browser.get("/p/shop/runs/new").headers


def test_where_nothing_is_ready_the_form_offers_what_would_learn_something(
    trainer_browser: Client, add_trajectory: Callable[..., Trajectory]
) -> None:
    add_trajectory(reward=1.0, step={"version": None})  # spoken by nobody whose answers are fresh
    html = trainer_browser.get("/p/shop/runs/new?selection.min_reward=0.5&recipe.estimator=rloo").content.decode()
    offered = re.search(r'could learn from <a href="([^"]+)">accepted and corrected answers \(SFT\)</a>', html)
    assert offered is not None
    assert offered[1].replace("&amp;", "&") == "?selection.min_reward=0.5&recipe.algorithm=sft"
    imitating = trainer_browser.get(f"/p/shop/runs/new{offered[1].replace('&amp;', '&')}").content.decode()
    assert "could learn from" not in imitating
    assert '<span class="ready-count">1</span>' in imitating


def test_a_snapshot_is_chosen_from_a_list(
    trainer_browser: Client, trainer: User, project: Project, trajectory: Trajectory
) -> None:
    dataset = DatasetFactory.create(project=project, name="Refunds")
    MemberFactory.create(dataset=dataset, trajectory=trajectory)
    first, second = (take_snapshot(dataset=dataset, caller=Caller(user=trainer)) for _ in range(2))
    html = trainer_browser.get(f"/p/shop/runs/new?selection.snapshot={first.id}").content.decode()
    offered = html.split('name="selection.snapshot"')[1].split("</select>")[0]
    assert offered.index(second.id) < offered.index(first.id)
    assert f'<option value="{first.id}" selected>Refunds #1: 1 trajectory, {first.created_at:%Y-%m-%d}' in offered
    unknown = new_id("snap")
    assert (
        f'value="{unknown}" selected'
        in trainer_browser.get(f"/p/shop/runs/new?selection.snapshot={unknown}").content.decode()
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe.n_steps": "0"}, "greater than or equal to 1"),
        ({"recipe.n_steps": "many"}, "valid integer"),
        ({"recipe.lora_rank": "3"}, "lora_rank must be one of"),
        ({"recipe.estimator": "rloo", "recipe.ema_decay": "0.5"}, "ema_decay has no effect"),
        ({"selection.min_reward": "7"}, "less than or equal to 1"),
        ({"recipe.learning_rate": "nan"}, "finite number"),
        ({"selection.agent": "nobody"}, "nothing is ready to train on"),
        ({"name": "x" * 101}, "at most 100 characters"),
    ],
)
def test_a_wrong_setting_is_said_on_the_form_and_nothing_is_lost(
    changes: dict[str, str], words: str, trainer_browser: Client, ready: list[Trajectory]
) -> None:
    response = trainer_browser.post("/p/shop/runs/new", form(**changes))
    html = response.content.decode()
    assert response.status_code == 400
    assert words in html
    assert 'name="recipe.trajectories_per_step" id="f-recipe.trajectories_per_step" value="2"' in html
    assert not Run.objects.exists()


def names_on(html: str) -> set[str]:
    return {part.partition('"')[0] for part in html.split(' name="recipe.')[1:]}


def test_the_form_shows_what_the_chosen_algorithm_uses_and_forgets_the_rest(
    trainer_browser: Client, ready: list[Trajectory]
) -> None:
    usual = names_on(trainer_browser.get("/p/shop/runs/new").content.decode())
    assert {"estimator", "ema_decay", "clip_low", "max_staleness"} < usual
    assert not {"good_above", "beta", "epochs"} & usual
    html = trainer_browser.get(
        "/p/shop/runs/new", {"recipe.algorithm": "preference", "recipe.loss": "ipo", "recipe.ema_decay": "0.5"}
    ).content.decode()
    assert {"min_gap", "beta", "epochs", "loss"} < names_on(html)
    assert not {"estimator", "ema_decay", "max_staleness", "good_above"} & names_on(html)
    offered = html.split('name="recipe.loss"')[1].split("</select>")[0]
    assert '<option value="">DPO</option>' in offered
    assert '<option value="ipo" selected>' in offered
    assert "ppo" not in offered
    assert "ema_decay" not in html.split("curl")[1]


def test_a_run_on_labels_is_launched_and_shown_with_its_settings(
    trainer_browser: Client, ready: list[Trajectory]
) -> None:
    settings = form(**{"recipe.algorithm": "unpaired", "recipe.good_above": "0.4", "recipe.beta": ""})
    place = trainer_browser.post("/p/shop/runs/new", settings)["Location"]
    run = Run.objects.get()
    assert (run.recipe["loss"], run.recipe["good_above"], run.recipe["beta"]) == ("kto", 0.4, 0.1)
    html = trainer_browser.get(place).content.decode()
    assert "good and bad answers (KTO and kin)" in html
    assert "<dt>Good is a reward above</dt><dd>0.4" in html
    assert "Staleness" not in html


def test_the_form_offers_the_ranks_that_engines_serve(
    trainer_browser: Client, ready: list[Trajectory], settings: Settings
) -> None:
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    offered = html.split('name="recipe.lora_rank"')[1].split("</select>")[0]
    assert f'value="{settings.CLAW.max_lora_rank}"' in offered
    assert 'value="512"' not in offered


def test_the_form_says_how_open_trajectories_become_ready(trainer_browser: Client, ready: list[Trajectory]) -> None:
    Trajectory.objects.update(state="open", completed_at=None)
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    assert "complete the open ones on their pages, many at once by “complete” in the list of trajectories" in html
    assert "and complete them" in html


def test_what_is_in_the_other_channel_is_told(trainer_browser: Client, ready: list[Trajectory]) -> None:
    """A snapshot of validation trajectories holds nothing for the channel that the form begins with."""
    Trajectory.objects.update(channel="val")
    html = trainer_browser.get("/p/shop/runs/new").content.decode()
    assert re.search(r"in the other channel</span>\s*<span class=\"num\">2<", html)
    assert "What is in the other channel counts once you choose it" in html
    refused = trainer_browser.post("/p/shop/runs/new", form())
    assert "2 in the other channel" in refused.content.decode()
    chosen = trainer_browser.get("/p/shop/runs/new?selection.channel=val").content.decode()
    assert '<span class="ready-count">2</span>' in chosen


def test_a_run_without_anything_to_learn_from_is_refused(trainer_browser: Client, trajectory: Trajectory) -> None:
    response = trainer_browser.post("/p/shop/runs/new", form())
    assert response.status_code == 400
    assert "1 without a reward" in response.content.decode()


def test_a_project_without_a_policy_says_so(trainer_browser: Client, project: Project, agent: Agent) -> None:
    assert "has no policy yet" in trainer_browser.get("/p/shop/runs/new").content.decode()


def test_what_somebody_reviews_blind_is_not_counted_as_ready_for_them(
    project: Project, ready: list[Trajectory], trainer: User, owner: User, browser_of: Callable[[User], Client]
) -> None:
    queue = create_queue(caller=Caller(user=owner), project=project, settings={"name": "blind"})
    add_trajectories(caller=Caller(user=owner), queue=queue, ids=[ready[0].pk])
    take_review(caller=Caller(user=trainer), queue=queue)
    for algorithm in ("policy_gradient", "sft", "unpaired", "preference"):
        for narrow in ("", "&selection.min_reward=0.9"):
            address = f"/p/shop/runs/new?recipe.algorithm={algorithm}{narrow}"
            mine, theirs = (browser_of(user).get(address).content.decode() for user in (trainer, owner))
            assert ("is not counted here" in mine, "is not counted here" in theirs) == (True, False)
            counts = [page.split('class="ready-count">')[1].split("<")[0] for page in (mine, theirs)]
            expected = {"sft": ["0", "1"], "preference": ["0", "0"]}.get(
                algorithm, ["0", "1"] if narrow else ["1", "2"]
            )
            assert counts == expected, address
    refused = browser_of(trainer).post("/p/shop/runs/new", form(**{"selection.min_reward": "0.9"}))
    assert "what you review blind does not count until you have said yours" in refused.content.decode()


def test_what_somebody_reviews_blind_in_another_project_is_no_word_here(
    other_project: Project, ready: list[Trajectory], trainer: User, owner: User, trainer_browser: Client
) -> None:
    for team, user in ((other_project.team, trainer), (other_project.team, owner)):
        MembershipFactory.create(team=team, user=user, role=Role.TRAINER)
    elsewhere = TrajectoryFactory.create(agent__project=other_project, state="complete", n_steps=1)
    queue = create_queue(caller=Caller(user=owner), project=other_project, settings={"name": "blind"})
    add_trajectories(caller=Caller(user=owner), queue=queue, ids=[elsewhere.pk])
    take_review(caller=Caller(user=trainer), queue=queue)
    assert "is not counted here" not in trainer_browser.get("/p/shop/runs/new").text
    refused = trainer_browser.post("/p/shop/runs/new", form(**{"selection.min_reward": "1.5"})).text
    assert "what you review blind" not in refused


def test_who_may_not_launch_sees_whom_to_ask(reviewer_browser: Client, owner_browser: Client, policy: Policy) -> None:
    html = reviewer_browser.get("/p/shop/runs/new").content.decode()
    assert "Ask owner@example.org" in html
    assert html.index("Ask owner@example.org") < html.index('id="run-form"')  # before a form is filled in for nothing
    assert "and not launch it" not in owner_browser.get("/p/shop/runs/new").content.decode()


def test_a_run_in_the_way_is_named_and_nothing_can_be_launched_beside_it(
    trainer_browser: Client, ready: list[Trajectory], run: Run
) -> None:
    html = trainer_browser.get("/p/shop/runs/new").text
    assert f'<a href="/p/shop/runs/{run.pk}">Go to that run</a>' in html
    assert re.search(r"<button[^>]*disabled[^>]*>Launch run</button>", html)
    Run.objects.filter(pk=run.pk).update(state=RunState.CANCELLED)
    html = trainer_browser.get("/p/shop/runs/new").text
    assert "Go to that run" not in html
    assert not re.search(r"<button[^>]* disabled[^>]*>Launch run</button>", html)


def test_what_would_be_refused_cannot_be_launched_and_too_few_is_told_beside_it(
    trainer_browser: Client, ready: list[Trajectory], run: Run
) -> None:
    given = form(**{"recipe.trajectories_per_step": "48", "selection.min_reward": "0.9"})
    html = trainer_browser.get("/p/shop/runs/new", given).text
    assert "data-refused" in html
    assert "Too few for the first step" in html
    Run.objects.filter(pk=run.pk).update(state=RunState.CANCELLED)
    html = trainer_browser.get("/p/shop/runs/new", given).text  # all that is left is worth the same
    assert re.search(r"<button[^>]* disabled>Launch run</button>", html)
    assert re.search(r'id="launch-why">A launch would be refused now', html)
