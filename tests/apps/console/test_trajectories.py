"""The list, one trajectory, and what hostile words can do to it (nothing)."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import timedelta
from math import log

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.console.queries.step_map import LINE, WIDTH, draw_map
from apps.registry.models import Engine, Version
from apps.trajectories.datasets.models import AddedBy
from apps.trajectories.datasets.services import add_to_dataset, create_dataset
from apps.trajectories.models import Step, Trajectory
from tests.factories.registry import EngineFactory, VersionFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory
from tests.fakes.adapter_engine import FakeEngine, serve_engine

AddTrajectory = Callable[..., Trajectory]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> **bold** [click](javascript:alert(3)) \"'>"


def test_the_list_shows_the_newest_first(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory(title="older")
    add_trajectory(title="newer", reward=0.5)
    html = owner_browser.get("/p/shop/trajectories").content.decode()
    assert html.index(">newer<") < html.index(">older<")
    assert "+0.50" in html


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("", {"good", "bad", "open"}),
        ("rewarded=yes", {"good", "bad"}),
        ("rewarded=no", {"open"}),
        ("rewarded=good", {"good"}),
        ("rewarded=bad", {"bad"}),
        ("state=open", {"open"}),
        ("channel=val", {"bad"}),
        ("agent=clerk&rewarded=good", {"good"}),
        ("agent=nobody", set()),
    ],
)
def test_filters_stand_in_the_address(
    query: str, titles: set[str], owner_browser: Client, add_trajectory: AddTrajectory
) -> None:
    add_trajectory(title="good", reward=1.0)
    add_trajectory(title="bad", reward=-1.0, channel="val")
    add_trajectory(title="open", state="open", completed_at=None)
    html = owner_browser.get(f"/p/shop/trajectories?{query}").content.decode()
    assert {title for title in ("good", "bad", "open") if f">{title}</a>" in html} == titles


def test_a_filter_that_does_not_exist_is_refused(owner_browser: Client, agent: Agent) -> None:
    response = owner_browser.get("/p/shop/trajectories?state=sleeping")
    assert response.status_code == 400
    assert "use one of open, complete" in response.content.decode()


def test_the_list_pages_by_key_and_keeps_the_filters(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    rows = [add_trajectory(title=f"row {number}", reward=1.0) for number in range(52)]
    first = owner_browser.get("/p/shop/trajectories?rewarded=yes").content.decode()
    assert f"rewarded=yes&amp;before={rows[2].id}" in first
    second = owner_browser.get(f"/p/shop/trajectories?rewarded=yes&before={rows[2].id}").content.decode()
    assert "row 1<" in second
    assert "row 2<" not in second
    assert "data-live-rows" not in second


def test_the_list_costs_the_same_for_many_rows(
    owner_browser: Client, add_trajectory: AddTrajectory, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(30):
        add_trajectory()
    with django_assert_max_num_queries(25):  # type: ignore[attr-defined]
        page = owner_browser.get("/p/shop/trajectories").content.decode()
    assert page.count("/p/shop/trajectories/traj_") >= 30


def test_an_empty_list_teaches(owner_browser: Client, agent: Agent) -> None:
    assert "No trajectory yet" in owner_browser.get("/p/shop/trajectories").content.decode()
    assert "Clear the filters" in owner_browser.get("/p/shop/trajectories?state=open").content.decode()


def test_hostile_words_stay_words(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    call = {"id": HOSTILE, "function": {"name": HOSTILE, "arguments": json.dumps({"q": HOSTILE})}}
    row = add_trajectory(
        title=HOSTILE,
        group=HOSTILE,
        session_key=HOSTILE,
        step={
            "messages": [{"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}, {"type": HOSTILE}]}],
            "answer": json.dumps({"role": "assistant", "content": HOSTILE, "tool_calls": [call]}).encode(),
        },
    )
    for address in (
        "/p/shop/",
        "/p/shop/trajectories",
        f"/p/shop/trajectories/{row.id}",
        *(f"/p/shop/trajectories/{row.id}?step=0&view={view}" for view in ("prompt", "tokens", "raw")),
    ):
        html = owner_browser.get(address).content.decode()
        assert "<script>alert" not in html
        assert "<img src=x" not in html
        assert 'href="javascript:' not in html
        assert "&lt;script&gt;alert(1)" in html


@pytest.mark.parametrize("content", ["", None, 7, {"a": 1}, [1, None, {"text": 5}]])
def test_any_shape_of_message_is_shown(content: object, owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    messages = [{"role": "user", "content": content}, "no message", None, {"tool_calls": "no list"}]
    row = add_trajectory(step={"messages": messages})
    assert owner_browser.get(f"/p/shop/trajectories/{row.id}").status_code == 200


def test_long_texts_are_folded_and_whole(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    text = "".join(f"word{number} " for number in range(2000))
    row = add_trajectory(step={"messages": [{"role": "user", "content": text}]})
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}").content.decode()
    assert f"Show all {len(text):,} characters" in html
    assert all(f"word{number} " in html for number in (0, 999, 1999))


def test_a_step_says_what_is_unusual(owner_browser: Client, trajectory: Trajectory, step: Step, base: Version) -> None:
    side = StepFactory.create(trajectory=trajectory, index=1, parent=step, side_call="title", version=base)
    StepFactory.create(
        trajectory=trajectory,
        index=2,
        parent=side,
        status="aborted",
        is_exact=False,
        is_excluded=True,
        finish_reason="length",
        token_check="count",
    )
    html = owner_browser.get(f"/p/shop/trajectories/{trajectory.id}").content.decode()
    for words in (
        "1 side call",
        "side call: title",
        "aborted",
        "text only",
        "cut off",
        "tokens doubted",
        "Why: count",
        "excluded",
        "from step 1",
        ">v0<",
    ):
        assert words in html


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_pictures_in_messages_are_shown(
    owner_browser: Client, stranger_browser: Client, add_trajectory: AddTrajectory
) -> None:
    urls = (f"data:image/png;base64,{PIXEL}", "data:image/svg+xml;base64,AAAA", "https://elsewhere.example/a.png")
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (*urls, "data:image/gif;base64,!!")]
    row = add_trajectory(step={"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}]})
    step = row.steps.get()
    page, address = f"/p/shop/trajectories/{row.pk}", f"/p/shop/trajectories/{row.pk}/steps/{step.pk}/images"
    html = owner_browser.get(page).content.decode()
    assert f'<img src="{address}/0" loading="lazy" alt="Picture 1 of step 0, 72' in html
    assert "image_url at https://elsewhere.example/a.png not shown" in html
    assert 'src="https://elsewhere' not in html
    assert "image_url not shown" in html  # an SVG may hold scripts
    picture = owner_browser.get(f"{address}/0")
    assert (picture["Content-Type"], picture["X-Content-Type-Options"]) == ("image/png", "nosniff")
    assert picture.content == b64decode(PIXEL)
    assert owner_browser.get(f"{address}/{'9' * 20}").status_code == 404
    assert owner_browser.get(f"{address}/1").status_code == 404  # no base64
    assert owner_browser.get(f"{address}/2").status_code == 404
    assert stranger_browser.get(f"{address}/0").status_code == 404
    assert "picture not shown" in owner_browser.get(f"{page}?step=0&view=prompt").content.decode()


def test_what_was_said_is_shown_as_markdown_and_as_it_came(
    owner_browser: Client, add_trajectory: AddTrajectory
) -> None:
    said = "# Plan\n\n- **one**\n- `two` [site](https://a.example) [x](javascript:1) ![p](https://a.example/p.png)"
    row = add_trajectory(step={"text": said, "messages": [{"role": "tool", "content": "**as it came**"}]})
    page = f"/p/shop/trajectories/{row.pk}"
    html = owner_browser.get(page).content.decode()
    assert "<strong>one</strong>" in html
    assert '<a href="https://a.example" rel="noopener noreferrer nofollow">site</a>' in html
    assert "p.png" not in html
    assert "javascript:1)" in html  # as words
    assert 'href="javascript' not in html
    assert "**as it came**" in html
    assert "- **one**\n- `two`" in owner_browser.get(f"{page}?step=0&view=plain").content.decode()


def test_steps_stand_on_lines_that_part_where_a_conversation_branches(
    owner_browser: Client, trajectory: Trajectory, step: Step
) -> None:
    page = f"/p/shop/trajectories/{trajectory.pk}"
    assert "step-map" not in owner_browser.get(page).content.decode()
    on = StepFactory.create(trajectory=trajectory, index=1, parent=step)
    branch = StepFactory.create(trajectory=trajectory, index=2, parent=step, status="aborted")
    last = StepFactory.create(trajectory=trajectory, index=3, parent=on, side_call="title")
    drawn = draw_map([step, on, branch, last])
    assert drawn is not None
    assert [(mark.y > LINE, mark.tone) for mark in drawn.marks] == [
        (False, ""), (False, ""), (True, "bad"), (False, "side"),
    ]  # fmt: skip
    assert (len(drawn.joins), drawn.height) == (3, 2 * LINE)
    html = owner_browser.get(page).content.decode()
    assert 'href="#step-2"><rect' in html
    assert "Step 2, it did not end well: " in html


def test_steps_fill_the_picture_each_as_wide_as_it_took(trajectory: Trajectory, step: Step) -> None:
    began = step.started_at
    lengths = [30, 10, 0]
    steps = [
        StepFactory.build(trajectory=trajectory, index=at, started_at=began, ended_at=began + timedelta(seconds=length))
        for at, length in enumerate(lengths)
    ]
    drawn = draw_map(steps)
    assert drawn is not None
    long, short, none = drawn.marks
    assert round(long.width / short.width, 2) == 3
    assert 0 < none.width < short.width
    assert long.x == 0
    assert long.x + long.width < short.x
    assert short.x + short.width < none.x
    assert round(none.x + none.width) == WIDTH


def test_an_answer_that_the_client_spells_in_its_own_way_is_not_said_twice(
    owner_browser: Client, trajectory: Trajectory
) -> None:
    echo = {"role": "assistant", "content": "Paris it is"}
    answer = json.dumps({**echo, "refusal": None}).encode()
    asked = [{"role": "user", "content": "And of Spain?"}]
    first = StepFactory.create(trajectory=trajectory, index=7, answer=answer)
    StepFactory.create(trajectory=trajectory, index=8, parent=first, shared_messages=1, messages=[echo, *asked])
    page = owner_browser.get(f"/p/shop/trajectories/{trajectory.pk}").text
    assert (page.count("Paris it is"), page.count("And of Spain?")) == (1, 1)
    assert "Goes on from 2 earlier messages." in page


def test_it_names_the_datasets_that_it_is_in(
    trainer_browser: Client, trajectory: Trajectory, project: Project, trainer: User
) -> None:
    page = f"/p/shop/trajectories/{trajectory.pk}"
    assert "in none" in trainer_browser.get(page).content.decode()
    dataset = create_dataset(project=project, caller=Caller(user=trainer), name="Refunds")
    rows = Trajectory.objects.filter(pk=trajectory.pk)
    add_to_dataset(dataset=dataset, caller=Caller(user=trainer), trajectories=rows, how=AddedBy.HAND)
    assert f'href="/p/shop/datasets/{dataset.pk}">Refunds</a>' in trainer_browser.get(page).content.decode()


def test_what_broke_a_prefix_is_told_and_searched_for(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(step={"prefix_break": "edit"})
    assert ">break: edit</span>" in owner_browser.get(f"/p/shop/trajectories/{row.pk}").content.decode()


def test_a_redacted_call_is_called_so_and_shows_what_the_engine_counted(
    owner_browser: Client, add_trajectory: AddTrajectory
) -> None:
    fields = {"is_exact": False, "token_check": "redacted: email", "completion_ids": [], "token_logprobs": []}
    row = add_trajectory(step=fields)
    counted = {"usage": {"prompt_tokens": 1234, "completion_tokens": 56}}
    ExchangeFactory.create(id=row.steps.get().exchange_id, response=json.dumps(counted).encode())
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}").content.decode()
    assert ">redacted: email<" in html
    assert "tokens doubted" not in html
    assert "1,234 + 56 tokens by the engine" in html
    assert "perplexity" not in owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=tokens").content.decode()


def test_an_open_trajectory_is_completed_on_its_page(reviewer_browser: Client, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(state="open", completed_at=None)
    address = f"/p/shop/trajectories/{row.id}"
    html = reviewer_browser.get(address).content.decode()
    assert f'action="{address}/complete"' in html
    assert "Without a call for 600 s" in html
    assert reviewer_browser.get(f"{address}/complete").status_code == 405
    assert reviewer_browser.post(f"{address}/complete").status_code == 302
    row.refresh_from_db()
    assert row.state == "complete"
    assert f'action="{address}/complete"' not in reviewer_browser.get(address).content.decode()


def test_a_viewer_and_a_stranger_do_not_complete(
    viewer_browser: Client, stranger_browser: Client, add_trajectory: AddTrajectory
) -> None:
    row = add_trajectory(state="open", completed_at=None)
    assert viewer_browser.post(f"/p/shop/trajectories/{row.id}/complete").status_code == 403
    assert stranger_browser.post(f"/p/shop/trajectories/{row.id}/complete").status_code == 404
    assert viewer_browser.post("/p/shop/trajectories/traj_none/complete").status_code in {403, 404}
    row.refresh_from_db()
    assert row.state == "open"


def test_many_steps_are_paged(owner_browser: Client, trajectory: Trajectory) -> None:
    for index in range(1, 60):
        StepFactory.create(trajectory=trajectory, index=index)
    address = f"/p/shop/trajectories/{trajectory.id}"
    first = owner_browser.get(address).content.decode()
    assert 'id="step-49"' in first
    assert 'id="step-50"' not in first
    assert "?from=50" in first
    assert 'id="step-55"' in owner_browser.get(f"{address}?step=55").content.decode()


def test_the_token_view_colours_by_probability(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(step={"completion_ids": [11, 12, 13], "token_logprobs": [-0.01, -1.0, -9.0]})
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=tokens").content.decode()
    assert 'data-p="0" title="11 · p 99.0 %' in html
    assert 'data-p="3" title="12 · p 36.8 %' in html
    assert 'data-p="6" title="13' in html


@pytest.fixture
def fake_engine(base: Version) -> Iterator[FakeEngine]:
    """It serves the base."""
    cache.clear()
    with serve_engine(FakeEngine()) as engine:
        EngineFactory.create(base_url=engine.base_url, base_model=base.policy.base_model)
        yield engine


def test_the_token_view_colours_by_entropy(
    viewer_browser: Client, add_trajectory: AddTrajectory, fake_engine: FakeEngine
) -> None:
    fake_engine.tops = {3: [0.0], 11: [log(0.25)] * 4}
    sampled = {"completion_ids": [11, 12], "token_logprobs": [-0.01, -1.0], "temperature": 0.5}
    row = add_trajectory(step={"prompt_ids": [1, 2, 3], **sampled})
    StepFactory.create(trajectory=row, index=1, text="neither view")
    html = viewer_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=entropy").content.decode()
    assert 'data-p="0" title="11 · p 99.0 % · −0.01 nats · entropy ≥ 0 nats">&lt;11&gt;<' in html
    assert 'data-p="4" title="12 · p 36.8 % · −1 nats · entropy ≥ 1.386 nats">&lt;12&gt;<' in html
    assert (
        "Computed by v0, which said this, at temperature 0.5. A lower bound: the engine tells the 20 likeliest" in html
    )
    assert "not renormalised" in html
    assert [one["prompt"] for one in fake_engine.asked] == [[[1, 2, 3], [1, 2, 3, 11]]]
    page = viewer_browser.get(f"/p/shop/trajectories/{row.id}?step=0&view=entropy").content.decode()
    assert (page.count("Computed by v0"), page.count("neither view")) == (1, 1)


def test_another_version_is_named_where_no_engine_holds_the_one_that_spoke(
    owner_browser: Client, add_trajectory: AddTrajectory, fake_engine: FakeEngine, base: Version
) -> None:
    other = VersionFactory.create(policy=base.policy, number=7, adapter_path="models/a")
    spoken, unknown = (add_trajectory(step={"version": version}) for version in (other, None))
    words = {
        row.id: owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=entropy").text
        for row in (spoken, unknown)
    }
    assert "Computed by v0, which is live now: no engine holds v7, which said this, at" in words[spoken.id]
    assert "Computed by v0, which is live now: which version said this is not known, at" in words[unknown.id]


def test_without_an_engine_the_tokens_are_shown_without_colour_and_it_says_why(
    owner_browser: Client, add_trajectory: AddTrajectory, fake_engine: FakeEngine
) -> None:
    address = f"/p/shop/trajectories/{add_trajectory().id}/steps/0?view=entropy"
    fake_engine.breaks = "/v1/completions"
    assert "The engine (/v1/completions) failed with 500: out of memory." in owner_browser.get(address).text
    Engine.objects.all().delete()
    answer = owner_browser.get(address)
    assert (answer.status_code, "No engine serves shop@v0 at the moment." in answer.text) == (200, True)
    assert 'class="tok" title="4 · p 60.7 %' in answer.text  # the texts were asked for before


def test_a_step_without_exact_tokens_has_no_entropy(
    owner_browser: Client, add_trajectory: AddTrajectory, fake_engine: FakeEngine
) -> None:
    row = add_trajectory(step={"is_exact": False, "completion_ids": [], "token_logprobs": []})
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=entropy").text
    assert ("No exact tokens for this step" in html, fake_engine.asked) == (True, [])


@pytest.mark.parametrize(
    ("streamed", "all_s", "first_s", "words", "is_slow"),
    [
        (True, 9, 8.0, "8.0 s until the first token", True),
        (True, 90, 1.0, "1.0 s until the first token", True),
        (True, 9, 1.0, "1.0 s until the first token", False),
        (False, 9, 8.0, "The answer came whole", False),
    ],
)
def test_where_the_time_of_a_call_went_is_told(
    owner_browser: Client,
    add_trajectory: AddTrajectory,
    streamed: bool,
    all_s: float,
    first_s: float,
    words: str,
    is_slow: bool,
) -> None:
    began = timezone.now()
    times = {"started_at": began, "ended_at": began + timedelta(seconds=all_s)}
    row = add_trajectory(step=times)
    first = began + timedelta(seconds=first_s)
    call_id = row.steps.get().exchange_id
    ExchangeFactory.create(id=call_id, is_streamed=streamed, first_token_at=first, **times)
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}").content.decode()
    assert words in html
    assert ("of them before the first token" in html) == is_slow


def test_the_raw_view_shows_the_exchange(owner_browser: Client, trajectory: Trajectory, step: Step) -> None:
    ExchangeFactory.create(id=step.exchange_id, messages=[{"role": "user", "content": "raw words"}])
    html = owner_browser.get(f"/p/shop/trajectories/{trajectory.id}/steps/{step.id}?view=raw").content.decode()
    assert "raw words" in html


def test_a_view_that_does_not_exist_is_refused(owner_browser: Client, trajectory: Trajectory) -> None:
    response = owner_browser.get(f"/p/shop/trajectories/{trajectory.id}/steps/0?view=smell")
    assert response.status_code == 400


def test_a_very_long_text_comes_when_it_is_asked_for(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    text = "".join(f"word{number} " for number in range(12_000))
    row = add_trajectory(step={"messages": [{"role": "user", "content": text}]})
    address = f"/p/shop/trajectories/{row.id}"
    html = owner_browser.get(address).content.decode()
    assert len(html) < 60_000
    assert "characters are not loaded" in html
    assert "Load the whole step" in html
    assert ("word0 " in html, "word6000 " in html, "word11999 " in html) == (True, False, True)
    for whole in (f"{address}/steps/0?view=whole", f"{address}?step=0&view=whole"):
        html = owner_browser.get(whole).content.decode()
        assert "word6000 " in html
        assert "not loaded" not in html


def test_fifty_steps_of_long_messages_open_small(
    owner_browser: Client, add_trajectory: AddTrajectory, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    row = add_trajectory()
    messages = json.dumps([{"role": "tool", "content": "x" * 100_000}]).encode()
    rows = [StepFactory.build(trajectory=row, index=index, tail_messages=messages) for index in range(1, 60)]
    Step.objects.bulk_create(rows)
    with django_assert_max_num_queries(24):  # type: ignore[attr-defined]
        html = owner_browser.get(f"/p/shop/trajectories/{row.id}").content.decode()
    assert len(html) < 500_000
    assert 'hx-trigger="intersect once"' in html


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Each of these sampled tokens is trained on"),
        ({"side_call": "title"}, "Not trained on: a side call"),
        ({"is_excluded": True}, "Not trained on: kept out of training"),
        ({"is_exact": False}, "Not trained on: its tokens are not exact"),
        ({"status": "aborted"}, "Not trained on: the call did not end well"),
    ],
)
def test_the_token_view_shows_the_mask(
    owner_browser: Client, add_trajectory: AddTrajectory, fields: dict[str, object], words: str
) -> None:
    row = add_trajectory(step={"prompt_ids": [901, 902], **fields})
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=tokens").content.decode()
    assert words in html
    assert "2 new prompt tokens, mask 0" in html
    assert 'title="901 · prompt, mask 0"' in html


def test_the_raw_call_is_cut_on_the_page_and_whole_in_the_file(
    owner_browser: Client, trajectory: Trajectory, step: Step
) -> None:
    ExchangeFactory.create(id=step.exchange_id, messages=[{"role": "user", "content": "x" * 300_000 + "end"}])
    address = f"/p/shop/trajectories/{trajectory.id}/steps/{step.id}"
    assert "more characters" in owner_browser.get(f"{address}?view=raw").content.decode()
    response = owner_browser.get(f"{address}/raw")
    assert response["Content-Disposition"] == f'attachment; filename="{step.id}.json"'
    assert response.json()["request"]["messages"][0]["content"].endswith("end")


def test_only_the_end_of_an_endless_prompt_is_shown(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    messages = [{"role": "user", "content": f"line {number}."} for number in range(300)]
    row = add_trajectory(step={"messages": messages})
    html = owner_browser.get(f"/p/shop/trajectories/{row.id}/steps/0?view=prompt").content.decode()
    assert "The first 100 messages are not shown" in html
    assert ("line 99." in html, "line 100." in html) == (False, True)
