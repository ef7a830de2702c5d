"""A step played again on a version that an engine holds, and the better answer kept."""

from collections.abc import Iterator
from html import unescape
from json import dumps
from re import findall, search

import pytest
from django.test import Client
from django.utils import timezone

from apps.core.ids import new_id
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.sides import answer_of
from apps.registry.models import Alias, Deployment, DeploymentState, Engine, EngineState, Version
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from tests.factories.registry import EngineFactory, VersionFactory
from tests.fakes.engine import FakeEngine


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def served(fake: FakeEngine, base: Version) -> Version:
    """The base, on an engine that is up."""
    EngineFactory.create(
        base_url=fake.url, base_model=base.policy.base_model, state=EngineState.UP, last_seen_at=timezone.now()
    )
    return base


@pytest.fixture
def address(step: Step) -> str:
    return f"/p/shop/playground/{step.id}"


def test_a_step_is_played_and_the_better_answer_kept(
    reviewer_browser: Client, address: str, served: Version, step: Step, fake: FakeEngine
) -> None:
    html = reviewer_browser.get(address).content.decode()
    assert "Replay step 0" in html
    assert f'value="{served.pk}" checked' in html  # the only one there is
    form = {"version": served.pk, "temperature": "0,5", "max_tokens": "64"}
    html = reviewer_browser.post(address, form).content.decode()
    kept = search(r'name="message" value="([^"]+)"', html)
    assert kept is not None
    answer = {"version": served.pk, "message": unescape(kept[1]), "better": "played"}
    done = reviewer_browser.post(f"{address}/keep", answer, follow=True).content.decode()
    assert "Kept: what version 0 said now is better than what step 0 said then" in done
    row = Preference.objects.standing().get()
    assert f'<form method="post" action="/p/shop/preferences/{row.pk}/undo">' in done
    assert "What version 0 said, better than what the step said:" in done
    assert (row.chosen_version, row.rejected_step, row.kind) == (served, step, "comparison")
    done = reviewer_browser.post(f"{address}/keep", {**answer, "better": "original"}, follow=True).content.decode()
    assert "What the step said, better than what version 0 said:" in done
    assert Preference.objects.standing().get().chosen_step == step  # a change of mind


@pytest.mark.parametrize("live", [0, 1, 2])
def test_the_live_version_is_chosen_until_somebody_chooses(
    reviewer_browser: Client, address: str, served: Version, live: int
) -> None:
    """Version 2 is on no engine: where that is live, the newest that can be asked is chosen."""
    engine = Engine.objects.get()
    adapters = [VersionFactory.create(policy=served.policy, number=number, adapter_path="x") for number in (1, 2)]
    Deployment.objects.create(engine=engine, version=adapters[0], state=DeploymentState.LOADED)
    Alias.objects.filter(policy=served.policy, name="live").update(version=[served, *adapters][live])
    html = reviewer_browser.get(address).content.decode()
    chosen = [served, adapters[0], adapters[0]][live]
    assert findall(r'value="(ver_\w+)" checked', html) == [chosen.pk]
    assert html.count('data-tone="live">live<') == (live < 2)
    other = adapters[0] if chosen == served else served
    form = {"version": other.pk, "temperature": "1", "max_tokens": "5"}
    html = reviewer_browser.post(address, form).content.decode()
    assert findall(r'value="(ver_\w+)" checked', html) == [other.pk]
    html = reviewer_browser.post(address, {"temperature": "1", "max_tokens": "5"}).content.decode()
    assert findall(r'value="(ver_\w+)" checked', html) == []


def test_an_answer_is_kept_where_the_others_stand(
    reviewer_browser: Client, address: str, served: Version, step: Step
) -> None:
    answer = {"version": served.pk, "message": '{"content": "Better so."}', "better": "played"}
    html = reviewer_browser.post(f"{address}/keep", answer, headers={"HX-Request": "true"}).content.decode()
    row = Preference.objects.standing().get()
    assert "Kept: what version 0 said now is better" in html
    assert f'action="/p/shop/preferences/{row.pk}/undo"' in html


def test_an_answer_that_was_given_before_is_no_choice(
    reviewer_browser: Client, address: str, served: Version, step: Step, fake: FakeEngine
) -> None:
    fake.script.pieces = [spoken_text(answer_of(step))]
    html = reviewer_browser.post(
        address, {"version": served.pk, "temperature": "0", "max_tokens": "64"}
    ).content.decode()
    assert "Word for word what was said" in html
    assert 'name="better"' not in html
    same = {"version": served.pk, "message": dumps(answer_of(step)), "better": "played"}
    refused = reviewer_browser.post(f"{address}/keep", same)
    assert (refused.status_code, "both answers say the same" in refused.content.decode()) == (400, True)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "choose 1 to 4 versions"),
        ({"version": "nonsense"}, "choose 1 to 4 versions"),
        ({"version": "base", "temperature": "9", "max_tokens": "5"}, "temperature lies from 0 to 2"),
        ({"version": "base", "temperature": "x", "max_tokens": "5"}, "are numbers"),
    ],
)
def test_what_makes_no_sense_is_told(
    reviewer_browser: Client, address: str, served: Version, form: dict[str, str], words: str
) -> None:
    given = {**form, "version": served.pk} if form.get("version") == "base" else form
    answer = reviewer_browser.post(address, given)
    assert (answer.status_code, words in answer.content.decode().lower()) == (400, True)
    bad = reviewer_browser.post(f"{address}/keep", {"version": served.pk, "message": "{"})
    assert bad.status_code == 400


def test_an_engine_that_is_away_is_told(
    reviewer_browser: Client, address: str, served: Version, fake: FakeEngine, trajectory: Trajectory
) -> None:
    Engine.objects.update(base_url="http://127.0.0.1:9")
    form = {"version": served.pk, "temperature": "1", "max_tokens": "5"}
    assert 'role="alert"' in reviewer_browser.post(address, form).content.decode()
    Engine.objects.all().delete()
    assert "No engine that is up holds a version" in reviewer_browser.get(address).content.decode()


def test_who_may_play(
    viewer_browser: Client, stranger_browser: Client, reviewer_browser: Client, anonymous_browser: Client, address: str
) -> None:
    assert viewer_browser.get(address).status_code == 403
    assert stranger_browser.get(address).status_code == 404
    assert anonymous_browser.get(address)["Location"].startswith("/login")
    assert viewer_browser.post(f"{address}/keep").status_code == 403
    assert reviewer_browser.get(f"{address}/keep").status_code == 405
    assert reviewer_browser.get(f"/p/shop/playground/{new_id('step')}").status_code == 404
