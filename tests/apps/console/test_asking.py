"""What is asked before it is done, where no script asks; and where a form leads that was sent in vain."""

import re
from html import unescape
from pathlib import Path

import pytest
from django.test import Client

from apps.accounts.models import Agent, ApiKey, Project, User
from apps.trajectories.bulk.models import TrajectoryTag
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.models import Trajectory
from tests.factories.datasets import DatasetFactory

LIST = "/p/shop/trajectories"
PAGES = "/p/shop/people", "/p/shop/agents/clerk", "/p/shop/datasets/{dataset}"
_FORM = re.compile(r'<form method="post" action="([^"]+)"[^>]*>((?:(?!</form>).)*name="question".*?)</form>', re.DOTALL)
_FIELD = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')


def read_form(html: str) -> tuple[str, list[tuple[str, str]]]:
    """Return where the first form with a question is sent, and its hidden fields."""
    found = _FORM.search(html)
    assert found is not None
    return found[1], [(name, unescape(value)) for name, value in _FIELD.findall(found[2])]


@pytest.fixture
def dataset(project: Project) -> Dataset:
    made: Dataset = DatasetFactory.create(project=project, name="<b>mine</b>")
    return made


def test_a_form_with_a_question_is_asked_first(owner_browser: Client, dataset: Dataset) -> None:
    page = f"/p/shop/datasets/{dataset.pk}"
    address, fields = read_form(owner_browser.get(page).content.decode())
    asked = owner_browser.post(address, dict(fields), headers={"referer": f"http://testserver{page}?x=1"})
    html = asked.content.decode()
    assert asked.status_code == 200
    assert "Delete &lt;b&gt;mine&lt;/b&gt;? Its trajectories stay where they are." in html
    assert f'<a class="button" href="{page}?x=1">No, go back</a>' in html
    assert Dataset.objects.exists()
    again = re.search(rf'<form method="post" action="{re.escape(address)}" class="row">(.*?)</form>', html)
    assert again is not None
    sent = dict(_FIELD.findall(again[1]))
    assert "question" not in sent
    assert owner_browser.post(address, sent).status_code == 302
    assert not Dataset.objects.exists()


@pytest.mark.parametrize("page", PAGES)
def test_what_cannot_be_undone_carries_its_question(
    page: str, owner_browser: Client, dataset: Dataset, key: ApiKey, mate: User
) -> None:
    address, fields = read_form(owner_browser.get(page.format(dataset=dataset.pk)).content.decode())
    assert dict(fields)["question"].count("?") == 1
    assert "Are you sure?" in owner_browser.post(address, dict(fields)).content.decode()


def test_who_may_not_do_it_is_not_asked(viewer_browser: Client, dataset: Dataset) -> None:
    address = f"/p/shop/datasets/{dataset.pk}/delete"
    assert viewer_browser.post(address, {"question": "Delete it?"}).status_code == 403


def test_a_change_of_all_and_a_deletion_are_asked_without_a_script(
    owner_browser: Client, trajectory: Trajectory
) -> None:
    assert 'name="unasked" value="1"' in owner_browser.get(LIST).content.decode()
    tag = {"unasked": "1", "action": "tag", "tag": "late", "id": [trajectory.pk]}
    assert owner_browser.post(LIST, {**tag, "scope": "chosen"}).status_code == 302
    asked = owner_browser.post(f"{LIST}?q=reward:none", {**tag, "scope": "all"}).content.decode()
    assert "Tag all trajectories that a search finds with “late”? It can be undone for" in asked
    assert f'action="{LIST}?q=reward:none"' in asked
    sent = dict(_FIELD.findall(asked.split('class="row"')[1]))
    assert (sent["scope"], sent["tag"], "unasked" in sent) == ("all", "late", False)
    assert owner_browser.post(f"{LIST}?q=reward:none", sent).status_code == 302
    form = {"unasked": "1", "action": "delete", "id": [trajectory.pk], "scope": "chosen"}
    assert "Delete 1 chosen trajectory?" in owner_browser.post(LIST, form).content.decode()
    assert owner_browser.post(LIST, {**form, "action": "tag", "scope": "all"}).status_code == 400
    assert not TrajectoryTag.objects.exists()


def test_a_form_that_is_refused_leads_back_to_its_page(owner_browser: Client, project: Project, owner: User) -> None:
    page, address = "/p/shop/people", f"/p/shop/people/{owner.pk}/role"
    referer = f"http://testserver{page}?after=1"
    answer = owner_browser.post(address, {"role": "king"}, headers={"referer": referer})
    assert answer["Location"] == f"{page}?after=1"
    html = owner_browser.get(page).content.decode()
    assert 'data-tone="bad" role="status"><p>A role is one of' in html


@pytest.mark.parametrize(
    "referer",
    [
        "",
        "http://testserver/p/other/people",
        "http://elsewhere.example/p/shop/people",
        "http://testserver/p/shop/datasets/x/delete",  # no page: only forms are sent there
        "http://testserver/nowhere",
        "http://[",
    ],
)
def test_where_its_page_is_not_known_the_error_has_a_page(
    owner_browser: Client, project: Project, owner: User, referer: str
) -> None:
    answer = owner_browser.post(
        f"/p/shop/people/{owner.pk}/role", {"role": "king"}, headers={"referer": referer} if referer else {}
    )
    assert answer.status_code == 400


def test_an_address_that_makes_no_sense_leads_nowhere(owner_browser: Client, agent: Agent) -> None:
    answer = owner_browser.get(f"{LIST}?state=odd", headers={"referer": f"http://testserver{LIST}"})
    assert answer.status_code == 400


def test_every_question_is_one_that_the_platform_asks_too() -> None:
    templates = Path(__file__).resolve().parents[3] / "templates"
    assert not [path.name for path in templates.rglob("*.html") if "data-confirm" in path.read_text()]
