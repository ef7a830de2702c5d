"""Making and switching off tokens, and judging by one. Knows no HTTP."""

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.access import Caller, require_enough, require_role
from apps.accounts.models import Agent, Project, Role
from apps.accounts.services import record_event
from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.texts import is_storable
from apps.feedback.models import Label
from apps.feedback.score_schema import REWARD_FIELD
from apps.feedback.services import Answer, add_vote, take_back_vote
from apps.feedback.thumbs.limits import count_thumb
from apps.feedback.thumbs.models import DEFAULT_PER_MINUTE, ThumbToken
from apps.trajectories.models import Step
from apps.trajectories.services import find_step_by_response

PREFIX = "clawthumb-"
MAX_TOKENS = 50
MAX_ORIGINS = 20
MAX_ORIGIN = 200
MAX_PORT = 65_535
MAX_PER_MINUTE = 100_000
USE_IS_WRITTEN_EVERY = timedelta(minutes=1)
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_ORIGIN = re.compile(rf"(https?)://({_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::([1-9][0-9]{{0,4}}))?")
_AN_ORIGIN = "write https:// and a host, with a port if it has one of its own, as in https://shop.example"
_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, kw_only=True)
class TokenCaller(Caller):
    """Whoever shows a token, as finding a step sees it: of the token's project, and of no other."""

    token: ThumbToken

    def role_in(self, project: Project) -> Role | None:
        return Role.VIEWER if project.pk == self.token.agent.project_id else None


@transaction.atomic
def create_token(
    *,
    caller: Caller,
    agent: Agent,
    name: str = "",
    origins: Sequence[str] = (),
    per_minute: int = DEFAULT_PER_MINUTE,
) -> ThumbToken:
    """Return a new token for an agent's answers. `origins` are the pages' (https://shop.example); none: any page.

    Raises InvalidInput, Forbidden for reviewers.
    """
    require_role(caller, agent.project, Role.TRAINER)
    if len(name) > 100 or not is_storable(name):
        raise InvalidInput("a name has at most 100 characters", field="name")
    if len(origins) > MAX_ORIGINS:
        raise InvalidInput(f"a token has at most {MAX_ORIGINS} origins", field="origins")
    pages = [_read_origin(origin) for origin in origins]
    if not 1 <= per_minute <= MAX_PER_MINUTE:
        raise InvalidInput(f"thumbs a minute are 1 to {MAX_PER_MINUTE}", field="per_minute")
    Agent.objects.select_for_update().get(pk=agent.pk)
    if ThumbToken.objects.usable().filter(agent=agent).count() >= MAX_TOKENS:
        raise InvalidInput(f"an agent has at most {MAX_TOKENS} tokens: switch one off first")
    token = ThumbToken.objects.create(
        agent=agent,
        name=name,
        token=PREFIX + secrets.token_urlsafe(24),
        origins=pages,
        per_minute=per_minute,
        created_by=caller.user,
    )
    record_event(team=agent.project.team, actor=caller.name, action="thumb_token.created", object_id=token.pk)
    return token


def _read_origin(text: str) -> str:
    """Return an origin as browsers send it. Raises InvalidInput for what none sends: no page could use the token."""
    found = _ORIGIN.fullmatch(text.lower()) if len(text) <= MAX_ORIGIN else None
    if found is None:
        raise InvalidInput(f"{text[:80]!r} is no origin: {_AN_ORIGIN}", field="origins")
    scheme, host, port = found.groups()
    is_address = host.startswith("[") or host.rpartition(".")[2].isdecimal()
    try:
        if is_address:
            ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise InvalidInput(f"{host[:80]} is no address: {_AN_ORIGIN}", field="origins") from None
    if port is not None and int(port) > MAX_PORT:
        raise InvalidInput(f"a port lies from 1 to {MAX_PORT}", field="origins")
    return f"{scheme}://{host}" if port is None or int(port) == _DEFAULT_PORTS[scheme] else f"{scheme}://{host}:{port}"


def switch_off_token(*, caller: Caller, token: ThumbToken) -> ThumbToken:
    """Have the token open nothing any more. Saying it twice is fine; what was said by it stays."""
    project = token.agent.project
    require_role(caller, project, Role.TRAINER)
    if ThumbToken.objects.filter(pk=token.pk, disabled_at=None).update(disabled_at=timezone.now()):
        record_event(team=project.team, actor=caller.name, action="thumb_token.switched_off", object_id=token.pk)
    token.refresh_from_db()
    return token


def list_tokens(project: Project) -> QuerySet[ThumbToken]:
    """Return the project's tokens, for paging."""
    return ThumbToken.objects.filter(agent__project=project).select_related("agent", "created_by")


def find_token(*, caller: Caller, token_id: str, role: Role = Role.VIEWER) -> ThumbToken:
    """Return a token if the caller has `role` in its project. Another team's looks like a missing one."""
    known = ThumbToken.objects.select_related("agent__project__team", "created_by")
    token = known.filter(pk=token_id).first() if is_id(token_id, "thmb") else None
    has = caller.role_in(token.agent.project) if token else None
    if token is None or has is None:
        raise NotFound(f"there is no token {token_id!r}")
    require_enough(caller, has, role)
    return token


def open_token(secret: str, *, origin: str, address: str) -> ThumbToken:
    """Return the token that a page shows, and count its use. Raises Forbidden, TooMany."""
    known = ThumbToken.objects.usable().select_related("agent__project__team")
    token = known.filter(token=secret).first() if secret.startswith(PREFIX) and is_storable(secret) else None
    if token is None:
        raise Forbidden("this token is unknown, expired or switched off")
    if token.origins and origin not in token.origins:
        raise Forbidden(f"this token is not for pages of {origin[:200] or 'no origin'}")
    count_thumb(token.pk, per_minute=token.per_minute, address=address)
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > USE_IS_WRITTEN_EVERY:
        ThumbToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def give_thumb(
    *, token: ThumbToken, response_id: str, value: float | None, text: str = "", end_user: str = ""
) -> Label:
    """Judge an answer by the id that the app was given, -1 to 1; None takes the same user's thumb back.

    A user's second thumb on an answer supersedes the first. Raises NotFound for answers of other agents.
    """
    step = _find_step(token, response_id)
    if value is None:
        return take_back_vote(token=token, end_user=end_user, step=step, field=REWARD_FIELD)
    return add_vote(token=token, end_user=end_user, answer=Answer(value=value, text=text, step=step))


def _find_step(token: ThumbToken, response_id: str) -> Step:
    step = find_step_by_response(caller=TokenCaller(token=token), response_id=response_id)
    if step.trajectory.agent_id != token.agent_id:
        raise NotFound(f"there is no answer {response_id!r}")
    return step
