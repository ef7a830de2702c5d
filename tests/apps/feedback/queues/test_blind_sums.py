"""What is hidden from a blind reviewer is in no sum that they see, and in no file that they make."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.models import Project, User
from apps.console.queries.graders import read_rewards_page
from apps.core.errors import InvalidInput
from apps.feedback.exports import JUDGED_SHAPES, SHAPES
from apps.feedback.graders.models import GraderVersion, Grading
from apps.feedback.graders.services import start_backfill
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_comparison, add_correction
from apps.feedback.preferences.sides import Side
from apps.feedback.queues.models import QueueItem
from apps.feedback.queues.results import read_agreement
from apps.feedback.services import add_label
from apps.trajectories.blindness import find_hidden
from apps.trajectories.datasets.export_job import run_export
from apps.trajectories.datasets.exporting import file_path, start_export
from apps.trajectories.datasets.models import Dataset, Export, Snapshot
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from apps.trajectories.datasets.shapes import MESSAGES
from apps.trajectories.models import Step, Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue, World, by
from tests.apps.feedback.queues.test_working import give, take
from tests.factories.feedback import LabelFactory
from tests.factories.registry import VersionFactory

pytestmark = pytest.mark.django_db


def read_sums(client: APIClient, ids: dict[str, str]) -> list[tuple[int, float]]:
    """Return how many rewards, and their mean, in what tells of the dataset's rewards."""
    totals = client.get(f"/api/v1/datasets/{ids['dataset']}").json()["totals"]
    assert sum(one["n"] for one in totals["histogram"]) == totals["n_rewarded"]
    taken = client.post(f"/api/v1/datasets/{ids['dataset']}/snapshots", {}, format="json").json()
    read = client.get(f"/api/v1/snapshots/{ids['snapshot']}").json()
    listed = client.get(f"/api/v1/datasets/{ids['dataset']}/snapshots").json()["items"]
    return [(one["n_rewarded"], round(one["mean_reward"], 3)) for one in (totals, taken, read, listed[1])]


def test_sums_leave_out_what_is_hidden(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User
) -> None:
    assert read_sums(client_of(mate), world.ids) == [(1, 1.0)] * 4
    assert read_sums(client_of(trainer), world.ids) == [(2, 0.315)] * 4
    address = f"/api/v1/snapshots/{world.ids['snapshot']}"
    assert client_of(mate).get(address).json()["checksum"] == ""
    assert client_of(trainer).get(address).json()["checksum"]
    only = create_dataset(project=world.review.queue.project, caller=by(trainer), name="only")
    add_ids_to_dataset(dataset=only, caller=by(trainer), ids=[world.ids["trajectory"]])
    totals = client_of(mate).get(f"/api/v1/datasets/{only.pk}").json()["totals"]
    assert (totals["n_trajectories"], totals["n_rewarded"], totals["mean_reward"]) == (1, 0, None)


@pytest.mark.parametrize("address", ["datasets/{dataset}", "snapshots/{snapshot}"])
def test_pages_sum_without_what_is_hidden(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User, address: str
) -> None:
    url = f"/p/shop/{address.format(**world.ids)}"
    mine, theirs = (browser_of(user).get(url).content.decode() for user in (mate, trainer))
    assert ("0.315" in mine or "0.32" in mine, "0.315" in theirs or "0.32" in theirs) == (False, True)


def test_a_difference_names_no_change_of_a_hidden_reward(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User
) -> None:
    trajectory = world.review.item.trajectory
    add_label(caller=by(trainer), trajectory=trajectory, value=0.8)
    dataset = Dataset.objects.get(pk=world.ids["dataset"])
    now = take_snapshot(dataset=dataset, caller=by(trainer))
    url = f"/api/v1/snapshots/{now.pk}/diff?base={world.ids['snapshot']}"
    mine, theirs = client_of(mate).get(url).json(), client_of(trainer).get(url).json()
    assert (mine["counts"]["changed"], theirs["counts"]["changed"]) == (0, 1)
    assert ([one["trajectory"] for one in mine["items"]], len(theirs["items"])) == ([], 1)


