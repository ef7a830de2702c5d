"""What a trainer reads of preferences: pairs of answers to one prompt (DPO), answers to imitate (SFT), and pairs of
trajectories from where they begin to differ.

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
from apps.trajectories.trie import Context, count_shared, load_context, load_messages, load_tools


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


@dataclass(frozen=True, kw_only=True)
class TrajectoryPair:
    """Two trajectories that began alike: `messages` and `tools` are what both were asked, `chosen` and `rejected` how
    each went on, from its next answer to its last.
    """

    messages: list[Any]
    tools: list[Any]
    chosen: list[Any]
    rejected: list[Any]


def read_trajectory_pair(row: Preference, *, end: int | None, rejected_end: int | None) -> TrajectoryPair | None:
    """Return a pair of whole trajectories; of each only the steps before its end, if that is said. None where they have
    no prompt in common, were offered other tools, or one has no answer.
    """
    chosen = _read_line(row.trajectory_id, end=end)
    rejected = _read_line(row.rejected_trajectory_id or "", end=rejected_end)
    if chosen.tools_digest != rejected.tools_digest:
        return None
    at = count_shared(chosen.spelled, rejected.spelled)
    while at and not (_answers_at(chosen, at) and _answers_at(rejected, at)):
        at -= 1
    if not at:
        return None
    return TrajectoryPair(
        messages=list(chosen.messages[:at]),
        tools=load_tools(project_id=row.project_id, digest=chosen.tools_digest),
        chosen=list(chosen.messages[at:]),
        rejected=list(rejected.messages[at:]),
    )


def _read_line(trajectory_id: str, *, end: int | None) -> Context:
    """Return what the last whole answer of the main line had seen and said."""
    answers = Step.objects.filter(trajectory=trajectory_id, side_call="", status="complete")
    before_end = answers if end is None else answers.filter(index__lt=end)
    return load_context(before_end.order_by("-index").values_list("pk", flat=True).first() or "")


def _answers_at(line: Context, place: int) -> bool:
    return place < len(line.messages) and line.messages[place].get("role") == "assistant"
