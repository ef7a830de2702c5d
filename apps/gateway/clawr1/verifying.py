"""Rewards that Claw-R1's clients ask for before they send their steps: the project's own rules have a word on them.

Of a project's graders, those that are switched on and judge by the answer alone. The task's facts (`ground_truth`, the
data set's fields) come with the question. Writes nothing.
"""

import re
from collections.abc import Sequence

from apps.accounts.models import ApiKey
from apps.core.errors import NotFound, Unavailable
from apps.feedback.graders.grades import Grade
from apps.feedback.graders.grading import GradingRound, as_said, open_round
from apps.feedback.graders.models import Grader
from apps.feedback.graders.subjects import Subject
from apps.gateway.clawr1.shapes import RewardBody
from apps.gateway.dialect import Json
from apps.registry.models import Policy
from apps.registry.token_texts import read_text
from apps.trajectories.models import Trajectory

KINDS = ("exact", "json_schema", "numeric", "reasoning_gym", "regex")
_END = re.compile(r"(?:<\|[^<>|]*\|>|</s>|\s)+\Z")  # marks that end an answer, as tokenizers spell them


def verify(key: ApiKey, body: RewardBody) -> tuple[float, Json]:
    """Return what the response is worth, and which rule says so.

    Raises NotFound where no rule has a word on it, Unavailable where no engine can read the tokens.
    """
    rules = _find_rules(key, body.source)
    if not rules:
        raise NotFound("the project has no rule that is switched on")
    answer = {"role": "assistant", "content": _END.sub("", _read(key, body.response_ids))}
    trajectory = Trajectory(project=key.agent.project, agent=key.agent, metadata=body.facts)
    subject = Subject(trajectory=trajectory, step_id=None, answer=answer)
    reasons = []
    for rule in rules:
        outcome = rule.grade([subject])[0].outcome
        if not isinstance(outcome, Grade):
            reasons.append(f"{rule.version}: {outcome.why}")
            continue
        field = rule.job.field
        reward = field.reward_of(field.read(as_said(field, outcome.value)))
        if reward is not None:
            return reward, {"grader": str(rule.version), "reason": outcome.text}
    raise NotFound("; ".join(reasons) or "no rule gave a reward")


def _find_rules(key: ApiKey, source: str) -> list[GradingRound]:
    """Return the rules, one that is named after the task's data set first."""
    rows = Grader.objects.filter(project=key.agent.project, kind__in=KINDS, live__isnull=False)
    graders = rows.select_related("live__grader").order_by("name")
    ordered = sorted(graders, key=lambda grader: grader.name not in source)
    return [open_round(grader.live) for grader in ordered if grader.live is not None]


def _read(key: ApiKey, token_ids: Sequence[int]) -> str:
    policy = Policy.objects.filter(project=key.agent.project).first()
    text = read_text(base_model=policy.base_model, token_ids=token_ids) if policy else None
    if text is None:
        raise Unavailable("no engine can read these tokens now")
    return text
