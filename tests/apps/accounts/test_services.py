"""Making people, teams, projects, agents and keys."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from apps.accounts import services
from apps.accounts.models import Agent, ApiKey, AuditEvent, Membership, Project, Role, Scope, Team, User, hash_key
from apps.core.errors import Conflict, InvalidInput, NotFound
from tests.factories.accounts import ApiKeyFactory, UserFactory

pytestmark = pytest.mark.django_db


def test_a_person_logs_in_by_e_mail_in_any_case() -> None:
    services.create_user(email="Ada@Example.org", password="correct horse battery")
    assert User.objects.get_by_natural_key("ADA@example.ORG").check_password("correct horse battery")
    with pytest.raises(Conflict):
        services.create_user(email="ada@example.org", password="another password")


@pytest.mark.django_db(transaction=True)
def test_of_several_accounts_for_one_address_at_one_moment_one_is_made() -> None:
    barrier = Barrier(4)

    def create(place: int) -> str:
        barrier.wait(timeout=30)
        try:
            return services.create_user(email="ada@example.org", password=f"correct horse {place}").email
        except Conflict as error:
            return error.message
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(create, range(4)))
    assert sorted(said) == ["ada@example.org", *["ada@example.org has an account already"] * 3]


def test_the_database_too_keeps_e_mails_unique_in_any_case() -> None:
    UserFactory.create(email="ada@example.org")
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.bulk_create([User(email="ADA@example.org")])


def test_a_team_has_an_owner(owner: User) -> None:
    team = services.create_team(name="New", owner=owner)
    assert Membership.objects.get(team=team, user=owner).role == Role.OWNER


def test_the_audit_log_takes_the_longest_address(db: None) -> None:
    owner = UserFactory.create(email=f"{'a' * 60}@{'.'.join(['b' * 60] * 3)}.org")
    assert services.create_team(name="Long", owner=owner).memberships.count() == 1


def test_the_audit_log_is_never_changed(owner: User) -> None:
    services.create_team(name="New", owner=owner)
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        AuditEvent.objects.update(actor="nobody")


def test_a_projects_address_is_unique_over_all_teams(team: Team, other_project: Project) -> None:
    assert services.create_project(team=team, name="My Shop", actor="x").slug == "my-shop"
    with pytest.raises(Conflict):
        services.create_project(team=team, name="Elsewhere", actor="x")
    with pytest.raises(InvalidInput):
        services.create_project(team=team, name="§§", actor="x")


def test_a_secret_is_kept_as_a_hash_only(agent: Agent) -> None:
    key, secret = services.create_key(agent=agent, actor="x", scope=Scope.MANAGE)
    assert secret.startswith("claw-")
    assert len(secret) > 40
    assert secret not in {str(value) for value in vars(ApiKey.objects.get()).values()}
    assert key.sha256 == hash_key(secret)
    assert str(key) == f"{secret[:9]}…{secret[-4:]}"


def test_only_keys_in_force_are_usable(agent: Agent, key: ApiKey) -> None:
    now = timezone.now()
    ApiKeyFactory.create(agent=agent, expires_at=now - timedelta(seconds=1))
    ApiKeyFactory.create(agent=agent, disabled_at=now)
    later = ApiKeyFactory.create(agent=agent, expires_at=now + timedelta(days=1))
    assert set(ApiKey.objects.usable()) == {key, later}


def test_a_keys_use_is_kept_to_the_minute(agent: Agent, key: ApiKey) -> None:
    first, other = timezone.now(), ApiKeyFactory.create(agent=agent)
    services.mark_keys_used({key.id: first, "key_gone": first})
    for seconds, kept in ((-30, 0), (59, 0), (61, 61)):
        services.mark_keys_used({key.id: first + timedelta(seconds=seconds)})
        key.refresh_from_db()
        assert key.last_used_at == first + timedelta(seconds=kept)
    other.refresh_from_db()
    assert other.last_used_at is None


def test_a_key_is_switched_off_once(key: ApiKey) -> None:
    services.disable_key(key=key, actor="x")
    with pytest.raises(Conflict):
        services.disable_key(key=key, actor="x")


def test_changes_are_in_the_audit_log(team: Team, owner: User) -> None:
    project = services.create_project(team=team, name="Audited", actor=owner.email)
    agent = services.create_agent(project=project, name="A", actor=owner.email)
    key, _ = services.create_key(agent=agent, actor=owner.email)
    services.disable_key(key=key, actor=owner.email)
    events = AuditEvent.objects.filter(team=team).order_by("id").values_list("action", "object_id")
    assert list(events) == [
        ("project.created", project.id),
        ("agent.created", agent.id),
        ("key.created", key.id),
        ("key.disabled", key.id),
    ]


def test_a_long_name_is_cut_to_what_an_address_holds(team: Team, project: Project, owner: User) -> None:
    name = "clerk" * 18
    agent = services.create_agent(project=project, name=name, actor=owner.email)
    assert (agent.name, len(agent.slug)) == (name, 60)
    assert len(services.create_project(team=team, name=name, actor=owner.email).slug) == 60


def test_the_database_too_knows_no_limit_of_nought(key: ApiKey) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ApiKey.objects.update(max_in_flight=0)


def test_limits_are_checked_at_every_door(key: ApiKey) -> None:
    for limits in ({"per_hour": 1}, {"max_in_flight": 0}, {"tokens_per_day": 10**13}):
        with pytest.raises(InvalidInput):
            services.set_limits(key, limits=limits, actor="x")


def test_who_was_taken_out_a_moment_ago_is_neither_changed_nor_taken_out_again(
    team: Team, owner: User, viewer: User
) -> None:
    known = Membership.objects.select_related("team").get(user=viewer)
    services.remove_member(Membership.objects.get(user=viewer), actor="somebody")
    with pytest.raises(NotFound):
        services.change_role(known, role=Role.TRAINER, actor="another")
    with pytest.raises(NotFound):
        services.remove_member(known, actor="another")
    assert [event.action for event in AuditEvent.objects.filter(team=team)] == ["member.removed"]
