"""Changes to many rows from the list: started, followed, taken back, all of it without JavaScript."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.queues.services import create_queue
from apps.trajectories.bulk.models import BulkJob, TrajectoryTag
from apps.trajectories.bulk.running import run_job
from apps.trajectories.datasets.services import create_dataset
from apps.trajectories.models import Trajectory

AddTrajectory = Callable[..., Trajectory]


def run_last() -> BulkJob:
    job = BulkJob.objects.latest("pk")
    run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    return job


def test_chosen_rows_are_rewarded_and_the_job_tells(reviewer_browser: Client, add_trajectory: AddTrajectory) -> None:
    rows = [add_trajectory() for _ in range(3)]
    form = {"action": "reward", "scope": "chosen", "id": [rows[0].pk, rows[1].pk], "value": "0,5", "tag": ""}
    started = reviewer_browser.post("/p/shop/trajectories", form)
    job = run_last()
    assert (started.status_code, started["Location"]) == (302, f"/p/shop/jobs/{job.pk}")  # from the bare list
    html = reviewer_browser.get(started["Location"]).content.decode()
    assert "<strong>2</strong> of 2 looked at" in html
    assert "Undo all of it" in html
    assert [row.reward for row in Trajectory.objects.order_by("pk")] == [0.5, 0.5, None]
    assert "The job has begun." in html
    assert "<h1>Reward 2 chosen trajectories with 0.5</h1>" in html
    assert "Reward 2 chosen trajectories with 0.5" in reviewer_browser.get("/p/shop/jobs").content.decode()


def test_a_job_leads_back_to_the_search_it_was_begun_from(reviewer_browser: Client, trajectory: Trajectory) -> None:
    back = '<a class="button" href="/p/shop/trajectories?q=reward%3Anone&amp;agent=clerk">Back to the list</a>'
    form = {"action": "exclude", "scope": "chosen", "id": [trajectory.pk]}
    started = reviewer_browser.post("/p/shop/trajectories?q=reward:none&agent=clerk", form)
    html = reviewer_browser.get(started["Location"]).content.decode()
    assert "<h1>Keep 1 chosen trajectory out of training</h1>" in html
    assert back in html
    assert f'The <a href="/p/shop/trajectories?q=id%3A{trajectory.pk}">chosen row</a>.' in html
    undo = re.search(r'action="([^"]*/undo[^"]*)"', html)
    assert undo is not None
    undone = reviewer_browser.post(undo[1].replace("&amp;", "&"))
    assert back in reviewer_browser.get(undone["Location"]).content.decode()


def test_a_job_begun_elsewhere_leads_to_its_own_search(reviewer_browser: Client, trajectory: Trajectory) -> None:
    reviewer_browser.post("/p/shop/trajectories?q=reward:none", {"action": "exclude", "scope": "all"})
    html = reviewer_browser.get(f"/p/shop/jobs/{run_last().pk}").content.decode()
    assert '<a class="button" href="/p/shop/trajectories?q=reward%3Anone">Back to the list</a>' in html
    assert trajectory.title in reviewer_browser.get("/p/shop/trajectories?q=reward:none").content.decode()


def test_a_job_calls_its_dataset_and_its_queue_by_name(
    reviewer_browser: Client, project: Project, owner: User, trajectory: Trajectory
) -> None:
    caller = Caller(user=owner)
    dataset = create_dataset(project=project, caller=caller, name="Late {refunds}")
    queue = create_queue(caller=caller, project=project, settings={"name": "Tone"})
    for action, found in (("dataset", dataset), ("queue", queue)):
        form = {"action": action, "scope": "chosen", "id": [trajectory.pk], action: found.pk}
        assert reviewer_browser.post("/p/shop/trajectories", form).status_code == 302
    html = reviewer_browser.get("/p/shop/jobs").content.decode()
    assert "Add 1 chosen trajectory to the dataset “Late {refunds}”" in html
    assert "Add 1 chosen trajectory to the review queue “Tone”" in html
    dataset_id = dataset.pk
    dataset.delete()
    assert f"to the dataset “{dataset_id}”" in reviewer_browser.get("/p/shop/jobs").content.decode()


def test_all_that_a_search_finds_is_tagged_and_taken_back(
    reviewer_browser: Client, add_trajectory: AddTrajectory
) -> None:
    rows = [add_trajectory(reward=value) for value in (0.1, 0.9)]
    html = reviewer_browser.get("/p/shop/trajectories?q=reward<0.3").content.decode()
    assert "Do it to all 1 found" in html
    form = {"action": "tag", "scope": "all", "tag": "low"}
    reviewer_browser.post("/p/shop/trajectories?q=reward<0.3", form)
    job = run_last()
    assert [tag.name for row in rows for tag in row.tags.all()] == ["low"]
    reviewer_browser.post(f"/p/shop/jobs/{job.pk}/undo")
    assert run_last().state == "undone"
    undone = reviewer_browser.get(f"/p/shop/jobs/{job.pk}").text
    assert ("<strong>1</strong> taken back" in undone, "took " in undone) == (
        True,
        False,
    )  # what lay between is no work
    assert not rows[0].tags.exists()


def test_a_tag_that_has_a_comma_can_still_be_taken_off(reviewer_browser: Client, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory()
    TrajectoryTag.objects.create(trajectory=row, name="a, b")
    reviewer_browser.post("/p/shop/trajectories", {"action": "untag", "scope": "all", "tag": "a, b"})
    assert run_last().state == "done"
    assert not row.tags.exists()


def test_a_job_tells_how_many_rows_it_changed(reviewer_browser: Client, add_trajectory: AddTrajectory) -> None:
    rows = [add_trajectory() for _ in range(3)]
    TrajectoryTag.objects.create(trajectory=rows[0], name="low")
    form = {"action": "tag", "scope": "all", "tag": "low"}
    reviewer_browser.post("/p/shop/trajectories", form)
    job = run_last()
    assert (job.n_done, job.n_changed, job.n_as_before) == (3, 2, 1)
    html = reviewer_browser.get(f"/p/shop/jobs/{job.pk}").content.decode()
    assert "<span><strong>2</strong> tagged, 1 was so already</span>" in html
    BulkJob.objects.update(n_changed=None)  # a job from before they were counted
    assert "tagged" not in reviewer_browser.get(f"/p/shop/jobs/{job.pk}").content.decode()
    assert reviewer_browser.get("/p/shop/jobs").status_code == 200


REFUSED = [
    ({"action": "reward"}, "value", "A reward is a number from −1 to 1."),
    ({"action": "reward", "value": "much"}, "value", "A reward is a number from −1 to 1."),
    ({"action": "reward", "value": "3"}, "value", "A reward&#x27;s value is a number from -1 to 1."),
    ({"action": "tag"}, "tag", "A tag has 1 to 40 characters."),
    ({"action": "untag", "tag": " "}, "tag", "A tag has 1 to 40 characters."),
    ({"action": "tag", "tag": "a, b"}, "tag", "A tag has no comma: give several one after the other."),
    ({"action": "channel", "channel": "both"}, "channel", "Channel is one of train, val."),
    ({"action": "dataset", "dataset": ""}, "dataset", "Say which dataset"),
    ({"action": "dataset", "dataset": "dset_00000000000000000000000000"}, "dataset", "This project has no dataset"),
    ({"action": "queue", "queue": ""}, "queue", "Say which review queue"),
    ({"action": "fly"}, "action", "There is no action"),
]


@pytest.mark.parametrize(("form", "field", "words"), REFUSED)
@pytest.mark.parametrize("scope", ["all", "chosen"])
def test_what_cannot_be_started_says_why_beside_its_field_and_keeps_choice_and_search(
    reviewer_browser: Client, add_trajectory: AddTrajectory, scope: str, form: dict[str, str], field: str, words: str
) -> None:
    rows = [add_trajectory(title="parcel") for _ in range(2)]
    add_trajectory(title="refund", reward=1.0)
    address = "/p/shop/trajectories?q=reward:none&agent=clerk"
    response = reviewer_browser.post(address, {**form, "scope": scope, "id": rows[0].pk})
    html = response.content.decode()
    assert response.status_code in {400, 404}
    assert not BulkJob.objects.exists()
    assert find_told(html) == (field, words)
    assert 'value="reward:none agent:clerk"' in html
    assert '<option value="clerk" selected>' in html
    assert ">refund</a>" not in html
    assert [row.pk for row in rows if f'value="{row.pk}" form="bulk" checked' in html] == [rows[0].pk]
    assert re.search(f'<option value="{form["action"]}"[^>]* selected>', html) or field == "action"


def find_told(html: str) -> tuple[str, str]:
    """Return which field of the bar is marked, and the words of REFUSED that its message begins with."""
    marked = re.findall(r'name="(\w+)" id="bulk-[^>]* aria-invalid="true" aria-describedby="bulk-fault"', html)
    told = re.findall(r'<span class="error" role="alert" id="bulk-fault">([^<]*)</span>', html)
    return marked[0], next(words for _, _, words in REFUSED if told[0].startswith(words))


def test_a_bar_without_a_choice_says_so(trainer_browser: Client, trajectory: Trajectory) -> None:
    for form in ({"action": "exclude", "scope": "chosen"}, {"export": "chosen"}):
        response = trainer_browser.post("/p/shop/trajectories", form)
        assert response.status_code == 400
        assert "Choose at least one row" in response.content.decode()
        assert trajectory.title in response.content.decode()


def test_a_wrong_search_starts_nothing(reviewer_browser: Client, trajectory: Trajectory) -> None:
    response = reviewer_browser.post("/p/shop/trajectories?q=agnt:x", {"action": "exclude", "scope": "all"})
    assert response.status_code == 400
    assert "there is no field" in response.content.decode()
    assert not BulkJob.objects.exists()


def test_failures_are_listed_on_the_page(reviewer_browser: Client, trajectory: Trajectory) -> None:
    missing = new_id("traj")
    reviewer_browser.post("/p/shop/trajectories", {"action": "exclude", "id": [trajectory.pk, missing]})
    html = reviewer_browser.get(f"/p/shop/jobs/{run_last().pk}").content.decode()
    assert "1 could not be changed" in html
    assert missing in html
    assert "no such trajectory" in html


def test_deletion_is_for_trainers(reviewer_browser: Client, trainer_browser: Client, trajectory: Trajectory) -> None:
    assert 'value="delete"' not in reviewer_browser.get("/p/shop/trajectories").content.decode()
    assert 'value="delete"' in trainer_browser.get("/p/shop/trajectories").content.decode()
    form = {"action": "delete", "id": [trajectory.pk]}
    assert reviewer_browser.post("/p/shop/trajectories", form).status_code == 403
    trainer_browser.post("/p/shop/trajectories", form)
    job = run_last()
    assert trainer_browser.get(f"/p/shop/trajectories/{trajectory.pk}").status_code == 404
    refused = reviewer_browser.post(f"/p/shop/jobs/{job.pk}/undo")
    assert refused.status_code == 403
    assert "You are reviewer here. Ask" in reviewer_browser.get(f"/p/shop/jobs/{job.pk}").content.decode()


def test_viewers_see_no_boxes(viewer_browser: Client, trajectory: Trajectory) -> None:
    html = viewer_browser.get("/p/shop/trajectories").content.decode()
    assert 'name="id"' not in html
    assert viewer_browser.post("/p/shop/trajectories", {"action": "exclude", "id": [trajectory.pk]}).status_code == 403


def test_another_projects_job_is_missing(owner_browser: Client, other_project: Project, agent: Agent) -> None:
    job = BulkJob.objects.create(project=other_project, action="exclude")
    assert owner_browser.get(f"/p/shop/jobs/{job.pk}").status_code == 404
    assert owner_browser.post(f"/p/shop/jobs/{job.pk}/undo").status_code == 404
    assert owner_browser.get("/p/shop/jobs/%00").status_code == 404
