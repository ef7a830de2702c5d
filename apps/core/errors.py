"""The one family of errors that services raise. Each door renders them in its own dialect; none knows HTTP's shapes."""

from collections.abc import Sequence


class ServiceError(Exception):
    """Something the caller asked for cannot be done. The message says what to do next.

    `retry_after_s`: when the same may be asked again; None where that is of no use. `faults`: this one and whatever
    else is wrong, where all of it was looked for.
    """

    status = 400
    code = "invalid_request"
    usual_retry_after_s: int | None = None

    def __init__(self, message: str, *, field: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = self.usual_retry_after_s if retry_after_s is None else retry_after_s
        self.faults: Sequence[ServiceError] = ()


class InvalidInput(ServiceError):
    """A value is out of range or does not fit the others; `field` names it."""

    code = "invalid_input"


class TooLarge(ServiceError):
    """More came at once than one call may bring."""

    status = 413
    code = "request_too_large"


class NotFound(ServiceError):
    """No such thing in this team: another team's id and a missing one look the same."""

    status = 404
    code = "not_found"


class Forbidden(ServiceError):
    """The caller is known and may see the thing, but its role may not do this."""

    status = 403
    code = "forbidden"


class Conflict(ServiceError):
    """The thing's state does not allow this now."""

    status = 409
    code = "conflict"


class TooMany(ServiceError):
    """The caller asks more often than it may; `retry_after_s` says when it may again."""

    status = 429
    code = "rate_limited"
    usual_retry_after_s = 5


class Unavailable(ServiceError):
    """A part that this needs does not answer; trying again later may help."""

    status = 503
    code = "unavailable"
    usual_retry_after_s = 5


def first_of(faults: Sequence[ServiceError]) -> ServiceError:
    """Return the first of all that is wrong, to be raised: it knows the others."""
    faults[0].faults = faults
    return faults[0]
