"""A grader behind an address of the team's own: it is sent the subject, signed, and answers with a value.

The signature is HMAC-SHA256 by the grader's secret over `<time>.<body>`, in `X-Claw-Signature: t=<time>,v1=<hex>`; a
receiver that looks at the time too cannot be sent an old call again.
"""

import hashlib
import hmac
import json
import time
from typing import Annotated, Any

from pydantic import Field

from apps.core.errors import Forbidden, InvalidInput, ServiceError
from apps.core.outward import MAX_URL, post_outward
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.settings import Targeted
from apps.feedback.graders.subjects import Subject

MAX_ANSWER = 64 * 1024
MAX_TEXT = 2000
MAX_VALUE = 1e9
GONE_WRONG = 500
TOO_MANY = 429


class WebhookSettings(Targeted):
    """Where to ask. The answer is `{"value": …, "text": "", "hint": ""}`; a value of null says nothing."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_URL)]
    timeout_s: Annotated[float, Field(ge=1, le=60)] = 15
    calls_per_day: Annotated[int | None, Field(ge=1, le=10**7)] = None


def sign_body(secret: str, body: bytes, *, at: int) -> str:
    """Return the header by which a receiver knows that the call is ours, and of when."""
    digest = hmac.new(secret.encode(), str(at).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def grade_by_webhook(settings: WebhookSettings, subject: Subject, *, secret: str, version: str) -> Outcome:
    """Ask the webhook about one subject."""
    body = json.dumps({"grader": version, **subject.as_data()}).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Claw-Signature": sign_body(secret, body, at=int(time.time())),
        "Idempotency-Key": f"{version}:{subject.step_id or subject.trajectory.pk}",
    }
    try:
        answer = post_outward(settings.url, body, headers=headers, read_s=settings.timeout_s, max_bytes=MAX_ANSWER)
    except (Forbidden, InvalidInput) as error:
        return Failure(why=error.message, is_final=True, n_calls=1)
    except ServiceError as error:
        return Failure(why=error.message, n_calls=1)
    if answer.status // 100 != 2:
        is_final = answer.status < GONE_WRONG and answer.status != TOO_MANY
        why = f"the webhook answered {answer.status}"
        return Failure(why=why, is_final=is_final, n_calls=1, retry_after_s=answer.retry_after_s)
    return read_answer(answer.content)


def read_answer(content: bytes) -> Outcome:
    """Return what the webhook said."""
    try:
        said: Any = json.loads(content)
    except (ValueError, RecursionError):
        return _nonsense(content)
    if not isinstance(said, dict) or "value" not in said:
        return _nonsense(content)
    value, text, hint = said["value"], said.get("text", ""), said.get("hint", "")
    if value is None:
        return NoGrade(why="the webhook says nothing of it", n_calls=1)
    is_number = isinstance(value, (int, float)) and abs(value) <= MAX_VALUE
    if not is_number or not isinstance(text, str) or not isinstance(hint, str):
        return _nonsense(content)
    return Grade(value=value, text=_clean(text), hint=_clean(hint), n_calls=1)


def _clean(text: str) -> str:
    return text.encode(errors="ignore").decode().replace("\x00", "")[:MAX_TEXT]


def _nonsense(content: bytes) -> Failure:
    shown = content[:200].decode(errors="replace")
    return Failure(why=f'the webhook answered nonsense: {shown!r}; it is to answer {{"value": …}}', n_calls=1)
