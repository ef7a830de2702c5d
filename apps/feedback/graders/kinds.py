"""The table of kinds: what each is told, as what it speaks, and how it grades a batch of subjects. Knows no tables.

To add a kind: its settings and function in a file of its own, a line in `KINDS`, a section in docs/rewards.md.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from apps.core.errors import InvalidInput, ServiceError
from apps.core.fault_words import tell_fault
from apps.feedback.graders import rules
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.judging import (
    NONSENSE,
    AskingSettings,
    JudgeSettings,
    Messages,
    NextStateSettings,
    Nonsense,
    RelativeSettings,
    Vote,
    ask_judge,
    ask_next_state,
    ask_relative,
    combine_scores,
    join_votes,
    read_scores,
    read_vote,
    shape_scores,
    shape_vote,
)
from apps.feedback.graders.plugins import PluginSettings, grade_by_plugin
from apps.feedback.graders.reward_models import MODEL_NAME, MODEL_WORDS, RewardModelSettings, grade_by_model
from apps.feedback.graders.settings import Settings
from apps.feedback.graders.subjects import Subject
from apps.feedback.graders.webhooks import WebhookSettings, grade_by_webhook
from apps.feedback.models import Source
from apps.feedback.score_schema import FieldKind, FieldSpec
from apps.registry.client import ChatAnswer
from apps.registry.speaking import Speaker, find_speaker

AT_ONCE = 8  # calls to models and webhooks by one worker


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a kind is given beside the subjects: its settings, and the field whose scale its values are on."""

    project_id: str
    version: str
    field: FieldSpec
    settings: Any
    secret: str = ""

    @property
    def low(self) -> float:
        return self.field.low if self.field.low is not None else 0.0

    @property
    def high(self) -> float:
        return self.field.high if self.field.high is not None else 1.0

    @property
    def is_whole(self) -> bool:
        return self.field.kind in {FieldKind.SCALE, FieldKind.BINARY}

    @property
    def scale(self) -> str:
        """The field's scale in the words of a question."""
        words = f"from {self.low:g} (the worst) to {self.high:g} (the best)"
        return f"{words}, whole numbers only" if self.is_whole else words

    def fit(self, value: float) -> float:
        """Return a value of the field: within its ends, whole where it has steps."""
        value = min(max(value, self.low), self.high)
        return float(round(value)) if self.is_whole else value


class Ends(TypedDict):
    """The scale that a judge's score lies on."""

    low: float
    high: float
    is_whole: bool


