"""What people and judges said, as rows of files: by the names that trainers know, only what stands, and frozen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.errors import InvalidInput
from apps.feedback.exports import JUDGED_SHAPES, SHAPES, count_frozen, find_shape
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_comparison, add_correction, add_ranking, take_back_preference
from apps.feedback.preferences.sides import Side
from apps.feedback.rescoring import change_schema
from apps.feedback.services import Answer, Author, add_labels, take_back_label, write_answers
from apps.trajectories.blindness import NOTHING
from apps.trajectories.datasets import export_job, exporting
from apps.trajectories.datasets.models import Dataset, Export, SnapshotEntry
from apps.trajectories.datasets.queries import count_differences
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import store_tools
from tests.factories.registry import VersionFactory
from tests.factories.trajectories import TOOL, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

ASKED = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> Path:
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    return tmp_path


@pytest.fixture
def caller(owner: User) -> Caller:
    return Caller(user=owner)


@pytest.fixture
def add(agent: Agent) -> Callable[..., Step]:
    """Return a function that adds a complete trajectory of one step, and returns the step."""

    def add(**step: Any) -> Step:
        row = TrajectoryFactory.create(
            agent=agent, state="complete", completed_at=timezone.now(), n_steps=1, metadata={"task": 3}
        )
        return StepFactory.create(trajectory=row, index=0, **{"messages": ASKED, **step})

    return add


@pytest.fixture
def step(add: Callable[..., Step], project: Project) -> Step:
    store_tools({"d": json.dumps([TOOL])}, project_id=project.pk)
    return add(tools_digest="d", version=VersionFactory.create(policy__project=project))


@pytest.fixture
def dataset(project: Project, caller: Caller) -> Dataset:
    return create_dataset(project=project, caller=caller, name="Refunds")


def start(caller: Caller, project: Project, shape: str, *, file_format: str = "jsonl", **source: Any) -> Export:
    return exporting.start_export(
        project=project, caller=caller, shape=find_shape(shape), file_format=file_format, **(source or {"query": ""})
    )


def run(export: Export, **more: Any) -> Path:
    export_job.run_export(export.pk, shapes=SHAPES, **more)
    export.refresh_from_db()
    assert export.state == "done", export.error
    return exporting.file_path(export)


def fetch(caller: Caller, project: Project, shape: str, **source: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(start(caller, project, shape, **source)).read_bytes().splitlines()]


def hint(caller: Caller, step: Step, words: str, value: float = -1) -> Label:
    answers = [Answer(field="reward", value=value, step=step), Answer(field="hint", text=words, step=step)]
    return add_labels(caller=caller, trajectory=step.trajectory, answers=answers)[1]


class TestPreference:
    def test_a_correction_is_a_pair_with_its_prompt(self, step: Step, caller: Caller, project: Project) -> None:
        row = add_correction(caller=caller, step=step, message="hello there", text="kinder")
        (told,) = fetch(caller, project, "preference")
        assert (told["prompt"], told["tools"]) == (ASKED, [TOOL])
        assert told["chosen"] == [{"role": "assistant", "content": "hello there"}]
        assert told["rejected"] == [{"role": "assistant", "content": "hi"}]
        assert (told["format"], told["id"], told["kind"]) == ("claw.preference.v1", row.pk, "correction")
        assert (told["trajectory"], told["step"], told["index"]) == (step.trajectory_id, step.pk, 0)
        assert (told["source"], told["text"], told["agent"]) == ("human", "kinder", "clerk")
        assert (told["chosen_version"], told["rejected_version"]) == (None, step.version_id)
        assert (told["trajectory_metadata"], told["channel"], told["is_excluded"]) == ({"task": 3}, "train", False)
        assert "owner@" not in json.dumps(told)

    def test_answers_of_two_steps_are_compared(
        self, step: Step, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        other = add(text="good day")
        add_comparison(caller=caller, chosen=Side(step=other), rejected=Side(step=step))
        (told,) = fetch(caller, project, "preference")
        assert (told["trajectory"], told["step"]) == (other.trajectory_id, other.pk)
        assert [told[side][0]["content"] for side in ("chosen", "rejected")] == ["good day", "hi"]
        assert told["rejected_step"] == step.pk

    def test_trajectories_are_compared_from_where_they_differ(
        self, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        good, bad = add(text="what is wrong?"), add(text="go away")
        more = [{"role": "assistant", "content": "what is wrong?"}, {"role": "user", "content": "all"}]
        last = StepFactory.create(trajectory=good.trajectory, index=1, messages=[*ASKED, *more], text="oh no")
        StepFactory.create(trajectory=good.trajectory, index=2, messages=ASKED, text="a title", side_call="title")
        add_comparison(caller=caller, chosen=Side(trajectory=good.trajectory), rejected=Side(trajectory=bad.trajectory))
        (told,) = fetch(caller, project, "preference")
        assert told["prompt"] == ASKED
        assert told["chosen"] == [*more, {"role": "assistant", "content": "oh no"}]
        assert told["rejected"] == [{"role": "assistant", "content": "go away"}]
        assert (told["step"], told["rejected_trajectory"]) == (None, bad.trajectory_id)
        assert last.trajectory_id == told["trajectory"]

    def test_a_pair_without_a_common_prompt_or_common_tools_is_counted(
        self, step: Step, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        strange = add(messages=[{"role": "user", "content": "other"}])
        bare = add(text="bare")
        whole = Side(trajectory=step.trajectory)
        for other in (strange, bare):
            add_comparison(caller=caller, chosen=whole, rejected=Side(trajectory=other.trajectory))
        export = start(caller, project, "preference")
        assert run(export).read_bytes() == b""
        assert (export.n_total, export.n_rows, export.n_left_out) == (1, 0, 2)

    def test_answers_that_both_gave_belong_to_the_prompt(
        self, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        said = {"role": "assistant", "content": "yes?"}
        asked = [*ASKED, said, {"role": "user", "content": "help"}]
        rows = [add(messages=asked, text=text).trajectory for text in ("sure", "no")]
        add_comparison(caller=caller, chosen=Side(trajectory=rows[0]), rejected=Side(trajectory=rows[1]))
        (told,) = fetch(caller, project, "preference")
        assert (told["prompt"], told["chosen"]) == (asked, [{"role": "assistant", "content": "sure"}])

    def test_where_two_users_went_on_otherwise_the_answer_before_it_opens_both(
        self, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        said = {"role": "assistant", "content": "yes?"}
        rows = [
            add(messages=[*ASKED, said, {"role": "user", "content": words}], text="ok").trajectory
            for words in ("help", "no matter")
        ]
        add_comparison(caller=caller, chosen=Side(trajectory=rows[0]), rejected=Side(trajectory=rows[1]))
        (told,) = fetch(caller, project, "preference")
        assert (told["prompt"], told["chosen"][0], told["rejected"][1]["content"]) == (ASKED, said, "no matter")

    def test_a_ranking_is_its_pairs(self, add: Callable[..., Step], caller: Caller, project: Project) -> None:
        change_schema(caller=caller, project=project, definition={"fields": [{"name": "order", "kind": "ranking"}]})
        rows = [add(text=text).trajectory for text in ("a", "b", "c")]
        ranking = add_ranking(caller=caller, field="order", places=[[row] for row in rows])
        told = fetch(caller, project, "preference")
        pairs = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in told]
        assert sorted(pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
        assert {(row["kind"], row["field"], row["ranking"]) for row in told} == {("ranking", "order", ranking.id)}

    def test_ties_are_none(self, step: Step, add: Callable[..., Step], caller: Caller, project: Project) -> None:
        add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=add(text="b")), is_tie=True)
        with pytest.raises(InvalidInput, match="no preference to export"):
            start(caller, project, "preference")


class TestSft:
    def test_a_row_is_a_prompt_and_what_should_have_been_said(
        self, step: Step, add: Callable[..., Step], caller: Caller, project: Project
    ) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        add_correction(caller=caller, step=step, message={"content": None, "tool_calls": [call]})
        add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=add(text="b")))
        (told,) = fetch(caller, project, "sft")
        assert (told["format"], told["prompt"], told["tools"]) == ("claw.sft.v1", ASKED, [TOOL])
        assert told["completion"] == [{"role": "assistant", "content": None, "tool_calls": [call]}]


class TestHints:
    def test_a_row_is_an_answer_with_its_reward_and_the_hint(
        self, step: Step, caller: Caller, project: Project
    ) -> None:
        label = hint(caller, step, "greet first")
        (told,) = fetch(caller, project, "hints")
        assert (told["format"], told["id"], told["hint"]) == ("claw.hints.v1", label.pk, "greet first")
        assert (told["prompt"], told["completion"]) == (ASKED, [{"role": "assistant", "content": "hi"}])
        assert (told["reward"], told["version"], told["source"]) == (-1, step.version_id, "human")

    def test_its_rewards_are_what_all_that_was_said_adds_up_to(
        self, step: Step, caller: Caller, project: Project
    ) -> None:
        draft = VersionDraft(settings={"pattern": "x"})
        version, _ = create_grader(caller=caller, project=project, name="x", kind="regex", draft=draft)
        author = Author(source=Source.NEXT_STATE, grader=version)
        said = [Answer(field="reward", value=-1, step=step), Answer(field="hint", text="look it up", step=step)]
        write_answers(author=author, trajectory=step.trajectory, answers=said)
        (told,) = fetch(caller, project, "hints")
        assert (told["reward"], told["trajectory_reward"]) == (-1, -1)
        over = [Answer(field="reward", value=0.5, step=step), Answer(field="reward", value=0.25)]
        add_labels(caller=caller, trajectory=step.trajectory, answers=over)  # a person's word goes before a judge's
        (told,) = fetch(caller, project, "hints")
        assert (told["grader"], told["reward"], told["trajectory_reward"]) == ("x@v1", 0.5, 0.25)

    def test_a_graders_name_stands_beside_its_hint(self, step: Step, caller: Caller, project: Project) -> None:
        draft = VersionDraft(settings={"pattern": "x"})
        version, _ = create_grader(caller=caller, project=project, name="x", kind="regex", draft=draft)
        write_answers(
            author=Author(source=Source.NEXT_STATE, grader=version),
            trajectory=step.trajectory,
            answers=[Answer(field="hint", text="look it up", step=step)],
        )
        told = fetch(caller, project, "hints")
        assert [(row["source"], row["grader"], row["reward"]) for row in told] == [("next_state", "x@v1", None)]


@pytest.fixture
def judged(step: Step, caller: Caller) -> tuple[Preference, Label]:
    """A correction and a hint of the step."""
    return add_correction(caller=caller, step=step, message="first"), hint(caller, step, "first")


Judged = tuple[Preference, Label]
NAMES = [shape.name for shape in JUDGED_SHAPES]


def read_words(row: dict[str, Any]) -> str:
    """Return what somebody said."""
    return str(row["hint"] if "hint" in row else (row.get("chosen") or row["completion"])[0]["content"])


@pytest.mark.parametrize("shape", NAMES)
class TestStanding:
    def test_the_last_word_counts(
        self, judged: Judged, step: Step, caller: Caller, project: Project, shape: str
    ) -> None:
        add_correction(caller=caller, step=step, message="second")
        hint(caller, step, "second")
        stand = ["first", "second"] if shape == "hints" else ["second"]  # hints stand side by side
        assert [read_words(row) for row in fetch(caller, project, shape)] == stand

    def test_what_was_taken_back_is_not_in_it(
        self, judged: Judged, caller: Caller, project: Project, shape: str
    ) -> None:
        take_back_preference(caller=caller, preference=judged[0])
        take_back_label(caller=caller, label=judged[1])
        with pytest.raises(InvalidInput, match="to export"):
            start(caller, project, shape)

    def test_of_many_only_those_with_something_of_it_are_read(
        self, judged: Judged, add: Callable[..., Step], caller: Caller, project: Project, shape: str
    ) -> None:
        for _ in range(3):
            add()
        export = start(caller, project, shape)
        run(export)
        assert (export.n_total, export.n_done, export.n_rows) == (1, 1, 1)

    def test_parquet_says_the_same(self, judged: Judged, caller: Caller, project: Project, shape: str) -> None:
        (told,) = fetch(caller, project, shape)
        (row,) = pq.read_table(run(start(caller, project, shape, file_format="parquet"))).to_pylist()
        assert set(row) == set(told)
        packed = {name for name, value in told.items() if isinstance(value, (list, dict))}
        assert {name: json.loads(row[name]) if name in packed else row[name] for name in row} == told

    def test_a_killed_worker_is_followed_by_one_that_goes_on(
        self, add: Callable[..., Step], caller: Caller, project: Project, shape: str
    ) -> None:
        steps = [add() for _ in range(3)]
        for step in steps:
            add_correction(caller=caller, step=step, message="first")
            hint(caller, step, "first")
        export = start(caller, project, shape)
        export_job.run_export(export.pk, shapes=SHAPES, part=1, slice_s=-1)
        export.refresh_from_db()
        assert (export.state, export.n_done) == ("queued", 1)
        rows = [json.loads(line) for line in run(export, part=1).read_bytes().splitlines()]
        assert [row["step"] for row in rows] == [step.pk for step in steps]


@pytest.mark.parametrize("shape", NAMES)
class TestFrozen:
    def test_a_snapshot_says_what_was_said_then(
        self, judged: Judged, step: Step, caller: Caller, project: Project, dataset: Dataset, shape: str
    ) -> None:
        add_ids_to_dataset(dataset=dataset, caller=caller, ids=[step.trajectory_id])
        snapshot = take_snapshot(dataset=dataset, caller=caller)
        first = run(start(caller, project, shape, snapshot=snapshot)).read_bytes()
        assert json.loads(first) == fetch(caller, project, shape, dataset=dataset)[0]
        add_correction(caller=caller, step=step, message="second")
        hint(caller, step, "second", value=1)
        assert run(start(caller, project, shape, snapshot=snapshot)).read_bytes() == first
        assert read_words(fetch(caller, project, shape, dataset=dataset)[-1]) == "second"
        take_back_preference(caller=caller, preference=Preference.objects.standing().get())
        take_back_label(caller=caller, label=judged[1])
        assert run(start(caller, project, shape, snapshot=snapshot)).read_bytes() == first

    def test_what_was_said_later_is_not_in_it(
        self, step: Step, caller: Caller, project: Project, dataset: Dataset, shape: str
    ) -> None:
        add_ids_to_dataset(dataset=dataset, caller=caller, ids=[step.trajectory_id])
        before = take_snapshot(dataset=dataset, caller=caller)
        add_correction(caller=caller, step=step, message="first")
        add_labels(caller=caller, trajectory=step.trajectory, answers=[Answer(field="hint", text="first", step=step)])
        with pytest.raises(InvalidInput, match="to export"):
            start(caller, project, shape, snapshot=before)
        now = take_snapshot(dataset=dataset, caller=caller)
        assert before.checksum != now.checksum
        assert count_differences(before, now)["changed"] == 1

    def test_an_older_snapshot_says_that_it_froze_none(
        self, judged: Judged, step: Step, caller: Caller, project: Project, dataset: Dataset, shape: str
    ) -> None:
        add_ids_to_dataset(dataset=dataset, caller=caller, ids=[step.trajectory_id])
        snapshot = take_snapshot(dataset=dataset, caller=caller)
        empty = {"n_steps": 1, "end_index": 1, "n_prompt_tokens": 0, "n_completion_tokens": 0, "content": ""}
        old = snapshot.__class__.objects.create(dataset=dataset, number=9)
        SnapshotEntry.objects.create(snapshot=old, trajectory_id=step.trajectory_id, **empty)
        with pytest.raises(InvalidInput, match="take a new one"):
            start(caller, project, shape, snapshot=old)
        assert count_frozen(old, hidden=NOTHING) is None
        assert run(start(caller, project, "messages", snapshot=old)).read_bytes()


def test_a_pair_of_trajectories_is_frozen_where_both_ended(
    add: Callable[..., Step], caller: Caller, project: Project, dataset: Dataset
) -> None:
    good, bad = add(text="good"), add(text="bad")
    add_comparison(caller=caller, chosen=Side(trajectory=good.trajectory), rejected=Side(trajectory=bad.trajectory))
    add_ids_to_dataset(dataset=dataset, caller=caller, ids=[good.trajectory_id])
    snapshot = take_snapshot(dataset=dataset, caller=caller)
    first = fetch(caller, project, "preference", snapshot=snapshot)
    for step in (good, bad):
        asked = [*ASKED, {"role": "assistant", "content": step.trajectory_id}, {"role": "user", "content": "more"}]
        StepFactory.create(trajectory=step.trajectory, index=1, messages=asked, text="later")
    assert fetch(caller, project, "preference", snapshot=snapshot) == first
    assert fetch(caller, project, "preference", dataset=dataset)[0]["rejected"][-1]["content"] == "later"


def test_a_pair_whose_other_side_was_deleted_goes_nowhere(
    add: Callable[..., Step], caller: Caller, project: Project, dataset: Dataset
) -> None:
    good, bad = add(text="good"), add(text="bad")
    add_comparison(caller=caller, chosen=Side(trajectory=good.trajectory), rejected=Side(trajectory=bad.trajectory))
    add_comparison(caller=caller, chosen=Side(step=good), rejected=Side(step=bad))
    add_ids_to_dataset(dataset=dataset, caller=caller, ids=[good.trajectory_id])
    snapshot = take_snapshot(dataset=dataset, caller=caller)
    Trajectory.objects.filter(pk=bad.trajectory_id).update(deleted_at=timezone.now())
    with pytest.raises(InvalidInput, match="no preference"):
        start(caller, project, "preference", dataset=dataset)
    export = start(caller, project, "preference", snapshot=snapshot)
    assert run(export).read_bytes() == b""
    assert (export.n_rows, export.n_left_out) == (0, 2)


def test_the_desk_of_an_engineer_starts_one_over_rest(
    judged: Judged, project: Project, trainer: User, mate: User, client_of: Callable[[User], APIClient]
) -> None:
    address = "/api/v1/exports?project=shop"
    body = {"query": "", "shape": "preference"}
    assert client_of(mate).post(address, body, format="json").status_code == 403
    made = client_of(trainer).post(address, body, format="json").json()
    assert (made["shape"], made["n_total"], made["state"]) == ("preference", 1, "queued")
    refused = client_of(trainer).post(address, {**body, "shape": "pairs"}, format="json")
    assert (refused.status_code, "pairs" in refused.content.decode()) == (400, True)


def test_the_console_starts_one_and_says_what_is_missing(
    judged: Judged, project: Project, trainer: User, browser_of: Callable[[User], Client]
) -> None:
    browser = browser_of(trainer)
    page = browser.get("/p/shop/exports").content.decode()
    assert all(f'<option value="{name}"' in page for name in SHAPES)
    sent = {"shape": "sft", "format": "jsonl", "query": ""}
    assert browser.post("/p/shop/exports", sent).status_code == 302
    listed = browser.get("/p/shop/exports").content.decode()
    assert "a correction: prompt, completion (SFT) \N{MIDDLE DOT} JSON lines" in listed
    take_back_preference(caller=Caller(user=trainer), preference=judged[0])
    refused = browser.post("/p/shop/exports", sent)
    assert refused.status_code == 400
    assert "o answer in it was corrected" in refused.content.decode()
    assert '<option value="sft" selected>' in refused.content.decode()


def test_a_snapshot_freezes_what_the_querysets_say_stands(
    step: Step, add: Callable[..., Step], caller: Caller, trainer: User, dataset: Dataset
) -> None:
    for words in ("first", "second"):
        add_correction(caller=caller, step=step, message=words)
        add_correction(caller=Caller(user=trainer), step=step, message=words)
    taken = Preference.objects.corrections().filter(author=trainer).get()
    take_back_preference(caller=Caller(user=trainer), preference=taken)
    add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=add(text="b")), is_tie=True)
    add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=add(text="c")))
    whole = Side(trajectory=step.trajectory)
    add_comparison(caller=caller, chosen=whole, rejected=Side(trajectory=add(text="d").trajectory))
    take_back_label(caller=caller, label=hint(caller, step, "taken back"))
    hint(caller, step, "stands")
    remark = Answer(field="comment", text="not for the model", step=step)
    add_labels(caller=caller, trajectory=step.trajectory, answers=[remark, Answer(field="hint", text="of the whole")])
    add_ids_to_dataset(dataset=dataset, caller=caller, ids=[step.trajectory_id])
    snapshot = take_snapshot(dataset=dataset, caller=caller)
    judged = SnapshotEntry.objects.get().judged
    pairs = Preference.objects.filter(trajectory=step.trajectory).order_by("pk")
    assert judged == {
        "preference": list(pairs.decided().values_list("pk", flat=True)),
        "sft": list(pairs.corrections().values_list("pk", flat=True)),
        "hints": list(Label.objects.hints().values_list("pk", flat=True)),
        "ends": {pairs.get(step=None).pk: 1},
    }
    assert [len(judged[name]) for name in NAMES] == [3, 1, 1]
    assert count_frozen(snapshot, hidden=NOTHING) == {"preference": 3, "sft": 1, "hints": 1}
