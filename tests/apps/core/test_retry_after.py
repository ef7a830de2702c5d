from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from apps.core.retry_after import LONGEST_S, read_retry_after_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0), ("7", 7), ("9" * 5000, LONGEST_S), ("", 0), ("-5", 0), ("soon", 0), ("1.5", 0), ("٣", 0)],
)
def test_seconds(value: str, seconds: int) -> None:
    assert read_retry_after_s(value) == seconds


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(90, 88, 91), (-90, 0, 0), (10**6, LONGEST_S, LONGEST_S)])
def test_a_date_is_seconds_from_now(ahead_s: int, least: int, most: int) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=ahead_s)
    for value in (format_datetime(moment, usegmt=True), format_datetime(moment.replace(tzinfo=None))):
        assert least <= read_retry_after_s(value) <= most


@pytest.mark.parametrize(
    "value",
    [
        f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}",
        f"Mon, {'9' * 20} Jan 2024 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 +2300",
        "x" * 10_000,
    ],
)
def test_whatever_another_server_says_does_no_harm(value: str) -> None:
    assert read_retry_after_s(value) == 0
