"""Every change to people, teams, projects, agents and keys. Knows nothing of what agents say."""

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.text import slugify

from apps.accounts.access import Caller, require_enough, require_role
from apps.accounts.limited import HIGHEST_LIMIT, LIMIT_NAMES
from apps.accounts.models import (
    SLUG_MAX_LENGTH,
    Agent,
    ApiKey,
    AuditEvent,
    CaptureMode,
    Membership,
    PassedCalls,
    Project,
    Role,
    Scope,
    Team,
    User,
    hash_key,
)
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.core.redaction import BUILT_IN_NAMES, BadPattern, check_pattern
from apps.core.texts import is_storable

MAX_OWN_PATTERNS = 20
FIRST_PASSWORD_BYTES = 12
NO_MEMBER = "this team has no such member"
USE_IS_WRITTEN_EVERY = timedelta(minutes=1)  # a key's last use is no more exact, so that a busy key costs nothing
_PATTERN_NAME = re.compile(r"[A-Za-z0-9_-]{1,20}")


def create_user(*, email: str, password: str, name: str = "", is_staff: bool = False) -> User:
    """Create a person who can log in. Raises Conflict, also for the later of two at one moment."""
    same = User.objects.filter(email__iexact=email)
    if not same.exists():
        try:
            with transaction.atomic():
                return User.objects.create_user(email, password, name=name, is_staff=is_staff, is_superuser=is_staff)
        except (IntegrityError, ValidationError):
            if not same.exists():
                raise
    raise Conflict(f"{email} has an account already", field="email")


@transaction.atomic
def create_team(*, name: str, owner: User) -> Team:
    """Create a team with its first owner."""
    team = Team.objects.create(name=name)
    Membership.objects.create(user=owner, team=team, role=Role.OWNER)
    record_event(team=team, actor=owner.email, action="team.created", object_id=team.id)
    return team


@transaction.atomic
def invite_person(*, team: Team, email: str, role: Role, actor: str, name: str = "") -> tuple[Membership, str]:
    """Return the new member, and a first password where there was no account yet, else "": show it now or never."""
    Team.objects.select_for_update().get(pk=team.pk)
    user, password = _ensure_user(email=email, name=name)
    if Membership.objects.filter(team=team, user=user).exists():
        raise Conflict(f"{user.email} is in this team already", field="email")
    membership = Membership.objects.create(team=team, user=user, role=role)
    record_event(team=team, actor=actor, action="member.added", object_id=user.id, detail={"role": str(role)})
    return membership, password


def _ensure_user(*, email: str, name: str) -> tuple[User, str]:
    """Return a new person and their first password; who has an account, made at this moment by another team even,
    and ""."""
    password = secrets.token_urlsafe(FIRST_PASSWORD_BYTES)
    try:
        return create_user(email=email, password=password, name=name), password
    except Conflict:
        return User.objects.get(email__iexact=email), ""


@transaction.atomic
def change_role(membership: Membership, *, role: Role, actor: str) -> None:
    """Give a member another role. Raises Conflict where the team would be left without an owner, NotFound for who was
    taken out of it a moment ago."""
    _keep_an_owner(membership, role=role)
    Membership.objects.filter(pk=membership.pk).update(role=role)
    detail = {"role": str(role)}
    record_event(
        team=membership.team, actor=actor, action="member.changed", object_id=membership.user_id, detail=detail
    )


@transaction.atomic
def remove_member(membership: Membership, *, actor: str) -> None:
    """Take a person out of the team; what they said and made stays. Raises Conflict for the last owner, NotFound for
    who was taken out a moment ago."""
    _keep_an_owner(membership, role=None)
    Membership.objects.filter(pk=membership.pk).delete()
    record_event(team=membership.team, actor=actor, action="member.removed", object_id=membership.user_id)


def _keep_an_owner(membership: Membership, *, role: Role | None) -> None:
    """Under the team's lock: of two owners who leave at the same moment the second one stays."""
    Team.objects.select_for_update().get(pk=membership.team_id)
    if not Membership.objects.filter(pk=membership.pk).exists():
        raise NotFound(NO_MEMBER)
    owners = Membership.objects.filter(team=membership.team_id, role=Role.OWNER)
    if role != Role.OWNER and not owners.exclude(pk=membership.pk).exists():
        raise Conflict("a team needs an owner: make somebody else one first", field="role")


def list_members(team: Team) -> list[Membership]:
    """Return the team's members by e-mail."""
    return list(Membership.objects.filter(team=team).select_related("user").order_by("user__email"))


def find_member(*, team: Team, user_id: str) -> Membership:
    """Return a member of the team. Raises NotFound."""
    known = Membership.objects.select_related("user", "team").filter(team=team)
    membership = known.filter(user=user_id).first() if is_id(user_id, "user") else None
    if membership is None:
        raise NotFound(NO_MEMBER)
    return membership


