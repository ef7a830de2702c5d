"""Policies, versions, aliases, engines and what is loaded where: which weights speak under which name."""

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.ids import ID_MAX_LENGTH, new_id


def new_policy_id() -> str:
    return new_id("plcy")


def new_version_id() -> str:
    return new_id("ver")


def new_engine_id() -> str:
    return new_id("engn")


def new_teacher_id() -> str:
    return new_id("tchr")


class Policy(models.Model):
    """The model line of a project. Clients ask for it by `slug` as the model's name."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_policy_id, editable=False)
    project = models.OneToOneField(Project, on_delete=models.PROTECT, related_name="policy")
    slug = models.SlugField(max_length=60)
    base_model = models.CharField(max_length=200)  # the name under which engines serve the base weights
    base_model_dir = models.CharField(max_length=500)  # where trainers read them
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name_plural = "policies"

    def __str__(self) -> str:
        return self.slug


class VersionState(models.TextChoices):
    PUBLISHED = "published"  # files are written, nothing serves them yet
    READY = "ready"  # verified on an engine
    FAILED = "failed"  # did not pass; `error` says why


class VersionKind(models.TextChoices):
    BASE = "base"  # number 0: what engines start with
    ADAPTER = "adapter"  # LoRA: engines hold many, each under its own name
    WHOLE = "whole"  # every weight: an engine holds one, in the place and under the name of its base


class VersionQuerySet(models.QuerySet["Version"]):
    def idle(self) -> "VersionQuerySet":
        """Those with files of their own that no alias names, no engine holds, and nobody has still to check."""
        held = Engine.objects.filter(weights=models.OuterRef("pk"))
        loaded = Deployment.objects.filter(version=models.OuterRef("pk"), state=DeploymentState.LOADED)
        judged = self.exclude(kind=VersionKind.BASE).exclude(state=VersionState.PUBLISHED)
        return judged.filter(~models.Exists(held), ~models.Exists(loaded), aliases=None)


class Version(models.Model):
    """Weights: the base (number 0), a LoRA adapter or a whole model. Never changed, never renamed."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_version_id, editable=False)
    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="children")
    kind = models.CharField(max_length=10, choices=VersionKind.choices, default=VersionKind.BASE)
    engine_name = models.CharField(max_length=200)  # model name to ask an engine for
    adapter_path = models.CharField(max_length=500, blank=True)  # folder of the adapter, or of the whole model
    sha256 = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=10, choices=VersionState.choices, default=VersionState.PUBLISHED)
    error = models.TextField(blank=True)
    lineage = models.JSONField(default=dict)  # run id, step, number of trajectories, base model
    probe = models.JSONField(default=dict)  # token_ids, logprobs: what the trainer expects of the engine
    verification = models.JSONField(default=dict)  # verification.Report of the worst engine, and of each
    goes_live = models.BooleanField(default=True)  # becomes `live` as soon as it is verified
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ready_at = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)  # when its last alias left it
    given_up_at = models.DateTimeField(null=True, blank=True, editable=False)  # nothing may load it: its files go

    objects = VersionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["policy", "number"], name="version_number_is_unique"),
            models.UniqueConstraint(
                fields=["engine_name"], condition=models.Q(kind="adapter"), name="adapter_name_is_never_reused"
            ),
            models.CheckConstraint(
                condition=models.Q(kind="base", adapter_path="")
                | (models.Q(kind__in=["adapter", "whole"]) & ~models.Q(adapter_path="")),
                name="version_has_files_unless_base",
            ),
            models.CheckConstraint(condition=models.Q(state__in=VersionState.values), name="version_state_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.policy.slug}@v{self.number}"

    @property
    def is_base(self) -> bool:
        return self.kind == VersionKind.BASE

    @property
    def is_adapter(self) -> bool:
        return self.kind == VersionKind.ADAPTER

    @property
    def is_whole(self) -> bool:
        return self.kind == VersionKind.WHOLE


class AliasName(models.TextChoices):
    LIVE = "live"
    CANDIDATE = "candidate"
    PREVIOUS = "previous"


class Alias(models.Model):
    """A moving name for a version of a policy."""

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=10, choices=AliasName.choices)
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="aliases")
    switched_at = models.DateTimeField(default=timezone.now)
    live_share = models.PositiveSmallIntegerField(default=0)  # per cent of live's calls; live keeps what is left

    class Meta:
        verbose_name_plural = "aliases"
        constraints = [
            models.UniqueConstraint(fields=["policy", "name"], name="alias_is_unique_in_policy"),
            models.CheckConstraint(
                condition=models.Q(live_share=0) | (models.Q(live_share__lt=100) & ~models.Q(name="live")),
                name="alias_share_leaves_live_some",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.policy_id}@{self.name}"


class EngineState(models.TextChoices):
    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class EngineKind(models.TextChoices):
    VLLM = "vllm"  # a rollout replica of the platform: token-exact, takes adapters
    OPENAI = "openai"  # any provider with OpenAI's API: text only, belongs to a project


class EngineQuerySet(models.QuerySet["Engine"]):
    def replicas(self) -> "EngineQuerySet":
        """The platform's own engines, which all projects share."""
        return self.filter(kind=EngineKind.VLLM)

    def providers(self) -> "EngineQuerySet":
        """Engines of other people's models; each is seen by its own project alone."""
        return self.exclude(kind=EngineKind.VLLM)


class Engine(models.Model):
    """One server that answers model calls: a rollout replica of ours, or a provider."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_engine_id, editable=False)
    kind = models.CharField(max_length=10, choices=EngineKind.choices, default=EngineKind.VLLM, editable=False)
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, null=True, blank=True, related_name="engines", editable=False
    )
    base_url = models.URLField()  # a replica's without /v1, a provider's as its clients are given it
    sealed_credential = models.TextField(blank=True, editable=False)  # see credentials.py
    credential_last_four = models.CharField(max_length=4, blank=True, editable=False)
    base_model = models.CharField(max_length=200, blank=True)  # learned from the engine
    max_model_len = models.PositiveIntegerField(null=True, blank=True, editable=False)  # learned from it too, in tokens
    weights = models.ForeignKey(
        Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+", editable=False
    )  # the whole model in the place of its base; None: the base
    moving_since = models.DateTimeField(null=True, blank=True, editable=False)  # its weights are being changed
    state = models.CharField(max_length=10, choices=EngineState.choices, default=EngineState.UNKNOWN)
    is_enabled = models.BooleanField(default=True)
    max_in_flight = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="calls at once per gateway process"
    )
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)  # a provider, whether it was up or not
    last_seen_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = EngineQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["base_url"], condition=models.Q(project=None), name="replica_address_is_unique"
            ),
            models.UniqueConstraint(fields=["project", "base_url"], name="provider_address_is_unique_in_project"),
            models.CheckConstraint(
                condition=models.Q(kind=EngineKind.VLLM, project=None, sealed_credential="")
                | models.Q(kind=EngineKind.OPENAI, project__isnull=False),
                name="engine_is_a_replica_or_a_projects_provider",
            ),
            models.CheckConstraint(
                condition=models.Q(max_in_flight=None) | models.Q(max_in_flight__gte=1), name="engine_takes_some_call"
            ),
        ]

    def __str__(self) -> str:
        return self.base_url


class Teacher(models.Model):
    """A provider's model under a name of the project: agents ask for it like for the policy, text only."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_teacher_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="teachers")
    engine = models.ForeignKey(Engine, on_delete=models.PROTECT, related_name="teachers")
    name = models.CharField(max_length=100)
    model = models.CharField(max_length=200)  # as the provider calls it
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="teacher_name_is_unique_in_project")]

    def __str__(self) -> str:
        return self.name


class DeploymentState(models.TextChoices):
    LOADED = "loaded"
    UNLOADED = "unloaded"
    FAILED = "failed"


class Deployment(models.Model):
    """That a version is, or was, on an engine. The base weights need none."""

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="deployments")
    engine = models.ForeignKey(Engine, on_delete=models.CASCADE, related_name="deployments")
    state = models.CharField(max_length=10, choices=DeploymentState.choices)
    changed_at = models.DateTimeField(default=timezone.now)
    error = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "engine"], name="deployment_is_unique")]

    def __str__(self) -> str:
        return f"{self.version_id} {self.state} on {self.engine_id}"
