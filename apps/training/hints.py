"""Hints: what a step should have known, put behind the prompt that it saw, for the teacher of hindsight distillation.

The teacher is the policy itself with the hint before its eyes. Reads labels; knows nothing of losses.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Exists, OuterRef, Q

from apps.core.contracts.labelled import Conversation
from apps.feedback.models import Label, LabelQuerySet
from apps.feedback.preferences.models import Preference
from apps.trajectories.trie import StepView, load_tools

HINT_FIELD = "hint"
COMMENT_FIELD = "comment"
INTRODUCTION = "Before you answer, here is what is known about a good answer to this:"


def has_hint() -> Q:
    """Return, for a query of trajectories, whether anything stands that `list_hints` would find."""
    labels = _labels().filter(trajectory=OuterRef("pk"))
    corrections = Preference.objects.corrections().filter(trajectory=OuterRef("pk"))
    return Q(Exists(labels)) | Q(Exists(corrections))


def _labels() -> LabelQuerySet:
    words = Label.objects.standing().filter(step__isnull=False, field__in=(HINT_FIELD, COMMENT_FIELD))
    return words.exclude(text="")


def list_hints(trajectory_ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return by trajectory the words for each step, by its id: hints, comments, and what it was corrected to."""
    found: dict[str, dict[str, list[str]]] = {row_id: defaultdict(list) for row_id in trajectory_ids}
    for label in _labels().filter(trajectory__in=trajectory_ids).order_by("id"):
        found[label.trajectory_id][label.step_id or ""].append(label.text)
    for row in Preference.objects.corrections().filter(trajectory__in=trajectory_ids).order_by("id"):
        content = (row.chosen_message or {}).get("content")
        if content:
            found[row.trajectory_id][row.step_id or ""].append(f"A better answer would be: {content}")
    return found


def tell_with_hint(view: StepView, hints: Iterable[str], *, project_id: str) -> Conversation:
    """Return what the teacher is asked: the step's prompt, and behind it the hints."""
    words = "\n".join([INTRODUCTION, *(f"- {hint}" for hint in hints)])
    messages: list[Any] = [*view.messages, {"role": "user", "content": words}]
    tools = load_tools(project_id=project_id, digest=view.row.tools_digest)
    return Conversation(messages=json.dumps(messages), tools=json.dumps(tools), answer=json.dumps(view.answer))