@transaction.atomic
def create_project(*, team: Team, name: str, actor: str, slug: str = "") -> Project:
    """Create a project; its slug is unique over all teams since it stands in addresses."""
    slug = slug or _make_slug(name)
    if Project.objects.filter(slug=slug).exists():
        raise Conflict(f"the address /p/{slug}/ is taken; choose another name", field="name")
    project = Project.objects.create(team=team, name=name, slug=slug)
    record_event(team=team, actor=actor, action="project.created", object_id=project.id)
    return project


def _make_slug(name: str) -> str:
    """Return the name as it stands in addresses, cut to what they hold."""
    slug = slugify(name)[:SLUG_MAX_LENGTH].strip("-_")
    if not slug:
        raise InvalidInput("the name needs at least one letter or digit", field="name")
    return slug


@transaction.atomic
def create_agent(*, project: Project, name: str, actor: str) -> Agent:
    """Create an agent in a project."""
    slug = _make_slug(name)
    Project.objects.select_for_update().get(pk=project.pk)
    if Agent.objects.filter(project=project, slug=slug).exists():
        raise Conflict(f"this project has an agent {slug} already", field="name")
    agent = Agent.objects.create(project=project, name=name, slug=slug)
    record_event(team=project.team, actor=actor, action="agent.created", object_id=agent.id)
    return agent


@transaction.atomic
def create_key(
    *,
    agent: Agent,
    actor: str,
    name: str = "",
    scope: Scope = Scope.AGENT,
    created_by: User | None = None,
    expires_at: datetime | None = None,
    is_one_session: bool = False,
) -> tuple[ApiKey, str]:
    """Return the new key and its secret. The secret exists nowhere else: show it now or never.

    `is_one_session`: calls with it are one session, whatever marks they bear; for a program that runs one episode.
    """
    secret = ApiKey.make_secret()
    key = ApiKey.objects.create(
        agent=agent,
        name=name,
        scope=scope,
        prefix=secret[:9],
        last_four=secret[-4:],
        sha256=hash_key(secret),
        created_by=created_by,
        expires_at=expires_at,
        is_one_session=is_one_session,
    )
    record_event(team=agent.project.team, actor=actor, action="key.created", object_id=key.id, detail={"scope": scope})
    notify_processes(ROUTES_CHANGED)
    return key, secret


@transaction.atomic
def disable_key(*, key: ApiKey, actor: str) -> None:
    """Switch a key off for good; gateways hear of it at once."""
    if ApiKey.objects.filter(pk=key.pk, disabled_at=None).update(disabled_at=timezone.now()) != 1:
        raise Conflict("this key is switched off already")
    record_event(team=key.agent.project.team, actor=actor, action="key.disabled", object_id=key.id)
    notify_processes(ROUTES_CHANGED)


@transaction.atomic
def set_limits(target: Team | Project | ApiKey, *, limits: Mapping[str, int | None], actor: str) -> None:
    """Set the limits that are named, None for none; gateways hear of it at once."""
    for name, limit in limits.items():
        if name not in LIMIT_NAMES:
            raise InvalidInput(f"there is no such limit; there are {', '.join(LIMIT_NAMES)}", field=name)
        if limit is not None and not 1 <= limit <= HIGHEST_LIMIT:
            raise InvalidInput(f"a limit is a whole number from 1 to {HIGHEST_LIMIT}, or null for none", field=name)
    type(target).objects.filter(pk=target.pk).update(**limits)
    target.refresh_from_db(fields=LIMIT_NAMES)
    detail = {name: "none" if limit is None else str(limit) for name, limit in limits.items()}
    record_event(team=_team_of(target), actor=actor, action="limits.set", object_id=target.id, detail=detail)
    notify_processes(ROUTES_CHANGED)


def _team_of(target: Team | Project | ApiKey) -> Team:
    if isinstance(target, ApiKey):
        return target.agent.project.team
    return target.team if isinstance(target, Project) else target