def test_a_snapshot_counts_no_judgement_of_what_is_hidden(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User
) -> None:
    other, hidden = (Trajectory.objects.get(pk=world.ids[name]) for name in ("other", "trajectory"))
    add_comparison(caller=by(trainer), chosen=Side(trajectory=other), rejected=Side(trajectory=hidden))
    add_correction(caller=by(trainer), step=other.steps.get(), message="another answer")
    now = take_snapshot(dataset=Dataset.objects.get(pk=world.ids["dataset"]), caller=by(trainer))
    mine, theirs = (browser_of(user).get(f"/p/shop/snapshots/{now.pk}").content.decode() for user in (mate, trainer))
    assert "<dd>1 preference (1 of them a correction)</dd>" in mine
    assert "<dd>3 preferences (2 of them corrections), 1 hint</dd>" in theirs


@pytest.mark.parametrize("address", ["agents", "agents/{agent}", "models"])
def test_means_of_agents_and_versions_are_over_what_one_sees(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User, project: Project, address: str
) -> None:
    Step.objects.update(version=VersionFactory.create(policy__project=project))
    Trajectory.objects.update(last_step_at=timezone.now())
    url = f"/p/shop/{address.format(agent=Trajectory.objects.all()[0].agent.slug)}"
    mine, theirs = (browser_of(user).get(url).content.decode() for user in (mate, trainer))
    assert ("+1.00" in mine, "+1.00" in theirs, "+0.32" in mine, "+0.32" in theirs) == (True, False, False, True)


def test_how_far_a_grader_agrees_is_said_without_what_is_hidden(
    world: World,
    client_of: Callable[[User], APIClient],
    browser_of: Callable[[User], Client],
    mate: User,
    trainer: User,
) -> None:
    version = GraderVersion.objects.get()
    for name in ("trajectory", "other"):
        row = Trajectory.objects.get(pk=world.ids[name])
        LabelFactory.create(trajectory=row, source="rule", grader=version)
    addresses = (f"graders/{version.grader_id}/versions/1/agreement", f"dry-runs/{world.ids['dry_run']}")
    mine, theirs = ([client_of(user).get(f"/api/v1/{one}").json() for one in addresses] for user in (mate, trainer))
    assert ((mine[0]["n"], mine[0]["n_same"]), (theirs[0]["n"], theirs[0]["n_same"])) == ((1, 1), (2, 1))
    assert (mine[1]["agreement"], theirs[1]["agreement"]["n"]) == (None, 1)
    page = f"/p/shop/graders/{version.grader_id}"
    tried = [b"Of 1 that people judged too" in browser_of(user).get(page).content for user in (mate, trainer)]
    assert tried == [False, True]


def test_what_graders_did_is_counted_without_what_is_hidden(
    world: World,
    client_of: Callable[[User], APIClient],
    browser_of: Callable[[User], Client],
    mate: User,
    trainer: User,
    project: Project,
) -> None:
    """A grader with a search for judgements tells by what it takes what was said."""
    version = GraderVersion.objects.get()
    row = Trajectory.objects.get(pk=world.ids["trajectory"])
    backfill = start_backfill(caller=by(trainer), version=version, query="reward<0")
    ended = {"ended_at": timezone.now(), "backfill": backfill}
    Grading.objects.create(version=version, trajectory=row, state="failed", error="its end was odd", **ended)
    counted = []
    for user in (mate, trainer):
        told = client_of(user).get(f"/api/v1/backfills/{backfill.pk}").json()["progress"]
        page = browser_of(user).get(f"/p/shop/graders/{version.grader_id}").content.decode()
        listed = read_rewards_page(project, hidden=find_hidden(by(user))).graders
        counted.append((told["n_failed"], "its end was odd" in page, [one.n_failed for one in listed]))
    assert counted == [(0, False, [0]), (1, True, [1])]


def test_how_far_reviewers_agree_is_said_without_what_one_still_reviews(
    make_queue: MakeQueue, add: Add, mate: User, second: User, trainer: User
) -> None:
    queue = make_queue(add(), n_reviews=3)
    give(queue, mate, 1)
    give(queue, second, -1)
    take(queue, trainer)
    agreements = [read_agreement(queue, hidden=find_hidden(by(user))) for user in (mate, trainer)]
    assert [fields[0].n_items for fields in agreements] == [1, 0]
    assert QueueItem.objects.get().n_done == 2


SOURCES = ("query", "dataset", "snapshot")


