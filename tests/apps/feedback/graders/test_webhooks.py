"""Webhooks: signed, never to where they must not go, never back to us, and nonsense is a failure with words."""

import hashlib
import hmac
import json
import socket
import time

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from apps.core import outward
from apps.core.errors import Forbidden, InvalidInput
from apps.core.outward import MARK_HEADER, check_url, own_mark
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.subjects import Subject
from apps.feedback.graders.webhooks import WebhookSettings, grade_by_webhook, read_answer
from apps.trajectories.models import Trajectory
from tests.fakes.webhook import FakeWebhook

SUBJECT = Subject(
    trajectory=Trajectory(id="traj_x", metadata={"task": 1}),
    step_id="step_x",
    messages=[{"role": "user", "content": "hello"}],
    answer={"role": "assistant", "content": "hi"},
)


def ask(url: str, *, timeout_s: float = 5) -> Outcome:
    given = WebhookSettings(url=url, timeout_s=timeout_s)
    return grade_by_webhook(given, SUBJECT, secret="whsec", version="mine@v1")


def test_it_sends_the_subject_signed(webhook: FakeWebhook) -> None:
    assert ask(webhook.url) == Grade(value=1, text="fine", n_calls=1)
    [(headers, body)] = webhook.calls
    assert (body["grader"], body["step"], body["metadata"]) == ("mine@v1", "step_x", {"task": 1})
    assert headers["idempotency-key"] == "mine@v1:step_x"
    at, signature = (part.partition("=")[2] for part in headers["x-claw-signature"].split(","))
    assert abs(int(at) - time.time()) < 60
    signed = f"{at}.".encode() + json.dumps(body).encode()
    assert hmac.compare_digest(signature, hmac.new(b"whsec", signed, hashlib.sha256).hexdigest())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"fine",
        b"[]",
        b'{"score": 1}',
        b'{"value": "1"}',
        b'{"value": 1, "text": 3}',
        b'{"value": 1%s}' % (b"0" * 400),
        b"[" * 50_000,
        b"\xff",
    ],
)
def test_nonsense_is_a_failure_in_words(content: bytes) -> None:
    outcome = read_answer(content)
    assert isinstance(outcome, Failure)
    assert "nonsense" in outcome.why


def test_null_says_nothing() -> None:
    assert isinstance(read_answer(b'{"value": null}'), NoGrade)


@pytest.mark.parametrize(("status", "is_final"), [(500, False), (429, False), (404, True), (401, True)])
def test_an_error_is_told(webhook: FakeWebhook, status: int, is_final: bool) -> None:
    webhook.status = status
    outcome = ask(webhook.url)
    assert outcome == Failure(why=f"the webhook answered {status}", is_final=is_final, n_calls=1)


def test_how_long_it_wants_to_be_left_alone_is_heard(webhook: FakeWebhook) -> None:
    webhook.status, webhook.headers = 429, {"Retry-After": "120"}
    outcome = ask(webhook.url)
    assert isinstance(outcome, Failure)
    assert outcome.retry_after_s == 120


def test_it_follows_no_redirect(webhook: FakeWebhook) -> None:
    webhook.status, webhook.headers = 302, {"Location": webhook.url}
    outcome = ask(webhook.url)
    assert isinstance(outcome, Failure)
    assert "points elsewhere" in outcome.why
    assert len(webhook.calls) == 1


def test_one_that_never_answers_is_given_up(webhook: FakeWebhook) -> None:
    webhook.pause_s = 3
    outcome = ask(webhook.url, timeout_s=1)
    assert isinstance(outcome, Failure)
    assert "no answer in 1 s" in outcome.why
    assert not outcome.is_final


def test_one_that_sends_a_byte_now_and_then_is_given_up(webhook: FakeWebhook) -> None:
    webhook.drip_s, webhook.content = 0.1, b" " * 100
    started = time.monotonic()
    outcome = ask(webhook.url, timeout_s=1)
    assert isinstance(outcome, Failure)
    assert "no answer in 1 s" in outcome.why
    assert time.monotonic() - started < 8  # all of it would take ten


def test_one_that_does_not_stop_is_cut_off(webhook: FakeWebhook) -> None:
    webhook.content = b"x" * 100_000
    outcome = ask(webhook.url)
    assert isinstance(outcome, Failure)
    assert "more than 65536 bytes" in outcome.why


def test_one_that_is_down_is_tried_again_later(settings: Settings) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"webhook_hosts": ("127.0.0.1",)})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outcome = ask(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert isinstance(outcome, Failure)
    assert not outcome.is_final


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "http://[::1]:9/",
        "http://0.0.0.0:9/",
        "http://10.1.2.3/",
        "http://192.168.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://100.64.0.1/",
        "http://[fd00::1]/",
        "http://[::ffff:127.0.0.1]:9/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:0:7f00:1]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[fec0::1]/",
        "http://192.0.0.8/",
        "http://224.0.0.1/",
        "http://2130706433:9/",
    ],
)
def test_addresses_that_are_not_on_the_open_internet_are_refused(url: str) -> None:
    with pytest.raises(Forbidden, match="CLAW_WEBHOOK_HOSTS"):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["http://1.1.1.1/\r\nX: y", "http://1.1.1.1/ x", "http://1.1.1.1/\tx", "http://1.1.1.1/#"]
)
def test_addresses_that_no_client_could_ask_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"blanks|#"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org/",
        "https://",
        "https://a:b@example.org/",
        "https://x:99999/",
        "http://no.invalid/",
        "http://1.1.1.1:0/",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_url(url)


def test_the_platform_does_not_call_itself_even_where_its_host_is_allowed(settings: Settings) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"webhook_hosts": ("127.0.0.1", "localhost"), "port": 8123})
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(Forbidden, match="this platform itself"):
            check_url(f"http://{host}:8123/api/v1/labels")


def test_a_name_that_has_moved_is_refused_before_anything_is_sent(
    webhook: FakeWebhook, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """The name led to an open address when it was looked up, and to this machine when it was called."""
    settings.CLAW = settings.CLAW.model_copy(update={"webhook_hosts": ()})
    monkeypatch.setattr(outward, "_check_host", lambda _parts, **_field: None)
    outcome = ask(webhook.url)
    assert isinstance(outcome, Failure)
    assert "CLAW_WEBHOOK_HOSTS" in outcome.why
    assert webhook.calls == []


def test_a_webhook_that_leads_back_through_a_proxy_is_known_by_its_mark(webhook: FakeWebhook, client: Client) -> None:
    answer = client.post("/api/v1/labels", headers={MARK_HEADER: own_mark()})
    assert (answer.status_code, answer[MARK_HEADER]) == (508, own_mark())
    assert client.post("/api/v1/labels", headers={MARK_HEADER: "another"}).status_code != 508
    webhook.status, webhook.headers = 508, {MARK_HEADER: own_mark()}
    outcome = ask(webhook.url)
    assert isinstance(outcome, Failure)
    assert "leads back to this platform" in outcome.why
    assert outcome.is_final
