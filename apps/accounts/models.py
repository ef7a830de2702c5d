"""People, teams, projects, memberships, agents, keys and the audit log: who may do what."""

import hashlib
import secrets
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

from apps.accounts.limited import Limited, limits_are_positive
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.core.redaction import BUILT_IN_NAMES

KEY_PREFIX = "claw-"
SLUG_MAX_LENGTH = 60
EMAIL_MAX_LENGTH = 254
SHOWN_DAYS = 30


def new_user_id() -> str:
    return new_id("user")


def new_team_id() -> str:
    return new_id("team")


def new_project_id() -> str:
    return new_id("proj")


def new_agent_id() -> str:
    return new_id("agnt")


def new_key_id() -> str:
    return new_id("key")


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """Create a person; an empty password means that they cannot log in yet."""
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.full_clean(exclude=["password"])
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, **{**fields, "is_staff": True, "is_superuser": True})

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email__iexact=username)


class User(AbstractBaseUser, PermissionsMixin):
    """A person; logs in by e-mail."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_user_id, editable=False)
    email = models.EmailField(max_length=EMAIL_MAX_LENGTH, unique=True)
    name = models.CharField(max_length=100, blank=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    date_joined = models.DateTimeField(default=timezone.now, editable=False)

    objects = UserManager()

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [
            models.UniqueConstraint(Lower("email"), name="user_email_is_unique_in_any_case"),
        ]

    def __str__(self) -> str:
        return self.email

    def projects(self) -> "models.QuerySet[Project]":
        """Projects of the teams that this person belongs to."""
        return Project.objects.filter(team__memberships__user=self).select_related("team").order_by("name")

    def owned_teams(self) -> "models.QuerySet[Team]":
        """Teams that the person is an owner of, by name."""
        return Team.objects.filter(memberships__user=self, memberships__role=Role.OWNER).order_by("name")

    def role_in(self, project: "Project") -> "Role | None":
        """The person's role in the project's team, None for a stranger."""
        return self.role_in_team(project.team_id)

    def role_in_team(self, team_id: str) -> "Role | None":
        """The person's role in the team, None for a stranger."""
        membership = Membership.objects.filter(user=self, team_id=team_id).first()
        return Role(membership.role) if membership else None


class Team(Limited):
    """The unit of tenancy: everything belongs to exactly one team."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_team_id, editable=False)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [limits_are_positive("team")]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do; each role includes those after it."""

    OWNER = "owner"
    TRAINER = "trainer"
    REVIEWER = "reviewer"
    VIEWER = "viewer"

    def includes(self, other: "Role") -> bool:
        """Say whether this role may do what `other` may."""
        order = list(Role)
        return order.index(self) <= order.index(other)


class Membership(models.Model):
    """A person in a team, with a role."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="membership_is_unique"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} is {self.role} in {self.team_id}"


class Project(Limited):
    """One policy line with its agents, pool and runs."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_project_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=100)
    slug = models.SlugField(max_length=SLUG_MAX_LENGTH, unique=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [limits_are_positive("project")]

    def __str__(self) -> str:
        return self.slug


class CaptureMode(models.TextChoices):
    """What the pool keeps of an agent's calls."""

    ON = "on"
    REDACT = "redact"  # what the patterns match is taken out before anything is stored
    OFF = "off"  # calls pass through; only their number is kept


def all_built_in_patterns() -> list[str]:
    return list(BUILT_IN_NAMES)


class Agent(models.Model):
    """A program that calls the gateway. Its keys say who speaks."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_agent_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="agents")
    name = models.CharField(max_length=100)
    slug = models.SlugField(max_length=SLUG_MAX_LENGTH)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    capture = models.CharField(max_length=10, choices=CaptureMode.choices, default=CaptureMode.ON)
    patterns = ArrayField(
        models.CharField(max_length=20), default=all_built_in_patterns, blank=True
    )  # built in, by name
    own_patterns = models.JSONField(default=list, blank=True)  # [{"name", "pattern"}], RE2

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "slug"], name="agent_slug_is_unique_in_project"),
            models.CheckConstraint(condition=models.Q(capture__in=CaptureMode.values), name="agent_capture_is_known"),
        ]

    def __str__(self) -> str:
        return self.slug

    def recent_passed_calls(self) -> "models.QuerySet[PassedCalls]":
        """Calls that passed through uncaptured, by day, the newest first."""
        return self.passed_calls.order_by("-day")[:SHOWN_DAYS]


class PassedCalls(models.Model):
    """How many calls of an agent passed through uncaptured on one UTC day."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="passed_calls")
    day = models.DateField()
    n_calls = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "passed calls"
        constraints = [models.UniqueConstraint(fields=["agent", "day"], name="passed_calls_are_counted_by_day")]

    def __str__(self) -> str:
        return f"{self.n_calls} of {self.agent_id} on {self.day}"


class Scope(models.TextChoices):
    """What a key may do. Each includes those before it."""

    AGENT = "agent"  # model calls, own project's trajectories, labels
    MANAGE = "manage"  # also runs and versions
    ADMIN = "admin"  # all that an owner may in the key's project: limits, providers, splits, keys


def hash_key(secret: str) -> str:
    """SHA-256 of a key, hex. The secret has 256 bits of chance, so a plain hash suffices and is fast."""
    return hashlib.sha256(secret.encode()).hexdigest()


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def usable(self, *, now: datetime | None = None) -> "ApiKeyQuerySet":
        """Keys that are neither switched off nor expired."""
        now = now or timezone.now()
        return self.filter(models.Q(disabled_at=None), models.Q(expires_at=None) | models.Q(expires_at__gt=now))


class ApiKey(Limited):
    """A secret by which an agent or a script speaks. Only its hash is kept; the secret is shown once."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_key_id, editable=False)
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100, blank=True)
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.AGENT)
    is_one_session = models.BooleanField(default=False, db_default=False)  # all its calls belong together
    prefix = models.CharField(max_length=12, editable=False)
    last_four = models.CharField(max_length=4, editable=False)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(scope__in=Scope.values), name="key_scope_is_known"),
            limits_are_positive("key"),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}…{self.last_four}"

    @staticmethod
    def make_secret() -> str:
        """Return a new secret: `claw-` and 256 random bits."""
        return KEY_PREFIX + secrets.token_urlsafe(32)

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()


class AuditEvent(models.Model):
    """Who did what to which object. A trigger refuses every change (`migrations/0005_audit.py`)."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    actor = models.CharField(max_length=254)  # a person's e-mail, or a key
    action = models.CharField(max_length=60)
    object_id = models.CharField(max_length=ID_MAX_LENGTH)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        indexes = [models.Index(fields=["team", "-at"], name="audit_by_team")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"
