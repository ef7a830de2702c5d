"""One gateway process before an engine that uses tools, for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.accounts.models import ApiKey, Project
from apps.registry.models import Engine, Policy, Version
from tests.clients.engine import ToolUsingEngine
from tests.clients.gateway import GatewayProcess
from tests.clients.pool import Session, read_pool
from tests.factories.registry import AliasFactory, EngineFactory, PolicyFactory, VersionFactory

MODEL = "otter"

ReadPool = Callable[[], list[Session]]


@pytest.fixture
def engine() -> Iterator[ToolUsingEngine]:
    with ToolUsingEngine() as engine:
        yield engine


@pytest.fixture
def version(transactional_db: None, project: Project) -> Version:
    """The base weights of the project's policy, live."""
    policy: Policy = PolicyFactory.create(project=project, slug=MODEL)
    version = VersionFactory.create(policy=policy)
    AliasFactory.create(version=version)
    return version


@pytest.fixture
def engine_row(transactional_db: None, engine: ToolUsingEngine) -> Engine:
    return EngineFactory.create(base_url=engine.url)


@pytest.fixture
def gateway(key: ApiKey, version: Version, engine_row: Engine, secret: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    folder = tmp_path / "claw"
    folder.mkdir()
    with GatewayProcess(folder=folder, secret=secret) as gateway:
        yield gateway


@pytest.fixture
def pool(engine: ToolUsingEngine, version: Version) -> ReadPool:
    """Reads the sessions that the client left, once it is done."""
    return lambda: read_pool(engine, version=version)
