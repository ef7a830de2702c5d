"""Tokens that stand in web pages."""

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.accounts.models import Agent, User
from apps.core.ids import ID_MAX_LENGTH, new_id

DEFAULT_PER_MINUTE = 120


def new_token_id() -> str:
    return new_id("thmb")


class ThumbTokenQuerySet(models.QuerySet["ThumbToken"]):
    def usable(self) -> "ThumbTokenQuerySet":
        """Neither switched off nor expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), disabled_at=None)


class ThumbToken(models.Model):
    """Lets anybody who has it judge an agent's answers. Kept as it is: it stands in public pages anyway."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_token_id, editable=False)
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="thumb_tokens")
    name = models.CharField(max_length=100, blank=True)
    token = models.CharField(max_length=80, unique=True, editable=False)
    origins = ArrayField(models.CharField(max_length=200), default=list, blank=True)  # [] : from any page
    per_minute = models.PositiveIntegerField(default=DEFAULT_PER_MINUTE, validators=[MinValueValidator(1)])
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)

    objects = ThumbTokenQuerySet.as_manager()

    class Meta:
        app_label = "feedback"
        constraints = [models.CheckConstraint(condition=Q(per_minute__gte=1), name="thumb_token_takes_some")]

    def __str__(self) -> str:
        return f"{self.token[:13]}…"
