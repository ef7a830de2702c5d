"""What a trainer reads of preferences: pairs of answers to one prompt (DPO), and answers to imitate (SFT).

Ask `list_pairs` or `list_corrections` for rows of a project, narrow them like any QuerySet (`trajectory__in`,
`trajectory__channel`, `source`, `id__gt`), and have `read_pair` read one whole. Rows are facts and their ids last, so a
ledger of what was trained on can name them; one that was superseded meanwhile is not in the lists any more.
"""

from dataclasses import dataclass
from typing import Any

from apps.accounts.models import Project
from apps.feedback.preferences.models import Preference, PreferenceQuerySet
from apps.feedback.preferences.sides import answer_of
from apps.trajectories.models import Step
from apps.trajectories.trie import load_messages, load_tools


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """One answer. `step` is the step that sampled it, so that its token ids are known; None: only the words are."""

    message: dict[str, Any]
    step: Step | None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two answers to one prompt (chat messages and tools; `prompt_step` is the step that was asked with it).

    Of a correction, `chosen` is also the answer to imitate.
    """

    preference: Preference
    prompt_step: Step
    messages: list[Any]
    tools: list[Any]
    chosen: Spoken
    rejected: Spoken


def list_pairs(project: Project) -> PreferenceQuerySet:
    """Return standing pairs of answers to one prompt, corrections among them, the oldest first."""
    return _with_steps(Preference.objects.of_project(project).pairs())


def list_corrections(project: Project) -> PreferenceQuerySet:
    """Return standing corrections, the oldest first: `chosen_message` is what to say after the prompt of `step`."""
    return _with_steps(Preference.objects.of_project(project).corrections())


def _with_steps(rows: PreferenceQuerySet) -> PreferenceQuerySet:
    return rows.select_related("step", "chosen_step", "rejected_step").order_by("id")


def read_pair(row: Preference) -> Pair:
    """Return the pair whole; `row` is one of `list_pairs`."""
    assert row.step is not None  # noqa: S101 (of `pairs`)
    return Pair(
        preference=row,
        prompt_step=row.step,
        messages=load_messages(row.step.pk),
        tools=load_tools(project_id=row.project_id, digest=row.step.tools_digest),
        chosen=_speak(row.chosen_step, row.chosen_message),
        rejected=_speak(row.rejected_step, row.rejected_message),
    )


def _speak(step: Step | None, message: dict[str, Any] | None) -> Spoken:
    if step is not None:
        return Spoken(message=answer_of(step), step=step)
    assert message is not None  # noqa: S101 (a constraint of the table)
    return Spoken(message=message, step=None)
