"""A fresh server's first call is its own."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from worker.engine.warming import warm_up


class Server(HTTPServer):
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, object]]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"no such model")

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_it_is_asked_once_with_a_prompt_of_many_tokens(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    warm_up(server.server_port, "base")
    ((path, body),) = server.asked
    assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "base", 2)
    assert len(str(body["prompt"]).split()) > 32
    assert capsys.readouterr().err == ""


def test_a_failure_is_told_and_ends_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.status = 404
    warm_up(server.server_port, "other")
    assert "the first call failed: 404 b'no such model'" in capsys.readouterr().err
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        warm_up(closed.getsockname()[1], "base")
    assert "the first call failed: ConnectionRefusedError" in capsys.readouterr().err