def start(world: World, user: User, source: str, *, shape: str = "messages") -> Export:
    """Start an export of all, which is the two trajectories of the world."""
    ids, settings = world.ids, {"shape": SHAPES[shape], "file_format": "jsonl"}
    given = {
        "query": {"query": ""},
        "dataset": {"dataset": Dataset.objects.get(pk=ids["dataset"])},
        "snapshot": {"snapshot": Snapshot.objects.get(pk=ids["snapshot"])},
    }
    return start_export(project=world.review.queue.project, caller=by(user), **settings, **given[source])  # type: ignore[arg-type]


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_leaves_out_what_is_hidden_from_who_makes_it_and_says_how_many(
    world: World, client_of: Callable[[User], APIClient], trainer: User, owner: User, source: str
) -> None:
    take(world.review.queue, trainer)
    exports = [start(world, user, source) for user in (trainer, owner)]
    for export in exports:
        run_export(export.pk, shapes=SHAPES)
    told = [client_of(trainer).get(f"/api/v1/exports/{export.pk}").json() for export in exports]
    assert [(one["state"], one["n_done"], one["n_hidden"], one["n_gone"]) for one in told] == [
        ("done", 2, 1, 0),
        ("done", 2, 0, 0),
    ]
    files = [file_path(Export.objects.get(pk=export.pk)).read_text() for export in exports]
    assert [world.ids["trajectory"] in text for text in files] == [False, True]
    assert all(world.ids["other"] in text for text in files)


def test_an_export_by_a_reward_does_not_even_count_what_is_hidden(
    world: World, project: Project, browser_of: Callable[[User], Client], trainer: User, owner: User
) -> None:
    take(world.review.queue, trainer)
    settings = {"project": project, "shape": MESSAGES, "file_format": "jsonl", "query": "reward<0"}
    with pytest.raises(InvalidInput, match="nothing to export"):
        start_export(caller=by(trainer), **settings)  # type: ignore[arg-type]
    assert start_export(caller=by(owner), **settings).n_total == 1  # type: ignore[arg-type]
    export = start(world, trainer, "query")
    run_export(export.pk, shapes=SHAPES)
    words = f"1 left out that {trainer.email} reviews blind"
    assert words in browser_of(owner).get("/p/shop/exports").content.decode()


@pytest.mark.parametrize("shape", [shape.name for shape in JUDGED_SHAPES])
@pytest.mark.parametrize("source", SOURCES)
def test_a_file_of_judgements_leaves_out_what_is_hidden_and_does_not_tell_that_there_was_one(
    world: World, add: Add, trainer: User, owner: User, source: str, shape: str
) -> None:
    take(world.review.queue, trainer)
    exports = [start(world, user, source, shape=shape) for user in (trainer, owner)]
    counted = []
    for export in exports:
        run_export(export.pk, shapes=SHAPES)
        export.refresh_from_db()
        counted.append((export.n_total, export.n_hidden, export.n_rows, export.n_left_out))
    assert counted == [(1, 1, 0, 0), (1, 0, 1, 0)]


def test_who_reviews_blind_cannot_tell_by_a_count_whether_it_was_judged(
    world: World, make_queue: MakeQueue, add: Add, trainer: User
) -> None:
    nobody_judged = add()
    take(make_queue(nobody_judged, name="second"), trainer)
    export = start(world, trainer, "query", shape="hints")
    run_export(export.pk, shapes=SHAPES)
    export.refresh_from_db()
    assert (export.n_total, export.n_hidden, export.n_rows) == (2, 1, 1)


def test_a_pair_with_a_hidden_side_is_in_no_list_and_no_file(
    world: World, add: Add, trainer: User, owner: User
) -> None:
    hidden, other = Trajectory.objects.get(pk=world.ids["trajectory"]), add()
    add_comparison(caller=by(owner), chosen=Side(trajectory=other), rejected=Side(trajectory=hidden))
    add_comparison(
        caller=by(owner), chosen=Side(step=other.steps.get()), rejected=Side(step=hidden.steps.get()), is_tie=False
    )
    take(world.review.queue, trainer)
    seen = Preference.objects.seen_by(by(trainer), hidden=find_hidden(by(trainer)))
    assert not seen.filter(kind="comparison").exists()
    counted = []
    for user in (trainer, owner):
        export = start(world, user, "query", shape="preference")
        run_export(export.pk, shapes=SHAPES)
        export.refresh_from_db()
        counted.append((export.n_total, export.n_hidden, export.n_rows, export.n_left_out))
    assert counted[0] == (1, 1, 0, 0)
    assert counted[1][:2] == (2, 0)
