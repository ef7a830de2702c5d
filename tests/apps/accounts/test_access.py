"""Who may do what: roles include each other, keys see one project, strangers learn nothing."""

import pytest

from apps.accounts.access import Caller, find_project, require_role
from apps.accounts.api.authentication import read_secret
from apps.accounts.models import ApiKey, Project, Role, Scope, User
from apps.core.errors import Forbidden, NotFound

pytestmark = pytest.mark.django_db


def test_roles_include_those_after_them() -> None:
    assert [[role.includes(other) for other in Role] for role in Role] == [
        [True, True, True, True],
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
    ]


def test_people_have_their_teams_role(project: Project, owner: User, viewer: User, stranger: User) -> None:
    roles = [Caller(user=person).role_in(project) for person in (owner, viewer, stranger)]
    assert roles == [Role.OWNER, Role.VIEWER, None]


def test_keys_have_a_role_by_scope_in_their_own_project(
    project: Project, other_project: Project, key: ApiKey, manage_key: ApiKey
) -> None:
    assert Caller(key=key).role_in(project) == Role.REVIEWER
    assert Caller(key=manage_key).role_in(project) == Role.TRAINER
    assert Caller(key=manage_key).role_in(other_project) is None
    manage_key.scope = Scope.ADMIN
    assert Caller(key=manage_key).role_in(project) == Role.OWNER
    assert Caller(key=manage_key).role_in(other_project) is None
    assert Caller(key=manage_key).role_in_team(project.team) == Role.VIEWER
    assert Caller(key=manage_key).role_in_team(other_project.team) is None


def test_a_key_of_too_small_a_scope_is_told_which_it_needs(project: Project, key: ApiKey) -> None:
    for role, scope in ((Role.TRAINER, "manage"), (Role.OWNER, "admin")):
        with pytest.raises(Forbidden, match=f"this key's scope is agent: use a key of scope {scope}"):
            require_role(Caller(key=key), project, role)


def test_nobody_has_no_role(project: Project) -> None:
    assert Caller().role_in(project) is None
    assert Caller().name == "nobody"


def test_too_small_a_role_is_said_and_no_role_is_not(project: Project, viewer: User, stranger: User) -> None:
    with pytest.raises(Forbidden, match="trainer"):
        require_role(Caller(user=viewer), project, Role.TRAINER)
    with pytest.raises(NotFound):
        require_role(Caller(user=stranger), project, Role.VIEWER)


def test_a_key_needs_no_project_name(project: Project, other_project: Project, key: ApiKey, owner: User) -> None:
    assert find_project(Caller(key=key), None) == project
    assert find_project(Caller(user=owner), "shop") == project
    for caller, slug in ((Caller(user=owner), None), (Caller(key=key), "elsewhere"), (Caller(user=owner), "nowhere")):
        with pytest.raises(NotFound):
            find_project(caller, slug)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "secret"),
    [
        ("Bearer claw-a", "", "claw-a"),
        ("bearer  claw-a ", "", "claw-a"),
        ("", "claw-a", "claw-a"),
        ("Bearer claw-a", "claw-b", "claw-a"),
        ("Basic abc", "claw-b", "claw-b"),
        ("Bearer ", "claw-b", "claw-b"),
        ("", "", ""),
    ],
)
def test_the_secret_comes_in_either_header(authorization: str, x_api_key: str, secret: str) -> None:
    assert read_secret(authorization, x_api_key) == secret
