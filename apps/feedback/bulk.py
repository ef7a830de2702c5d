"""Rewards for many trajectories at once, and the table of everything that a bulk job can do. Knows no HTTP."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from apps.accounts.models import Project, Role
from apps.core.errors import InvalidInput, ServiceError
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.graders.taking_back import TAKE_BACK
from apps.feedback.models import Label
from apps.feedback.queues.bulk import QUEUE
from apps.feedback.rescoring import RESCORE
from apps.feedback.score_schema import MAX_TEXT
from apps.feedback.services import add_label, undo_labels
from apps.trajectories.bulk.actions import POOL_ACTIONS, Action, Outcomes, Settings, apply_each, caller_of, take_only
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.models import Trajectory


def _check(_project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "value", "text")
    value, text = settings.get("value"), settings.get("text", "")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -1 <= value <= 1:  # type: ignore[operator]  # NaN is not between them
        raise InvalidInput("a reward's value is a number from -1 to 1", field="value")
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidInput(f"a text may have {MAX_TEXT} characters", field="text")
    if not is_storable(text):
        raise InvalidInput(NUL_OR_HALF, field="text")
    return {"value": float(value), "text": text}  # type: ignore[arg-type]


def _reward(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    caller = caller_of(job)

    def reward_one(row: Trajectory) -> dict[str, Any]:
        label = add_label(caller=caller, trajectory=row, value=job.settings["value"], text=job.settings["text"])
        return {"label": label.pk}

    return apply_each(rows, reward_one)


def _take_back(job: BulkJob, before: Mapping[str, Any]) -> None:
    """Have each author's reward of before stand again; one that was changed since stays."""
    given = [entry["label"] for entry in before.values()]
    standing = Label.objects.current().filter(pk__in=given).select_related("trajectory__project__team")
    for label in standing:
        with suppress(ServiceError):  # deleted meanwhile, or somebody was a moment faster: theirs is the last word
            undo_labels(caller=caller_of(job), trajectory=label.trajectory, ids=[label.pk])


REWARD = Action(
    name="reward",
    words="reward",
    done="rewarded",
    does="Reward {rows} with {value}",
    role=Role.REVIEWER,
    check=_check,
    apply=_reward,
    undo=_take_back,
)
ACTIONS: Mapping[str, Action] = {action.name: action for action in (REWARD, QUEUE, *POOL_ACTIONS, RESCORE, TAKE_BACK)}


def find_action(name: str) -> Action:
    """Return the action of this name. Raises InvalidInput that names those there are."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidInput(f"there is no action {name!r}; there are {', '.join(ACTIONS)}", field="action")
    return action
