"""The factories make rows that the database accepts."""

import pytest

from tests.factories.feedback import LabelFactory
from tests.factories.registry import AliasFactory, EngineFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory


@pytest.mark.django_db
def test_every_factory_makes_a_row() -> None:
    assert StepFactory.create().trajectory.project.slug
    assert ExchangeFactory.create().project_id.startswith("proj_")
    assert LabelFactory.create().project
    assert AliasFactory.create().version.state == "ready"
    assert EngineFactory.create().base_model == "tiny"
