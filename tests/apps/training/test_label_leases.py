"""What runs on labels take from the pool: of any age, by what was said of it, as often as the recipe says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.contracts.labelled import Judged
from apps.core.contracts.training import TrainBatch
from apps.core.errors import Conflict, InvalidInput
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_comparison, add_correction
from apps.feedback.preferences.sides import Side
from apps.registry.models import Version
from apps.training import leases, lending
from apps.training.launching import preview_launch
from apps.training.models import Attempt, Batch, BatchTrajectory, Metric
from apps.training.recipes import read_recipe
from apps.training.selection import Selection
from apps.trajectories.models import Step, Trajectory
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim, finish_step
from tests.factories.registry import VersionFactory

pytestmark = pytest.mark.django_db
SFT: dict[str, Any] = {"algorithm": "sft"}
DPO: dict[str, Any] = {"algorithm": "preference"}
KTO: dict[str, Any] = {"algorithm": "unpaired"}
TWO: list[dict[str, Any]] = [{}, {"prompt_ids": [1, 2, 3, 4, 5, 6], "completion_ids": [7]}]


def lease(attempt: Attempt, *, step: int = 1) -> TrainBatch:
    batch = leases.lease_batch(attempt, step=step)
    assert batch is not None
    return batch


def told(batch: TrainBatch) -> list[tuple[str, int, bool]]:
    """Whose, how many answers, good or bad."""
    return [(each.trajectory_id, len(each.answers), each.is_good) for each in batch.judged]


def correct(caller: Caller, trajectory: Trajectory, text: str, *, index: int = 0) -> Preference:
    return add_correction(caller=caller, step=trajectory.steps.get(index=index), message=text)


def counts(trajectory: Trajectory, **recipe: Any) -> dict[str, int]:
    preview = preview_launch(project=trajectory.project, selection=Selection(), recipe=read_recipe(recipe))
    return dict(preview.counts)


def test_imitation_takes_what_was_accepted(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    good = [add_trajectory(reward=reward, steps=TWO) for reward in (1.0, 0.9)]
    add_trajectory(reward=0.5)
    batch = lease(claim(launch(**SFT)))
    assert batch.samples == ()
    assert told(batch) == [(row.id, 2, True) for row in good]
    assert batch.judged[0].answers[1].prompt_ids == (1, 2, 3, 4, 5, 6)
    assert batch.judged[0].answers[1].completion_ids == (7,)


def test_age_and_sampling_do_not_matter(launch: LaunchRun, add_trajectory: AddTrajectory, base: Version) -> None:
    """Greedy, cut, bent by a grammar, or spoken by a version of long ago: for imitation all are good."""
    old = VersionFactory.create(policy=base.policy, number=7)
    row = add_trajectory(version=old, steps=[{"temperature": 0.0}, {"top_p": 0.5}, {"constraints": "grammar"}])
    assert told(lease(claim(launch(**SFT, trajectories_per_step=1)))) == [(row.id, 3, True)]


def test_what_no_engine_of_ours_said_travels_as_words(
    launch: LaunchRun, add_trajectory: AddTrajectory, base: Version
) -> None:
    add_trajectory(steps=[{"is_exact": False, "completion_ids": [], "text": "Noon."}])
    stranger = VersionFactory.create()
    add_trajectory(steps=[{"version": stranger}])
    batch = lease(claim(launch(**SFT)))
    for each in batch.judged:
        (answer,) = each.answers
        assert answer.prompt_ids == answer.completion_ids == ()
        assert answer.conversation is not None
        assert json.loads(answer.conversation.messages) == [{"role": "user", "content": "hello"}]
    assert batch.probe.token_ids == ()  # the trainer's to choose


def test_what_cannot_be_learnt_is_left_out_by_reason(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    silent = {"is_exact": False, "completion_ids": [], "text": ""}
    add_trajectory(steps=[{}, {"side_call": "title"}, {"is_excluded": True}, {"status": "aborted"}, silent])
    lease(claim(launch(**SFT, trajectories_per_step=1)))
    assert Batch.objects.get().discards == {"side_call": 1, "excluded": 1, "incomplete": 1, "empty": 1}


def test_a_correction_is_learnt_in_the_context_that_the_model_saw(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    row = add_trajectory(reward=None, steps=TWO)
    correct(owner_caller, row, "Better so.")
    batch = lease(claim(launch(**SFT, trajectories_per_step=1)))
    (judged,) = batch.judged
    (answer,) = judged.answers
    assert answer.prompt_ids == (1, 2, 3)
    assert answer.conversation is not None
    assert json.loads(answer.conversation.answer) == {"role": "assistant", "content": "Better so."}
    assert Batch.objects.get().reward_mean is None


def test_what_two_people_wrote_is_learnt_from_both(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller, mate: User
) -> None:
    row = add_trajectory(reward=None, steps=TWO)
    correct(owner_caller, row, "Better so.", index=1)
    correct(Caller(user=mate), row, "Or so.", index=1)
    batch = lease(claim(launch(**SFT, trajectories_per_step=1)))
    assert told(batch) == [(row.id, 1, True), (row.id, 1, True)]


def test_pairs_are_the_best_and_the_worst_try_at_a_prompt(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    best, middle, worst = (add_trajectory(group="g", reward=reward) for reward in (1.0, 0.5, 0.0))
    add_trajectory(group="alone", reward=1.0)
    batch = lease(claim(launch(**DPO)))
    assert told(batch) == [(best.id, 1, True), (worst.id, 1, False)]
    assert len({each.pair for each in batch.judged}) == 1
    assert set(BatchTrajectory.objects.values_list("trajectory_id", flat=True)) == {best.id, worst.id}
    assert counts(middle, **DPO) == {"ready": 3, "alone": 1}


def test_a_corrected_answer_is_a_pair_of_its_own(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    row = add_trajectory(reward=None)
    correct(owner_caller, row, "Better so.")
    batch = lease(claim(launch(**DPO, trajectories_per_step=1)))
    assert told(batch) == [(row.id, 1, True), (row.id, 1, False)]
    good, bad = batch.judged
    assert (good.answers[0].conversation is None, bad.answers[0].completion_ids) == (False, (4, 5))


def test_answers_and_trajectories_that_people_compared_are_pairs(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    one, other, third = (add_trajectory(reward=None, steps=[{"completion_ids": [n]}]) for n in (4, 5, 6))
    first, second = one.steps.get(), other.steps.get()
    add_comparison(caller=owner_caller, chosen=Side(step=second), rejected=Side(step=first))
    add_comparison(caller=owner_caller, chosen=Side(trajectory=third), rejected=Side(trajectory=one))
    add_comparison(caller=owner_caller, chosen=Side(step=first), rejected=Side(message={"content": "No."}))
    add_comparison(caller=owner_caller, chosen=Side(trajectory=other), rejected=Side(trajectory=third), is_tie=True)
    batch = lease(claim(launch(**DPO, trajectories_per_step=3)))
    sides = list(zip(batch.judged[::2], batch.judged[1::2], strict=True))
    assert all(good.is_good and not bad.is_good for good, bad in sides)
    tokens = [(good.answers[0].completion_ids, bad.answers[0].completion_ids) for good, bad in sides]
    assert sorted(tokens) == [((4,), ()), ((5,), (4,)), ((6,), (4,))]


def test_single_verdicts_need_both_kinds(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    good = add_trajectory(reward=1.0)
    with pytest.raises(InvalidInput, match="all 1 ready trajectories are good"):
        launch(**KTO)
    bad = add_trajectory(reward=0.2)
    assert told(lease(claim(launch(**KTO)))) == [(good.id, 1, True), (bad.id, 1, False)]


def test_a_correction_brings_both_kinds(launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller) -> None:
    row = add_trajectory(reward=0.0)
    correct(owner_caller, row, "Better so.")
    assert told(lease(claim(launch(**KTO, trajectories_per_step=1)))) == [(row.id, 1, True), (row.id, 1, False)]


def test_a_leased_batch_is_fed_again_unchanged(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    """Whatever people say of it meanwhile."""
    rows = [add_trajectory(group="g", reward=reward) for reward in (1.0, 0.0)]
    correct(owner_caller, rows[1], "Better so.")
    attempt = claim(launch(**DPO))
    before = lease(attempt)
    correct(owner_caller, rows[1], "Better still.")
    Trajectory.objects.filter(pk=rows[0].pk).update(reward=-1.0, group="other")
    assert lease(attempt) == before
    said = [answer.conversation for each in before.judged for answer in each.answers if answer.conversation]
    assert ["Better so." in each.answer for each in said] == [True]


def test_labels_do_not_wear_out(launch: LaunchRun, add_trajectory: AddTrajectory, tmp_path: Path) -> None:
    """What rewards were used up stays good for labels; a run goes over it as often as it is told, least used first."""
    rows = [add_trajectory(reward=1.0) for _ in range(3)]
    attempt = claim(launch(**SFT, epochs=2))
    taken = []
    for step in (1, 2, 3):
        batch = lease(attempt, step=step)
        taken += [each.trajectory_id for each in batch.judged]
        leases.acknowledge_step(attempt, finish_step(batch, tmp_path))
    assert sorted(taken) == sorted(row.id for row in rows for _ in range(2))
    assert taken[:3] == [row.id for row in rows]
    assert leases.lease_batch(attempt, step=4) is None
    assert leases.describe_wait(attempt).startswith("0 of 2 ready; 3 trained on before")
    assert "reward_mean" in Metric.objects.earliest("pk").values


def test_what_was_imitated_can_still_teach_by_its_reward(
    launch: LaunchRun, add_trajectory: AddTrajectory, tmp_path: Path
) -> None:
    rows = [add_trajectory(reward=reward) for reward in (1.0, 0.6)]
    attempt = claim(launch(**SFT, n_steps=1))
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    assert counts(rows[0])["ready"] == 2
    assert counts(rows[0], **SFT)["ready"] == 2


def test_a_reward_model_is_no_version_of_the_policy(
    launch: LaunchRun, add_trajectory: AddTrajectory, base: Version, tmp_path: Path
) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(group="g", reward=reward)
    attempt = claim(launch(algorithm="reward_model", n_steps=1))
    batch = lease(attempt)
    assert [each.is_good for each in batch.judged] == [True, False]
    event = replace(finish_step(batch, tmp_path), probe=None)
    assert leases.acknowledge_step(attempt, event) == 1
    assert list(Version.objects.all()) == [base]
    assert Batch.objects.get().version is None
    assert lending.current_version(attempt.run) == base


def test_a_policy_without_log_probs_to_check_it_by_is_refused(
    launch: LaunchRun, add_trajectory: AddTrajectory, tmp_path: Path
) -> None:
    add_trajectory(reward=1.0)
    attempt = claim(launch(**SFT, trajectories_per_step=1))
    event = replace(finish_step(lease(attempt), tmp_path), probe=None)
    with pytest.raises(Conflict, match="without an adapter, or without log-probs"):
        leases.acknowledge_step(attempt, event)


def test_the_form_says_why_the_rest_is_not_for_it(add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(reward=0.1)
    add_trajectory(reward=None)
    add_trajectory(reward=1.0, is_excluded=True)
    add_trajectory(reward=1.0, steps=[{"is_excluded": True}])
    add_trajectory(reward=1.0)
    add_trajectory(reward=1.0, channel="val")
    reasons = {"rejected": 1, "unlabelled": 1, "excluded": 1, "untrainable": 1, "elsewhere": 1}
    assert counts(row, **SFT) == {"ready": 1, **reasons}


def test_a_run_that_could_learn_nothing_is_refused(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    add_trajectory(reward=0.1)
    with pytest.raises(InvalidInput, match="1 not rewarded enough, and not corrected"):
        launch(**SFT)
    with pytest.raises(InvalidInput, match="1 with no other rewarded try at their prompt"):
        launch(**DPO)


def test_what_is_not_accepted_any_more_is_passed_over(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(reward=1.0)
    attempt = claim(launch(**SFT, trajectories_per_step=1))
    batch = lease(attempt)
    Step.objects.filter(trajectory=row).update(is_excluded=True)
    assert leases.lease_batch(attempt, step=batch.step) is None
    assert Batch.objects.get().state == "released"
    assert isinstance(batch.judged[0], Judged)


def test_corrections_are_imitated_beside_what_rewards_teach(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    rows = [add_trajectory(reward=reward) for reward in (1.0, 0.0)]
    correct(owner_caller, rows[1], "Better so.")
    Trajectory.objects.filter(pk=rows[1].pk).update(reward=0.0)
    attempt = claim(launch(sft_weight=0.1))
    batch = lease(attempt)
    assert [sample.trajectory_id for sample in batch.samples] == [row.id for row in rows]
    assert told(batch) == [(rows[1].id, 1, True)]
    correct(owner_caller, rows[1], "Better still.")
    assert lease(attempt) == batch
