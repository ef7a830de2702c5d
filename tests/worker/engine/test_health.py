"""A server whose engine is dead is told from one that starts and from one that is slow."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from worker.engine import health
from worker.engine.health import HealthWatch


class Server(HTTPServer):
    status = 200


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_one_that_starts_is_not_dead() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        watch = HealthWatch(probe.getsockname()[1], dead_after_s=0)
        assert not watch.is_dead()


def test_one_that_was_well_and_says_503_is_dead(server: Server) -> None:
    watch = HealthWatch(server.server_port, dead_after_s=0)
    assert not watch.is_dead()
    server.status = 503
    assert watch.is_dead()
    server.status = 200
    assert not watch.is_dead()


def test_one_that_was_well_and_closed_its_port_is_dead_after_a_while(server: Server) -> None:
    soon, later = (HealthWatch(server.server_port, dead_after_s=s) for s in (0, 60))
    assert not soon.is_dead()
    assert not later.is_dead()
    server.shutdown()
    server.server_close()
    assert soon.is_dead()
    assert not later.is_dead()


def test_one_that_lets_its_caller_wait_is_slow(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    watch = HealthWatch(server.server_port, dead_after_s=0)
    assert not watch.is_dead()
    server.shutdown()  # it still listens
    monkeypatch.setattr(health, "ASK_EVERY_S", 0.2)
    assert not watch.is_dead()
