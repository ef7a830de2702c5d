"""The pages of rewards by day, by night and on a telephone."""

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.graders.services import VersionDraft, create_grader, start_dry_run, switch_on
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.rescoring import change_schema
from apps.feedback.services import add_label
from apps.feedback.thumbs.services import create_token
from tests.browser.conftest import Window
from tests.browser.showcase import Showcase
from tests.browser.test_looks import CLEAN, OUTLINE, dressed, find_barriers, showcase
from tests.factories.accounts import PASSWORD

__all__ = ["dressed", "showcase"]  # fixtures
pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.fixture
def pages(showcase: Showcase, project: Project, owner: User) -> dict[str, str]:
    """Address by name: a schema with fields, a grader that was tried and is on, a token."""
    caller = Caller(user=owner)
    stars = {"name": "stars", "kind": "scale", "low": 1, "high": 5, "title": "How clear is it?", "weight": 2}
    mood = {
        "name": "mood",
        "kind": "choice",
        "choices": [{"name": "kind", "reward": 1}, {"name": "curt", "reward": -1}],
    }
    trust = [{"human": 1, "judge": 0.3}, {"end_user": 1}, {"rule": 1}]
    definition = {"fields": [stars, mood], "trust": trust}
    change_schema(caller=caller, project=project, definition=definition, note="Stars and moods")
    add_label(caller=caller, trajectory=showcase.trajectory, value=1)
    draft = VersionDraft(settings={"pattern": "(?i)sorry", "must_match": False})
    version, _ = create_grader(caller=caller, project=project, name="no-sorry", kind="regex", draft=draft)
    run_dry_run(start_dry_run(caller=caller, version=version).pk)
    switch_on(caller=caller, version=version)
    create_token(caller=caller, agent=showcase.trajectory.agent, name="shop", origins=["https://shop.example"])
    return {
        "rewards": "/p/shop/rewards",
        "score-schema": "/p/shop/rewards/schema",
        "new-grader": "/p/shop/graders/new?kind=judge",
        "grader": f"/p/shop/graders/{version.grader_id}",
    }


async def test_pages_look_right(
    dressed: tuple[str, Window],
    pages: dict[str, str],
    owner: User,
) -> None:
    look, window = dressed
    await window.log_in(owner.email, PASSWORD)
    for name, address in pages.items():
        await window.open(address)
        await window.page.wait_for_timeout(300)
        await window.shoot(f"{name}-{look}", full_page=True)
        outline = await window.page.evaluate(OUTLINE)
        assert outline == CLEAN, name
        assert await find_barriers(window) == [], name
