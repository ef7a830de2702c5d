"""The pages of datasets, exports and imports by day, by night and on a telephone."""

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.trajectories.datasets.models import Export, Import, ImportProblem
from apps.trajectories.datasets.services import add_to_dataset, create_dataset, remove_from_dataset, take_snapshot
from apps.trajectories.models import Trajectory
from tests.browser.conftest import Window
from tests.browser.showcase import Showcase
from tests.browser.test_looks import CLEAN, OUTLINE, dressed, find_barriers, showcase
from tests.factories.accounts import PASSWORD

__all__ = ["dressed", "showcase"]  # fixtures
pytestmark = [pytest.mark.real, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.fixture
def pages(showcase: Showcase, project: Project, owner: User) -> dict[str, str]:
    """Addresses by name, with something on each."""
    caller = Caller(user=owner)
    dataset = create_dataset(project=project, caller=caller, name="Refunds", description="Late and lost parcels.")
    add_to_dataset(dataset=dataset, caller=caller, trajectories=Trajectory.objects.all())
    first = take_snapshot(dataset=dataset, caller=caller, note="before the sale")
    remove_from_dataset(dataset=dataset, caller=caller, ids=[showcase.trajectory.id])
    second = take_snapshot(dataset=dataset, caller=caller)
    Export.objects.create(
        project=project,
        snapshot=first,
        shape="tokens",
        file_format="parquet",
        n_total=first.n_trajectories,
        n_done=3,
        created_by=caller.name,
    )
    agent = showcase.trajectory.agent
    source = Import.objects.create(
        project=project, agent=agent, file_name="talks.jsonl", n_bytes=9, n_refused=1, created_by=caller.name
    )
    ImportProblem.objects.create(source=source, line=1, reason="this is not JSON: " + "x" * 300)
    return {
        "datasets": "/p/shop/datasets",
        "dataset": f"/p/shop/datasets/{dataset.id}",
        "snapshot": f"/p/shop/snapshots/{second.id}",
        "snapshot-diff": f"/p/shop/snapshots/{second.id}/diff?base={first.id}",
        "exports": "/p/shop/exports",
        "imports": "/p/shop/imports",
        "import": f"/p/shop/imports/{source.id}",
    }


async def test_pages_look_right(dressed: tuple[str, Window], pages: dict[str, str], owner: User) -> None:
    look, window = dressed
    await window.log_in(owner.email, PASSWORD)
    for name, address in pages.items():
        await window.open(address)
        await window.page.wait_for_timeout(300)
        await window.shoot(f"{name}-{look}", full_page=name in {"dataset", "snapshot"})
        outline = await window.page.evaluate(OUTLINE)
        assert outline == CLEAN, name
        assert await find_barriers(window) == [], name