@transaction.atomic
def set_capture(
    *,
    agent: Agent,
    actor: str,
    mode: CaptureMode,
    patterns: Sequence[str] | None = None,
    own_patterns: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Say what the pool keeps of the agent's calls from now on; patterns that are not given stay as they are."""
    built_in = list(agent.patterns if patterns is None else dict.fromkeys(patterns))
    own = [dict(pattern) for pattern in (agent.own_patterns if own_patterns is None else own_patterns)]
    _check_patterns(built_in, own)
    if mode == CaptureMode.REDACT and not built_in and not own:
        raise InvalidInput("say what is to be taken out: a pattern at least", field="patterns")
    Agent.objects.filter(pk=agent.pk).update(capture=mode, patterns=built_in, own_patterns=own)
    agent.refresh_from_db(fields=["capture", "patterns", "own_patterns"])
    detail = {"mode": str(mode), "patterns": ", ".join([*built_in, *(pattern["name"] for pattern in own)])}
    record_event(team=agent.project.team, actor=actor, action="capture.set", object_id=agent.id, detail=detail)
    notify_processes(ROUTES_CHANGED)


def _check_patterns(built_in: Sequence[str], own: Sequence[Mapping[str, str]]) -> None:
    for name in built_in:
        if name not in BUILT_IN_NAMES:
            known = ", ".join(BUILT_IN_NAMES)
            raise InvalidInput(f"there is no built-in pattern {name!r}; there are {known}", field="patterns")
    if len(own) > MAX_OWN_PATTERNS:
        raise InvalidInput(f"an agent may have {MAX_OWN_PATTERNS} patterns of its own", field="own_patterns")
    names = [pattern["name"] for pattern in own]
    if len({*names, *BUILT_IN_NAMES}) < len(names) + len(BUILT_IN_NAMES):
        raise InvalidInput("each pattern needs a name of its own, other than the built-in ones", field="own_patterns")
    for pattern in own:
        if not _PATTERN_NAME.fullmatch(pattern["name"]):
            raise InvalidInput(
                f"a pattern's name has up to 20 letters, digits, - and _; {pattern['name']!r} is none",
                field="own_patterns",
            )
        try:
            check_pattern(pattern["pattern"])
        except BadPattern as error:
            raise InvalidInput(f"the pattern {pattern['name']!r}: {error}", field="own_patterns") from error


def mark_keys_used(uses: Mapping[str, datetime]) -> None:
    """Keep when each key was last used: key id → when. A use that is not a minute newer than the one known is not."""
    known = dict(ApiKey.objects.filter(pk__in=uses).values_list("pk", "last_used_at"))
    for key_id, used_at in sorted(uses.items()):
        last = known.get(key_id)
        if last is not None and last >= used_at - USE_IS_WRITTEN_EVERY:
            continue
        stale = Q(last_used_at=None) | Q(last_used_at__lt=used_at - USE_IS_WRITTEN_EVERY)
        ApiKey.objects.filter(stale, pk=key_id).update(last_used_at=used_at)


@transaction.atomic
def count_passed_calls(counts: Mapping[str, int]) -> None:
    """Add to the number of calls that passed through uncaptured today: agent id → calls."""
    today = timezone.now().date()
    for agent_id in Agent.objects.filter(pk__in=counts).order_by("pk").values_list("pk", flat=True):
        PassedCalls.objects.update_or_create(
            agent_id=agent_id,
            day=today,
            defaults={"n_calls": F("n_calls") + counts[agent_id]},
            create_defaults={"n_calls": counts[agent_id]},
        )


def record_event(*, team: Team, actor: str, action: str, object_id: str, detail: dict[str, str] | None = None) -> None:
    """Add a line to the team's audit log."""
    AuditEvent.objects.create(team=team, actor=actor, action=action, object_id=object_id, detail=detail or {})


def find_agent(*, caller: Caller, project: Project, slug: str | None) -> Agent:
    """Return the agent that the caller speaks for: a key's own, or the project's agent that is named."""
    if slug is None and caller.key is not None:
        return caller.key.agent
    if slug is None:
        raise InvalidInput("say for which agent: its slug", field="agent")
    known = Agent.objects.select_related("project__team").filter(project=project)
    agent = known.filter(slug=slug).first() if is_storable(slug) else None
    if agent is None:
        raise NotFound(f"this project has no agent {slug!r}")
    return agent


def find_agent_by_id(*, caller: Caller, agent_id: str, role: Role = Role.VIEWER) -> Agent:
    """Return the agent if the caller has `role` in its project; another team's id looks like a missing one."""
    known = Agent.objects.select_related("project__team")
    agent = known.filter(pk=agent_id).first() if is_id(agent_id, "agnt") else None
    if agent is None or caller.role_in(agent.project) is None:
        raise NotFound(f"there is no agent {agent_id!r}")
    require_role(caller, agent.project, role)
    return agent


def find_key(*, caller: Caller, key_id: str, role: Role = Role.VIEWER) -> ApiKey:
    """Return the key if the caller has `role` in its project; another team's id looks like a missing one."""
    known = ApiKey.objects.select_related("agent__project__team")
    key = known.filter(pk=key_id).first() if is_id(key_id, "key") else None
    if key is None or caller.role_in(key.agent.project) is None:
        raise NotFound(f"there is no key {key_id!r}")
    require_role(caller, key.agent.project, role)
    return key


def find_team(*, caller: Caller, team_id: str, role: Role = Role.VIEWER) -> Team:
    """Return the team if the caller has `role` in it; another team's id looks like a missing one."""
    team = Team.objects.filter(pk=team_id).first() if is_id(team_id, "team") else None
    has = caller.role_in_team(team) if team else None
    if team is None or has is None:
        raise NotFound(f"there is no team {team_id!r}")
    if caller.key is not None and not has.includes(role):
        raise Forbidden(
            "a key belongs to one project, and this holds for all projects of the team: let an owner log in (a "
            "project's own limits are set by PATCH /api/v1/projects/<slug>/limits, with a key of scope admin)"
        )
    require_enough(caller, has, role)
    return team


def list_projects(*, caller: Caller) -> list[Project]:
    """Return the projects that the caller sees, by name; a key sees its own."""
    if caller.key is not None:
        return [caller.key.agent.project]
    return list(caller.user.projects()) if caller.user else []
