"""What a search finds: every field, words in messages, another project's rows never."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey, Project
from apps.feedback.graders.models import Grader, GraderVersion
from apps.trajectories.bulk.models import TrajectoryTag
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.search import compiling, services
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import TooSlow, find_matching, patience, search
from apps.trajectories.search.words import PIECE, keep_words
from tests.factories.accounts import AgentFactory
from tests.factories.feedback import LabelFactory
from tests.factories.registry import PolicyFactory, VersionFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

AddSteps = Callable[..., Step]


@pytest.fixture
def say(agent: Agent) -> Callable[..., Trajectory]:
    """Return a function that adds a trajectory in which something was said."""

    def add(text: str, **step: Any) -> Trajectory:
        row: Trajectory = TrajectoryFactory.create(agent=agent, title=text[:50])
        keep_words([StepFactory.create(trajectory=row, text=text, **step)])
        return row

    return add


def find(project: Project, q: str) -> set[str]:
    return {row.title for row in search(project=project, q=q, before=None, limit=50).items}


@pytest.fixture
def pool(agent: Agent, project: Project) -> None:
    """Four trajectories, each unlike the others."""
    desk = AgentFactory.create(project=project, slug="desk")
    now = timezone.now()
    parent = TrajectoryFactory.create(agent=agent, title="plain", started_at=now - timedelta(days=3))
    bad = TrajectoryFactory.create(
        agent=agent, title="bad", reward=-0.5, has_error=True, n_steps=9, group="g 1", started_at=now
    )
    good = TrajectoryFactory.create(
        agent=desk, title="good", reward=0.8, channel="val", state="complete", session_key="s1", parent=parent,
        started_at=datetime(2026, 11, 1, 12, tzinfo=UTC), n_prompt_tokens=90, n_completion_tokens=20,
    )  # fmt: skip
    out = TrajectoryFactory.create(agent=desk, title="out", is_excluded=True, started_at=now - timedelta(days=400))
    policy = PolicyFactory.create(project=project)
    for number, row in ((1, bad), (2, good)):
        version = VersionFactory.create(policy=policy, number=number)
        keep_words([StepFactory.create(trajectory=row, version=version)])
    StepFactory.create(trajectory=out, side_call="title")
    StepFactory.create(trajectory=bad, prefix_break="template")
    StepFactory.create(trajectory=good, prefix_break="edit")
    TrajectoryTag.objects.create(trajectory=good, name="late refund")
    LabelFactory.create(trajectory=bad, source="human")
    grader = Grader.objects.create(project=project, name="polite", kind="judge")
    said_by = GraderVersion.objects.create(grader=grader, number=1, settings={})
    LabelFactory.create(trajectory=good, source="judge", grader=said_by)
    LabelFactory.create(trajectory=bad, source="judge", grader=said_by, value=None, is_undo=True)


ALL = {"plain", "bad", "good", "out"}


@pytest.mark.parametrize(
    ("q", "titles"),
    [
        ("", ALL),
        ("agent:clerk", {"plain", "bad"}),
        ("agent:clerk,desk", ALL),
        ("agent:nobody", set()),
        ("-agent:clerk", {"good", "out"}),
        ("reward<0.3", {"bad"}),
        ("reward>=0.8", {"good"}),
        ("reward:0.8,-0.5", {"good", "bad"}),
        ("reward:none", {"plain", "out"}),
        ("reward:any", {"good", "bad"}),
        ("-reward<0.3", {"plain", "good", "out"}),
        ("turns>5", {"bad"}),
        ("tokens>=110", {"good"}),
        ("has:error", {"bad"}),
        ("has:reward -has:error", {"good"}),
        ("has:tag", {"good"}),
        ("has:group", {"bad"}),
        ("has:side", {"out"}),
        ("has:parent", {"good"}),
        ("has:parent,group", {"good", "bad"}),
        ("is:complete", {"good"}),
        ("is:excluded", {"out"}),
        ("version:2", {"good"}),
        ("version:v2", {"good"}),
        ("version>=1", {"good", "bad"}),
        ("version:7", set()),
        ("channel:val", {"good"}),
        ("label:none", {"plain", "out"}),
        ("label:any", {"good", "bad"}),
        ("label:judge", {"good"}),
        ("grader:polite", {"good"}),
        ("grader:polite,rude", {"good"}),
        ("grader:rude", set()),
        ("-grader:polite", {"plain", "bad", "out"}),
        ("break:template", {"bad"}),
        ("break:template,edit", {"bad", "good"}),
        ("break:any", {"bad", "good"}),
        ("break:none", {"plain", "out"}),
        ("-break:edit", {"plain", "out", "bad"}),
        ('tag:"late refund"', {"good"}),
        ('group:"g 1"', {"bad"}),
        ("session:s1", {"good"}),
        ("from:2026-11-01 to:2026-11-01", {"good"}),
        ("from:2026-11-01T12:01 to:2026-11-01", set()),
        ("from:36h", {"bad"}),
        ("to:52w", {"out"}),
        ("id:traj_x", set()),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("pool")
def test_each_field_narrows(project: Project, q: str, titles: set[str]) -> None:
    assert find(project, q) == titles


def test_words_are_found_in_messages_and_answers(project: Project, say: Callable[..., Trajectory]) -> None:
    say("I want a Refund for it, see /var/log/shop.log")
    say("refund the late parcel")
    say("nothing here", messages=[{"role": "system", "content": "refund"}, {"role": "user", "content": "parcel"}])
    assert find(project, "refund") == {"I want a Refund for it, see /var/log/shop.log", "refund the late parcel"}
    assert find(project, "refund parcel") == {"refund the late parcel"}
    assert find(project, '"late parcel"') == {"refund the late parcel"}
    assert find(project, '"refund parcel"') == set()
    assert find(project, "parcel -refund") == {"nothing here"}
    assert find(project, "/var/log/shop.log") == {"I want a Refund for it, see /var/log/shop.log"}


def test_tool_calls_and_reasoning_are_searched(project: Project, agent: Agent) -> None:
    answer = b'{"role":"assistant","content":null,"reasoning":"hmm","tool_calls":[{"function":{"name":"look_up","arguments":"{\\"q\\":\\"zebra\\"}"}}]}'  # noqa: E501
    messages = [{"role": "user", "content": [{"type": "text", "text": "stripes"}, {"type": "image_url"}]}, "odd", None]
    row = TrajectoryFactory.create(agent=agent, title="x")
    keep_words([StepFactory.create(trajectory=row, answer=answer, messages=messages)])
    for word in ("hmm", "look_up", "zebra", "stripes"):
        assert find(project, word) == {"x"}


def test_the_recorder_makes_words_searchable(project: Project, key: ApiKey) -> None:
    ExchangeFactory.create(key=key, messages=[{"role": "user", "content": "a zebra \x00 \ud800"}])
    fold_pending()
    assert len(find(project, "zebra")) == 1


def test_a_huge_message_is_searchable_to_its_end(project: Project, say: Callable[..., Trajectory]) -> None:
    say(" ".join(f"w{number}" for number in range(PIECE // 4)) + " needle " + "x" * 200_000)
    assert len(find(project, "needle")) == 1


def test_it_pages_newest_first_and_hides_what_is_deleted_or_elsewhere(project: Project, agent: Agent) -> None:
    rows = [TrajectoryFactory.create(agent=agent, has_error=True) for _ in range(4)]
    Trajectory.objects.filter(pk=rows[2].pk).update(deleted_at=timezone.now())
    TrajectoryFactory.create(has_error=True)
    first = search(project=project, q="has:error", before=None, limit=2)
    assert [row.pk for row in first.items] == [rows[3].pk, rows[1].pk]
    rest = search(project=project, q="has:error", before=first.next_before, limit=2)
    assert [row.pk for row in rest.items] == [rows[0].pk]


def test_numbers_and_slugs_are_the_projects_own(project: Project, pool: None) -> None:
    other = VersionFactory.create(number=5)
    row = Trajectory.objects.get(title="plain")
    keep_words([StepFactory.create(trajectory=row, version=other)])
    assert find(project, "version:5") == set()


def test_a_search_that_takes_too_long_says_what_helps() -> None:
    with pytest.raises(TooSlow, match="narrow it"), patience(limit_ms=20), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(2)")
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


@pytest.mark.parametrize("few", [0, 1, 2000])
def test_rare_and_frequent_words_are_found_alike(
    project: Project, say: Callable[..., Trajectory], monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(compiling, "FEW", few)
    for text in ("zebra one", "zebra two", "horse three"):
        say(text)
    assert find(project, "zebra") == {"zebra one", "zebra two"}
    assert find(project, "-zebra") == {"horse three"}
    assert find(project, "zebra -two") == {"zebra one"}
    assert find(project, "unicorn") == set()
    assert find(project, "-unicorn") == {"zebra one", "zebra two", "horse three"}


@pytest.mark.parametrize(
    ("q", "index"),
    [
        ("group:g7", "trajectory_by_group"),
        ("session:s7,s8", "trajectory_by_session"),
        ("has:error", "trajectory_with_error"),
        ("is:excluded", "trajectory_excluded"),
        ("turns>5", "trajectory_by_steps"),
        ("reward>0.9", "trajectory_by_reward"),
    ],
)
def test_what_few_have_is_found_by_an_index(project: Project, agent: Agent, q: str, index: str) -> None:
    Trajectory.objects.bulk_create(
        Trajectory(
            project=project,
            agent=agent,
            group=f"g{number}" if number % 2 else "",
            session_key=f"s{number}" if number % 3 else "",
            n_steps=9 if number == 7 else 2,
            reward=1.0 if number == 7 else number % 9 / 10,
            has_error=number == 7,
            is_excluded=number == 7,
        )
        for number in range(3000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE trajectories_trajectory")
    rows = find_matching(project=project, query=parse_query(q)).order_by("-pk")[:51]
    assert f" {index} " in rows.explain()
    assert len(rows) == (2 if "," in q else 1)


def test_a_query_that_is_asked_twice_looks_rare_words_up_once(project: Project, say: Callable[..., Trajectory]) -> None:
    said, query = say("zebra one"), parse_query("zebra")
    with CaptureQueriesContext(connection) as queries:
        found = [set(find_matching(project=project, query=query)) for _ in range(2)]
    assert found == [{said}, {said}]
    assert sum("phraseto_tsquery" in each["sql"] for each in queries.captured_queries) == 1


def test_what_is_older_than_the_search_is_indexed_once(project: Project, agent: Agent) -> None:
    row = TrajectoryFactory.create(agent=agent, title="old", n_steps=1)
    StepFactory.create(trajectory=row, text="zebra")
    assert find(project, "zebra") == set()
    for n_done in (1, 0):
        said = StringIO()
        call_command("index_words", stdout=said)
        assert said.getvalue() == f"{n_done} trajectories are searchable now\n"
    assert find(project, "zebra") == {"old"}
    assert row.texts.count() == 1


class TestSearchesThatNoIndexServes:
    """A search that runs out of time looks back piece by piece, and says where it stopped."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "page_newest_first", take_too_long)
        monkeypatch.setattr(services, "FIRST_STRETCH", 3)

    @pytest.fixture
    def made(self, agent: Agent) -> list[str]:
        return [TrajectoryFactory.create(agent=agent, has_error=index in {0, 8}).pk for index in range(10)]

    def test_with_time_it_finds_the_same(
        self, project: Project, made: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "WALK_MS", 60_000)
        page = search(project=project, q="has:error", before=None, limit=5)
        assert [row.pk for row in page.items] == [made[8], made[0]]
        assert (page.next_before, page.is_cut) == (None, False)
        page = search(project=project, q="", before=made[5], limit=3)
        assert ([row.pk for row in page.items], page.next_before) == (made[4:1:-1], made[2])

    def test_without_it_goes_on_from_where_it_stopped(
        self, project: Project, made: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "WALK_MS", 0)
        found, before, n_pages = [], None, 0
        while n_pages == 0 or before is not None:
            page = search(project=project, q="has:error", before=before, limit=5)
            assert page.is_cut == (page.next_before is not None)
            found += [row.pk for row in page.items]
            before, n_pages = page.next_before, n_pages + 1
        assert (found, n_pages) == ([made[8], made[0]], 5)  # the last one finds that there are no more


def take_too_long(*_args: object, **_named: object) -> None:
    raise TooSlow("Postgres takes too long")
