"""Odd values in every field of every page's forms and addresses: answered in words, and never shown unescaped.

The addresses are those of the table, the fields those that templates and views name, so new ones are tried too.
"""

import re
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.training.models import Batch, BatchState, Run
from apps.trajectories.models import Trajectory
from tests.apps.console.places import fill_places, list_places

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]
_IN_TEMPLATES = re.compile(r'<(?:input|select|textarea|button)[^>]*? name="([\w.-]+)"')
_IN_VIEWS = re.compile(r'(?:POST|GET|given|form)\.get(?:list)?\(\s*"([\w.-]+)"')
SCRIPT = "<script>alert(1)</script>"
IN_ADDRESSES = ("\x00", SCRIPT, "-1", "9" * 400)
IN_FORMS = (*IN_ADDRESSES, "", "NaN", "٣", "\ud800", "[" * 3000, "x" * 100_000)


def read_field_names() -> list[str]:
    """Return the names of fields in templates and views, and some of those that forms make of several parts."""
    pages, views = (ROOT / "templates/console").rglob("*.html"), (ROOT / "apps/console/views").glob("*.py")
    found = {name for path in pages for name in _IN_TEMPLATES.findall(path.read_text())}
    found |= {name for path in views for name in _IN_VIEWS.findall(path.read_text())}
    return sorted({*found, "0.name", "0.kind", "0.low", "v-reward", "n-reward", "t-comment", "settings.pattern"})


@pytest.fixture
def places(project: Project, owner: User, key: ApiKey, trajectory: Trajectory, run: Run) -> dict[str, str]:
    Batch.objects.create(run=run, step=1, state=BatchState.TRAINED, n_samples=2, trained_at=timezone.now())
    return list_places(fill_places(project=project, owner=owner, trajectory=trajectory, run_id=run.pk, key=key))


def as_sent(value: str) -> str:
    """Half a surrogate pair as a browser would never send it: its bytes, which no UTF-8 has."""
    return value.encode("utf-8", "surrogatepass").decode("latin-1") if "\ud800" in value else value


@pytest.mark.parametrize(("method", "values"), [("post", IN_FORMS), ("get", IN_ADDRESSES)])
def test_odd_values_are_answered_in_words(
    method: str, values: tuple[str, ...], places: dict[str, str], owner: User
) -> None:
    names = read_field_names()
    assert len(names) > 80
    browser = Client(raise_request_exception=False)
    browser.force_login(owner)
    faults = []
    for name, address in places.items():
        if name in {"login", "logout", "password", "theme"}:
            continue
        for value in values:
            answer = getattr(browser, method)(address, dict.fromkeys(names, as_sent(value)))
            if answer.status_code >= 500 or SCRIPT in answer.content.decode():
                faults.append((name, value[:30], answer.status_code))
    assert faults == []
