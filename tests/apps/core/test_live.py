"""News of projects: numbered without gaps, kept for a while, and told as a gap where it is not kept any more."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.conf import settings
from django.db import connection, transaction
from pytest_django.fixtures import Settings

from apps.core.ids import new_id
from apps.core.live import GAP, KEPT, News, find_newest, list_news, news_at_once, publish_many, publish_news

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project_id() -> str:
    return new_id("proj")


def publish(project_id: str, *ids: str) -> int:
    publish_many(dict.fromkeys(ids, project_id), kind="run")
    newest = find_newest(project_id)
    assert newest is not None
    return newest


def test_news_has_numbers_without_gaps_and_is_read_from_one_on(project_id: str) -> None:
    first = publish(project_id, "run_1")
    publish(project_id, "run_2", "run_3")
    assert list_news(project_id, since=first) == [
        News(number=first + 1, kind="run", id="run_2"),
        News(number=first + 2, kind="run", id="run_3"),
    ]
    assert list_news(project_id, since=first + 2) == []


def test_many_at_once_get_a_number_each(project_id: str) -> None:
    first = publish(project_id, "run_0")

    def publish_one(number: int) -> None:
        publish_news(project_id, kind="run", object_id=f"run_{number}")
        connection.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(publish_one, range(1, 21)))
    news = list_news(project_id, since=first)
    assert [one.number - first for one in news] == list(range(1, 21))
    assert {one.id for one in news} == {f"run_{n}" for n in range(1, 21)}


def test_what_is_not_kept_any_more_is_a_gap(project_id: str) -> None:
    first = publish(project_id, "run_0")
    newest = publish(project_id, *(f"run_{n}" for n in range(1, 2 * KEPT)))
    assert newest == first + 2 * KEPT - 1
    assert list_news(project_id, since=first) == [News(number=newest, kind=GAP, id="")]
    assert len(list_news(project_id, since=newest - 3)) == 3


def test_numbers_go_on_rising_when_valkey_has_lost_them(project_id: str) -> None:
    before = publish(project_id, "run_0")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(f"claw:news:{project_id}")
    assert find_newest(project_id) is None
    assert list_news(project_id, since=before) == []
    after = publish(project_id, "run_1")
    assert after > before
    assert list_news(project_id, since=before - 1) == [News(number=after, kind=GAP, id="")]


def test_what_is_rolled_back_is_no_news(project_id: str) -> None:
    with transaction.atomic():
        publish_news(project_id, kind="run", object_id="run_1")
        transaction.set_rollback(True)
    assert find_newest(project_id) is None


def test_what_is_gathered_is_told_of_after_commit(project_id: str) -> None:
    first = publish(project_id, "run_0")
    with transaction.atomic(), news_at_once():
        publish_news(project_id, kind="trajectory", object_id="traj_1")
        publish_news(project_id, kind="queue", object_id="queue_1")
        assert find_newest(project_id) == first
    assert [(one.number - first, one.kind) for one in list_news(project_id, since=first)] == [
        (1, "trajectory"),
        (2, "queue"),
    ]
    with transaction.atomic(), news_at_once():
        publish_news(project_id, kind="queue", object_id="queue_1")
        transaction.set_rollback(True)
    assert find_newest(project_id) == first + 2


def test_while_valkey_is_away_nothing_fails(project_id: str, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    publish_news(project_id, kind="run", object_id="run_1")
    assert find_newest(project_id) is None
    assert list_news(project_id, since=3) == []
