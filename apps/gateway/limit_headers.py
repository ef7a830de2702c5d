"""What an answer's headers say about the caller's limits, in OpenAI's and in Anthropic's form."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One limit by the minute: how much of it is left, and when all of it is back."""

    limit: int
    left: int
    full_in_ms: int


@dataclass(frozen=True, slots=True)
class LimitState:
    """The tightest of the limits that hold for a call, None where there is none."""

    requests: Allowance | None = None
    tokens: Allowance | None = None

    def headers(self, dialect: str) -> dict[str, str]:
        """Return what the clients of a dialect read."""
        return self.openai_headers() | (self.anthropic_headers() if dialect == "messages" else {})

    def openai_headers(self) -> dict[str, str]:
        """Return `x-ratelimit-…`."""
        headers: dict[str, str] = {}
        for name, allowance in (("requests", self.requests), ("tokens", self.tokens)):
            if allowance is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(allowance.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(allowance.left)
                headers[f"x-ratelimit-reset-{name}"] = format_duration(allowance.full_in_ms)
        return headers

    def anthropic_headers(self) -> dict[str, str]:
        """Return `anthropic-ratelimit-…`; times in RFC 3339."""
        headers: dict[str, str] = {}
        for name, allowance in (("requests", self.requests), ("tokens", self.tokens)):
            if allowance is not None:
                full_at = datetime.now(UTC) + timedelta(milliseconds=allowance.full_in_ms)
                headers[f"anthropic-ratelimit-{name}-limit"] = str(allowance.limit)
                headers[f"anthropic-ratelimit-{name}-remaining"] = str(allowance.left)
                headers[f"anthropic-ratelimit-{name}-reset"] = f"{full_at:%Y-%m-%dT%H:%M:%SZ}"
        return headers


def format_duration(ms: int) -> str:
    """Return a time as OpenAI writes it: `20ms`, `1.5s`, `6m0s`."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
