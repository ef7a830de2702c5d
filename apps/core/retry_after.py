"""Reads `Retry-After`: what another server says of when it may be asked again."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_S = 3600  # whoever asks for more is asked again all the same


def read_retry_after_s(value: str) -> int:
    """Return the seconds to wait, at most `LONGEST_S`; 0 for a header that says nothing (or is not there: "")."""
    if value.isascii() and value.isdigit():
        return min(int(value[:9]), LONGEST_S)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, min(int((moment - datetime.now(UTC)).total_seconds()) + 1, LONGEST_S))
