"""Who is calling, and what they may do: one `Caller` for people and keys. Every door asks here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from apps.accounts.models import ApiKey, Project, Role, Scope, Team, User
from apps.core.errors import Forbidden, NotFound
from apps.core.texts import is_storable

ROLE_OF_SCOPE: Mapping[str, Role] = {Scope.AGENT: Role.REVIEWER, Scope.MANAGE: Role.TRAINER, Scope.ADMIN: Role.OWNER}


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A person or a key. A key belongs to one agent, so it sees that agent's project only.

    It lives for one request or one piece of work: a person's role in a team is read once.
    """

    user: User | None = None
    key: ApiKey | None = None
    _roles: dict[str, Role | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """For the audit log."""
        if self.key is not None:
            return f"key {self.key}"
        return self.user.email if self.user else "nobody"

    def role_in(self, project: Project) -> Role | None:
        """The caller's role in the project's team; None for a stranger. A key's is its scope's."""
        if self.key is not None:
            if self.key.agent.project_id != project.id:
                return None
            return ROLE_OF_SCOPE[self.key.scope]
        return self._role_of_user(project.team_id)

    def role_in_team(self, team: Team) -> Role | None:
        """The caller's role in a team; None for a stranger. A key may look at its project's team."""
        if self.key is not None:
            return Role.VIEWER if self.key.agent.project.team_id == team.id else None
        return self._role_of_user(team.id)

    def _role_of_user(self, team_id: str) -> Role | None:
        if self.user is not None and team_id not in self._roles:
            self._roles[team_id] = self.user.role_in_team(team_id)
        return self._roles.get(team_id)


def require_role(caller: Caller, project: Project, role: Role) -> None:
    """Raise NotFound for strangers (they must not learn that it exists), Forbidden for too small a role."""
    has = caller.role_in(project)
    if has is None:
        raise NotFound("no such project")
    require_enough(caller, has, role)


def require_enough(caller: Caller, has: Role, role: Role) -> None:
    """Raise Forbidden when the role that the caller has is too small; it says whom to ask, or which key to use."""
    if has.includes(role):
        return
    needs = f"this needs the role {role.label.lower()}"
    if caller.key is None:
        raise Forbidden(f"{needs}; you are {has.label.lower()}: ask an owner of the team")
    scope = next(scope for scope, given in ROLE_OF_SCOPE.items() if given.includes(role))
    raise Forbidden(f"{needs}; this key's scope is {caller.key.scope}: use a key of scope {scope}")


def find_project(caller: Caller, slug: str | None, *, role: Role = Role.VIEWER) -> Project:
    """Return the project `slug`, or the key's own when `slug` is None, if the caller has `role` in it."""
    if slug is None:
        if caller.key is None:
            raise NotFound("say which project: ?project=<slug>")
        project = caller.key.agent.project
    else:
        known = Project.objects.select_related("team")
        found = known.filter(slug=slug).first() if is_storable(slug) else None
        if found is None:
            raise NotFound("no such project")
        project = found
    require_role(caller, project, role)
    return project