NEXT_STATE: Ends = {"low": -1, "high": 1, "is_whole": True}
GradeBatch = Callable[[Job, Sequence[Subject]], list[Outcome]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind. `batch` is how many subjects are graded at once; `is_group`: the tries of a group are one batch;
    `needs_following`: it says nothing of an answer after which nothing came."""

    name: str
    words: str
    help: str
    source: Source
    settings: type[Settings]
    grade: GradeBatch
    batch: int = 50
    is_group: bool = False
    always_by_step: bool = False
    needs_following: bool = False

    def is_by_step(self, settings: Any) -> bool:
        """Say whether each step is graded; else the trajectory as a whole is."""
        return self.always_by_step or getattr(settings, "target", "") == "step"

    def n_calls(self, settings: Any) -> int:
        """Return the calls to a model or a webhook that a question takes: about a subject, or about a group's tries."""
        if isinstance(settings, AskingSettings):
            return settings.n_votes
        return int(isinstance(settings, WebhookSettings))


def one_by_one(grade: Callable[[Any, Subject], Outcome]) -> GradeBatch:
    """Turn a rule into a function of a batch."""

    def grade_batch(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
        return [grade(job.settings, subject) for subject in subjects]

    return grade_batch


def _side_by_side(ask: Callable[[Any], Outcome], things: Sequence[Any]) -> list[Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, things))


def _grade_by_webhook(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
    def ask(subject: Subject) -> Outcome:
        return grade_by_webhook(job.settings, subject, secret=job.secret, version=job.version)

    return _side_by_side(ask, subjects)


def _grade_by_model(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
    return grade_by_model(job.settings, subjects, low=job.low, high=job.high)


def _judge(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
    settings: JudgeSettings = job.settings

    ends: Ends = {"low": job.low, "high": job.high, "is_whole": job.is_whole}

    def ask(asked: tuple[Speaker, Subject]) -> Outcome:
        speaker, subject = asked
        return _vote(speaker, settings, ask_judge(settings, subject, scale=job.scale), ends=ends, job=job)

    return _with_speaker(job, subjects, ask)


def _judge_next_state(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
    settings: NextStateSettings = job.settings

    def ask(asked: tuple[Speaker, Subject]) -> Outcome:
        speaker, subject = asked
        if not subject.following:
            return NoGrade(why="nothing came after this step")
        return _vote(speaker, settings, ask_next_state(settings, subject), ends=NEXT_STATE, job=job)

    return _with_speaker(job, subjects, ask)


def _with_speaker(
    job: Job, subjects: Sequence[Subject], ask: Callable[[tuple[Speaker, Subject]], Outcome]
) -> list[Outcome]:
    try:
        speaker = find_speaker(job.project_id, job.settings.model)
    except ServiceError as error:
        return [Failure(why=error.message) for _ in subjects]
    return _side_by_side(ask, [(speaker, subject) for subject in subjects])


def _vote(speaker: Speaker, settings: AskingSettings, question: Messages, *, ends: Ends, job: Job) -> Outcome:
    """Ask as often as there are votes. More than half of them must make sense."""
    shape = shape_vote(**ends, max_tokens=settings.max_tokens)
    votes, n_faults = list[Vote](), 0
    for _ in range(settings.n_votes):
        try:
            answer = _ask(speaker, settings, question, shape=shape)
            votes.append(read_vote(answer.text, **ends, is_held=settings.hold_to_shape))
        except (Nonsense, ServiceError) as error:
            n_faults += 1
            if 2 * n_faults >= settings.n_votes:
                return _fail(error, n_calls=len(votes) + n_faults)
    vote = join_votes(votes, settings.combine)
    return Grade(value=job.fit(vote.score), text=vote.reason, hint=vote.hint, n_calls=settings.n_votes)


def _ask(speaker: Speaker, settings: AskingSettings, question: Messages, *, shape: dict[str, Any]) -> ChatAnswer:
    options: dict[str, Any] = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
    if settings.hold_to_shape:
        held = {"name": "judgement", "schema": shape, "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": held}
    return speaker.ask(question, read_s=settings.timeout_s, **options)


def _fail(error: Nonsense | ServiceError, *, n_calls: int) -> Failure:
    if isinstance(error, Nonsense):
        return Failure(why=f"{NONSENSE}: {error}", n_calls=n_calls)
    why = f"the judge cannot be asked: {error.message}"
    return Failure(why=why, n_calls=n_calls, retry_after_s=error.retry_after_s or 0)


def _judge_group(job: Job, subjects: Sequence[Subject]) -> list[Outcome]:
    if len(subjects) < 2:
        return [NoGrade(why="there is no other try in its group to compare it with") for _ in subjects]
    settings: RelativeSettings = job.settings
    votes: list[tuple[list[float], str]] = []
    n_calls = 0
    try:
        speaker = find_speaker(job.project_id, settings.model)
        while len(votes) < settings.n_votes:
            n_calls += 1
            votes.append(_read_tries(speaker, settings, subjects))
    except (Nonsense, ServiceError) as error:
        return _share_calls([_fail(error, n_calls=0) for _ in subjects], n_calls)
    scores = [combine_scores(of_one, settings.combine) for of_one in zip(*(vote[0] for vote in votes), strict=True)]
    values = [job.fit(job.low + score * (job.high - job.low)) for score in scores]
    return _share_calls([Grade(value=value, text=votes[0][1]) for value in values], n_calls)


def _share_calls(outcomes: Sequence[Grade | Failure], n_calls: int) -> list[Outcome]:
    """The calls were made for all of them: they are counted once, with the first."""
    return [replace(outcomes[0], n_calls=n_calls), *outcomes[1:]]


def _read_tries(speaker: Speaker, settings: RelativeSettings, subjects: Sequence[Subject]) -> tuple[list[float], str]:
    shape = shape_scores(count=len(subjects), max_tokens=settings.max_tokens)
    answer = _ask(speaker, settings, ask_relative(settings, subjects), shape=shape)
    return read_scores(answer.text, count=len(subjects), is_held=settings.hold_to_shape)


_ALL = (
    Kind(
        name="exact",
        words="exact answer",
        help="The answer is the expected text, or holds it.",
        source=Source.RULE,
        settings=rules.ExactSettings,
        grade=one_by_one(rules.grade_exact),
    ),
    Kind(
        name="regex",
        words="pattern",
        help="The answer has, or has not, what a pattern (RE2) matches.",
        source=Source.RULE,
        settings=rules.RegexSettings,
        grade=one_by_one(rules.grade_regex),
    ),
    Kind(
        name="numeric",
        words="number",
        help="The last number in the answer is the expected one.",
        source=Source.RULE,
        settings=rules.NumericSettings,
        grade=one_by_one(rules.grade_numeric),
    ),
    Kind(
        name="json_schema",
        words="JSON schema",
        help="The answer is JSON that a schema describes.",
        source=Source.RULE,
        settings=rules.JsonSchemaSettings,
        grade=one_by_one(rules.grade_json_schema),
    ),
    Kind(
        name="tool_calls",
        words="tool calls",
        help="The tools that the agent called did not answer with errors.",
        source=Source.RULE,
        settings=rules.ToolCallSettings,
        grade=one_by_one(rules.grade_tool_calls),
    ),
    Kind(
        name="reasoning_gym",
        words="reasoning-gym scorer",
        help="The scorer of one of reasoning-gym's tasks judges the answer.",
        source=Source.RULE,
        settings=rules.ReasoningGymSettings,
        grade=one_by_one(rules.grade_reasoning_gym),
    ),
    Kind(
        name="judge",
        words="model judge",
        help="A model scores the answer: your own live one, or a teacher.",
        source=Source.JUDGE,
        settings=JudgeSettings,
        grade=_judge,
        batch=AT_ONCE,
    ),
    Kind(
        name="next_state",
        words="next-state judge",
        help="A model reads what came back, the user's next words or a tool's result, and says how the step did.",
        source=Source.NEXT_STATE,
        settings=NextStateSettings,
        grade=_judge_next_state,
        batch=AT_ONCE,
        always_by_step=True,
        needs_following=True,
    ),
    Kind(
        name="relative",
        words="judge of a group",
        help="A model compares the tries of a group and scores each. Trajectories that were opened with the same group "
        "(POST /api/v1/trajectories) are tries of one; others are left alone.",
        source=Source.JUDGE,
        settings=RelativeSettings,
        grade=_judge_group,
        is_group=True,
    ),
    Kind(
        name="reward_model",
        words="reward model",
        help="A sequence-classification model on the worker scores the conversation.",
        source=Source.JUDGE,
        settings=RewardModelSettings,
        grade=_grade_by_model,
        batch=128,
    ),
    Kind(
        name="webhook",
        words="webhook",
        help="A program of yours is sent the conversation, signed, and answers with a value.",
        source=Source.RULE,
        settings=WebhookSettings,
        grade=_grade_by_webhook,
        batch=AT_ONCE,
    ),
    Kind(
        name="plugin",
        words="installed grader",
        help="A Python grader that the operators have installed.",
        source=Source.RULE,
        settings=PluginSettings,
        grade=one_by_one(grade_by_plugin),
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}


def find_kind(name: str) -> Kind:
    """Return the kind of this name. Raises InvalidInput that names those there are."""
    kind = KINDS.get(name)
    if kind is None:
        raise InvalidInput(f"there is no kind {name!r} of grader; there are {', '.join(KINDS)}", field="kind")
    return kind


def read_settings(kind: Kind, data: Mapping[str, Any]) -> Any:
    """Return the checked settings of a kind. Raises InvalidInput that names the setting."""
    try:
        return kind.settings.model_validate(data)
    except ValidationError as error:
        raise _tell_fault(error.errors()[0]) from error


def find_setting_faults(kind: Kind, data: Mapping[str, Any]) -> list[ServiceError]:
    """Return all that is wrong with the settings, each as `read_settings` raises the first."""
    try:
        kind.settings.model_validate(data)
    except ValidationError as error:
        return [_tell_fault(one) for one in error.errors() if one["type"] != _FOLLOWS]
    return []


_SPELLED = {rules.TASK_NAME: rules.TASK_WORDS, MODEL_NAME: MODEL_WORDS}
_FOLLOWS = "default_factory_not_called"  # a default that depends on another setting, which is wrong


def _tell_fault(fault: ErrorDetails) -> InvalidInput:
    at = fault.get("ctx", {}).get("at")
    place = ".".join(["settings", *map(str, fault["loc"]), *([at] if at else [])])
    return InvalidInput(f"{place}: {tell_fault(fault, spelled=_SPELLED)}", field=place)
