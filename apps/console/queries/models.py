"""What the page of a project's model line shows: versions with their lineage, aliases, and where they are served."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Avg, Count, Q

from apps.accounts.models import Project
from apps.console.queries.imports import was_captured
from apps.core.errors import NotFound
from apps.registry.models import Alias, AliasName, Engine, Policy, Version, VersionState
from apps.registry.services import N_SHARES
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Trajectory

SHOWN = 50
SAMPLE = 1000


@dataclass(frozen=True, kw_only=True)
class VersionRow:
    """One version: its names, and what people thought of what it said."""

    version: Version
    aliases: list[str]
    n_trajectories: int
    mean_reward: float | None
    is_whole_line: bool
    """Whether live is a whole model: no other version can stand beside it."""

    @property
    def is_live(self) -> bool:
        return AliasName.LIVE in self.aliases

    @property
    def can_go_live(self) -> bool:
        is_kept = self.version.given_up_at is None
        return is_kept and self.version.state == VersionState.READY and not self.is_live

    @property
    def can_be_candidate(self) -> bool:
        is_alone = self.is_whole_line or self.version.is_whole
        return self.can_go_live and not is_alone and AliasName.CANDIDATE not in self.aliases


@dataclass(frozen=True, kw_only=True)
class ModelLine:
    """A policy with its versions, newest first."""

    policy: Policy
    rows: list[VersionRow]
    live: Alias | None
    previous: Alias | None
    shares: dict[str, int]
    """What each alias beside live takes of its calls, in per cent."""
    split: str
    """Who answers which part of the calls, in words; empty where live answers all."""
    splits_then: dict[int, str]
    """The same as it would be with the version of this number live."""
    engines: list[Engine]

    @property
    def live_share(self) -> int:
        return N_SHARES - sum(self.shares.values())


def read_model_line(project: Project, *, hidden: Hidden = NOTHING) -> ModelLine | None:
    """Return the project's model line, None while it has no policy. No mean is over rewards of `hidden`."""
    policy = Policy.objects.filter(project=project).first()
    if policy is None:
        return None
    aliases = list(Alias.objects.filter(policy=policy).select_related("version__policy"))
    named = {alias.name: alias for alias in aliases}
    live = named.get(AliasName.LIVE)
    is_whole_line = live is not None and live.version.is_whole
    rows = Version.objects.filter(policy=policy).select_related("policy", "parent__policy").order_by("-number")
    versions = list(rows[:SHOWN])
    numbers = {version.number for version in versions} | {alias.version.number for alias in aliases}
    return ModelLine(
        policy=policy,
        rows=[_row(version, aliases, is_whole_line=is_whole_line, hidden=hidden) for version in versions],
        live=live,
        previous=named.get(AliasName.PREVIOUS),
        split=tell_split(share_out(aliases)),
        splits_then={number: tell_split(share_out(aliases, live=number)) for number in numbers},
        shares={alias.name: alias.live_share for alias in aliases if alias.name != AliasName.LIVE},
        engines=list(Engine.objects.replicas().filter(is_enabled=True).order_by("base_url")[:SHOWN]),
    )


def read_shares(project: Project) -> dict[int, int]:
    """Return `share_out` of the project's model line as it is."""
    return share_out(list(Alias.objects.filter(policy__project=project).order_by("pk").select_related("version")))


def share_out(aliases: Sequence[Alias], *, live: int | None = None) -> dict[int, int]:
    """Return how many of 100 calls to the policy's bare name each version answers, by its number, live's first.

    `live`: as it would be with the version of this number live. Shares stay with their aliases when these move.
    """
    named = {alias.name: alias.version.number for alias in aliases}
    if live is not None and named.get(AliasName.LIVE) != live:
        named = {**named, AliasName.PREVIOUS: named.get(AliasName.LIVE, live), AliasName.LIVE: live}
    taken = {alias.name: alias.live_share for alias in aliases if alias.live_share}
    shares: dict[int, int] = {}
    for name, share in {AliasName.LIVE.value: N_SHARES - sum(taken.values()), **taken}.items():
        if name in named:
            shares[named[name]] = shares.get(named[name], 0) + share
    return shares


def tell_split(shares: dict[int, int]) -> str:
    """Return who answers which part of the calls, in words; nothing where one version answers all."""
    if len(shares) < 2:
        return ""
    (live, share), *others = shares.items()
    return ", ".join(
        [f"version {live} answers {share} % of the calls", *(f"version {n} answers {part} %" for n, part in others)]
    )


def _row(version: Version, aliases: list[Alias], *, is_whole_line: bool, hidden: Hidden) -> VersionRow:
    spoken = Trajectory.objects.filter(
        was_captured(), project_id=version.policy.project_id, deleted_at=None, steps__version=version
    ).order_by("-pk")
    recent = spoken.values("pk").distinct()[:SAMPLE]
    seen = Avg("reward", filter=~Q(pk__in=hidden))
    sums = Trajectory.objects.filter(pk__in=recent).aggregate(n=Count("pk"), reward=seen)
    return VersionRow(
        version=version,
        aliases=[alias.name for alias in aliases if alias.version_id == version.pk],
        n_trajectories=sums["n"],
        mean_reward=sums["reward"],
        is_whole_line=is_whole_line,
    )


def find_version(project: Project, number: int) -> Version:
    """Return a version of the project's policy or raise NotFound."""
    rows = Version.objects.select_related("policy__project__team")
    version = rows.filter(policy__project=project, number=number).first()
    if version is None:
        raise NotFound("this project has no such version")
    return version


def previous_version(project: Project) -> Version:
    """Return what `live` pointed at before or raise NotFound."""
    rows = Alias.objects.filter(policy__project=project, name=AliasName.PREVIOUS).select_related("version__policy")
    alias = rows.first()
    if alias is None:
        raise NotFound("no version was live before this one")
    return alias.version
