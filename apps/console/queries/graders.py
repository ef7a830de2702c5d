"""What the pages of rewards and graders show. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.console.review_form import tell_value
from apps.feedback.graders.agreement import Agreement
from apps.feedback.graders.backfilling import Progress, read_progress
from apps.feedback.graders.budget import read_spent
from apps.feedback.graders.judging import NONSENSE
from apps.feedback.graders.kinds import KINDS, Kind
from apps.feedback.graders.models import Backfill, DryRun, Grader, GraderVersion, Grading, GradingState
from apps.feedback.graders.people import read_agreement
from apps.feedback.graders.services import is_loose, list_graders, list_versions
from apps.feedback.graders.trying import hide_results
from apps.feedback.models import ScoreSchema
from apps.feedback.schemas import ProjectSchema, find_schema, list_schemas
from apps.feedback.score_schema import FieldSpec
from apps.feedback.thumbs.models import ThumbToken
from apps.feedback.thumbs.services import list_tokens
from apps.registry.models import AliasName
from apps.registry.queries import list_teachers
from apps.trajectories.blindness import Hidden
from apps.trajectories.models import Trajectory

SHOWN = 20
MOST_REASONS = 5


@dataclass(frozen=True, kw_only=True)
class GraderRow:
    """A grader in the list, and its day."""

    grader: Grader
    kind: Kind | None
    n_graded: int
    n_failed: int


@dataclass(frozen=True, kw_only=True)
class RewardsPage:
    """The schema in force with its earlier versions, the graders, the tokens of web pages."""

    schema: ProjectSchema
    versions: list[ScoreSchema]
    graders: list[GraderRow]
    tokens: list[ThumbToken]


def read_rewards_page(project: Project, *, hidden: Hidden) -> RewardsPage:
    """Return what the page of rewards shows; what graders did to `hidden` trajectories does not count."""
    return RewardsPage(
        schema=find_schema(project.pk),
        versions=list(list_schemas(project)[:SHOWN]),
        graders=_read_graders(project, hidden=hidden),
        tokens=list(list_tokens(project).order_by("disabled_at", "-id")[:SHOWN]),
    )


def _read_graders(project: Project, *, hidden: Hidden) -> list[GraderRow]:
    graders = list(list_graders(project))
    ended = Grading.objects.filter(version__grader__in=graders, ended_at__gte=timezone.now() - timedelta(days=1))
    states = ended.exclude(trajectory__in=hidden).order_by().values_list("version__grader", "state")
    counts = {(grader_id, state): n for grader_id, state, n in states.annotate(n=Count("pk"))}
    return [
        GraderRow(
            grader=row,
            kind=KINDS.get(row.kind),
            n_graded=counts.get((row.pk, GradingState.DONE), 0),
            n_failed=counts.get((row.pk, GradingState.FAILED), 0),
        )
        for row in graders
    ]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One result of a dry run, with what was said in words: "" where its worth says the same."""

    result: Mapping[str, Any]
    own: str
    people: str


@dataclass(frozen=True, kw_only=True)
class GraderPage:
    """One grader: a version of it, what it was tried on, what it did, and how far it agrees with people."""

    grader: Grader
    kind: Kind
    version: GraderVersion
    versions: list[GraderVersion]
    dry_run: DryRun | None
    agreement: Agreement
    backfills: list[tuple[Backfill, Progress]]
    n_waiting: int
    n_calls_today: int
    failures: list[Grading]
    skipped: list[tuple[str, int]]  # why this version said nothing of a trajectory, and how often
    field: str
    known: Mapping[str, FieldSpec]  # the fields of the score schema of now
    n_senseless: int  # trajectories that this version's judge answered nonsense to, where that is its last word
    is_loose: bool  # its model may answer in any shape

    @property
    def field_words(self) -> str:
        spec = self.known.get(self.field)
        return spec.words if spec else self.field

    @property
    def tried(self) -> list[Tried]:
        """The results of the dry run."""
        return [self._tell(result) for result in (self.dry_run.results if self.dry_run else [])]

    def _tell(self, result: Mapping[str, Any]) -> Tried:
        spec, said = self.known.get(self.field), result.get("people_said", [])
        is_plain = spec is not None and spec.is_plain
        own = "" if is_plain else tell_value(self.field, result["value"], self.known)
        words = [tell_value(self.field, value, self.known) for value in said]
        return Tried(result=result, own=own, people="" if is_plain and len(said) < 2 else ", ".join(words))

    @property
    def n_senseless_tried(self) -> int:
        """How many answers in the dry run could not be read."""
        results = self.dry_run.results if self.dry_run else []
        return sum(result["problem"].startswith(NONSENSE) for result in results)

    @property
    def is_newest(self) -> bool:
        return self.versions[0].pk == self.version.pk

    @property
    def is_tried(self) -> bool:
        return DryRun.objects.filter(version=self.version, state="done").exists()

    @property
    def is_live(self) -> bool:
        return self.grader.live_id == self.version.pk

    @property
    def budget(self) -> int | None:
        """Calls of a UTC day; None: as many as it takes."""
        budget: int | None = self.version.settings.get("calls_per_day")
        return budget

    @property
    def is_spent(self) -> bool:
        return self.budget is not None and self.n_calls_today >= self.budget


def _count_skipped(gradings: QuerySet[Grading]) -> QuerySet[Grading, tuple[str, int]]:
    reasons = gradings.filter(state=GradingState.SKIPPED).order_by().values_list("error")
    return reasons.annotate(n=Count("pk")).order_by("-n", "error")[:MOST_REASONS]


def list_judges(project: Project) -> list[str]:
    """Return the names by which a judge may be asked."""
    return [AliasName.LIVE, *(teacher.name for teacher in list_teachers(project))]


def _beside_rewards(dry_run: DryRun) -> DryRun:
    """Put to each result the reward that its trajectory has now."""
    ids = [result["trajectory"] for result in dry_run.results]
    rewards = dict(Trajectory.objects.filter(pk__in=ids).values_list("pk", "reward"))
    dry_run.results = [one | {"now": rewards.get(one["trajectory"])} for one in dry_run.results]
    return dry_run


def read_grader_page(grader: Grader, version: GraderVersion, *, hidden: Hidden) -> GraderPage:
    """Return what the page of a grader shows of one version."""
    gradings = Grading.objects.filter(version=version).exclude(trajectory__in=hidden)
    backfills = Backfill.objects.filter(version=version).select_related("author", "key").order_by("-pk")[:5]
    dry_run = DryRun.objects.filter(version=version).order_by("-pk").first()
    failed = gradings.filter(state=GradingState.FAILED).select_related("trajectory").order_by("-ended_at")
    return GraderPage(
        grader=grader,
        kind=KINDS[grader.kind],
        version=version,
        versions=list(list_versions(grader)[:SHOWN]),
        dry_run=_beside_rewards(hide_results(dry_run, hidden=hidden)) if dry_run else None,
        agreement=read_agreement(version, hidden=hidden),
        backfills=[(backfill, read_progress(backfill, hidden=hidden)) for backfill in backfills],
        n_waiting=gradings.filter(state__in=[GradingState.WAITING, GradingState.RUNNING]).count(),
        n_calls_today=read_spent(grader.pk),
        failures=list(failed[:SHOWN]),
        skipped=list(_count_skipped(gradings)),
        field=version.field,
        known={spec.name: spec for spec in find_schema(grader.project_id).fields.fields},
        n_senseless=gradings.filter(error__startswith=NONSENSE).count(),
        is_loose=is_loose(version),
    )
