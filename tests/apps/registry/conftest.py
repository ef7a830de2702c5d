"""A policy on a fake engine, and adapters on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.accounts.models import Project
from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import Probe
from apps.registry import services
from apps.registry.models import Alias, AliasName, Engine, Policy, Version, VersionKind
from apps.registry.reconcile import reconcile_engines
from tests.fakes.adapter_engine import FakeEngine, serve_engine, token_logprob

TOKENS = (5, 6, 7, 8)
PROBE = Probe(token_ids=TOKENS, likely_ids=TOKENS[1:], logprobs=tuple(token_logprob("", token) for token in TOKENS[1:]))


@pytest.fixture(autouse=True)
def float32(settings: object) -> None:
    """Hold the fake engine to the strict tolerance."""
    settings.CLAW = settings.CLAW.model_copy(update={"engine_dtype": "float32"})  # type: ignore[attr-defined]


@pytest.fixture
def policy(project: Project) -> Policy:
    return services.ensure_policy(project=project, slug="shop", base_model="tiny", base_model_dir="models/tiny")


@pytest.fixture
def fake_engine() -> Iterator[FakeEngine]:
    with serve_engine(FakeEngine()) as engine:
        yield engine


@pytest.fixture
def engine(fake_engine: FakeEngine, db: None) -> Engine:
    """The fake engine's row, its health known."""
    row = services.register_engine(base_url=fake_engine.base_url)
    reconcile_engines()
    row.refresh_from_db()
    return row


Publish = Callable[..., Version]


@pytest.fixture
def publish(policy: Policy, tmp_path: Path) -> Publish:
    """Return a function that publishes the next version, its adapter on disk."""

    def publish_next(
        *, goes_live: bool = True, probe: Probe = PROBE, kind: VersionKind = VersionKind.ADAPTER
    ) -> Version:
        folder = tmp_path / f"adapter-{policy.versions.count()}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        return services.publish_version(
            policy=policy,
            parent=policy.versions.order_by("-number")[0],
            files=services.VersionFiles(path=str(folder), sha256=hash_folder(folder), kind=kind),
            lineage={"run_id": "run_x", "step": 1},
            probe=probe,
            goes_live=goes_live,
        )

    return publish_next


def number_of(policy: Policy, name: AliasName) -> int | None:
    """Return the number of the version that an alias names."""
    alias = Alias.objects.filter(policy=policy, name=name).select_related("version").first()
    return alias.version.number if alias else None
