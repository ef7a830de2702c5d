"""Waiting for services."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from worker.host import health
from worker.host.errors import HostError


@pytest.fixture
def server() -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/good" else 503)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_an_answer_is_healthy_and_an_error_is_not(server: str) -> None:
    assert health.check_http(f"{server}/good") is None
    assert health.check_http(f"{server}/bad") is not None


def test_nobody_there_is_said(free_port: int) -> None:
    assert "refused" in str(health.check_http(f"http://127.0.0.1:{free_port}/"))
    assert health.check_redis(f"redis://127.0.0.1:{free_port}/0") is not None
    assert health.check_postgres(f"host=127.0.0.1 port={free_port} dbname=x user=x") is not None


def test_waiting_ends_as_soon_as_the_check_passes() -> None:
    answers = iter(["not yet", "not yet", None])
    assert health.wait_until_healthy("it", lambda: next(answers), timeout_s=5, every_s=0) < 5


def test_long_waiting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STILL_S", -1.0)
    answers, said = iter(["not yet", "not yet", None]), list[str]()
    health.wait_until_healthy("it", lambda: next(answers), timeout_s=5, say=said.append, every_s=0)
    assert said == ["it: not ready yet, after 0 s of up to 5 s"] * 2


def test_waiting_gives_up_with_the_last_problem() -> None:
    with pytest.raises(HostError, match=r"it is not healthy after 0 s: still asleep"):
        health.wait_until_healthy("it", lambda: "still asleep", timeout_s=0, every_s=0)


def test_waiting_ends_at_once_when_it_is_dead() -> None:
    with pytest.raises(HostError, match="it died"):
        health.wait_until_healthy("it", lambda: "down", timeout_s=60, death=lambda: "it died")
