"""Clients that send more around their bodies than belongs there, or ask far ahead."""

import json
import socket
import threading
from contextlib import suppress

import httpx
import pytest

from apps.gateway import guard
from apps.trajectories.models import ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer, chat, only_exchange, wait_until
from tests.apps.gateway.test_slow_clients import assert_still_serves, connected, head, read_all
from tests.fakes.engine import FakeEngine

ENDLESS = b"x-more: " + b"y" * 1000 + b"\r\n"
MOST_SENT = 100 * guard.MAX_HEAD_BYTES  # buffers of the system's
AFTER = {  # what a body's measure does not hold
    "fields after a body in chunks": (b"2\r\n{}\r\n0\r\n", ENDLESS),
    "a chunk's own words": (b"2;", b"y" * 1000),
}


def chunked(secret: str) -> bytes:
    return head(secret, length=0).replace(b"content-length: 0", b"transfer-encoding: chunked")


@pytest.mark.parametrize("around", AFTER)
@pytest.mark.parametrize("is_known", [False, True])
def test_what_comes_after_a_body_has_a_measure(
    gateway: GatewayServer, http: httpx.Client, secret: str, *, around: str, is_known: bool
) -> None:
    start, endless = AFTER[around]
    with connected(gateway) as client:
        client.sendall(chunked(secret if is_known else "wrong"))
        if not is_known:
            assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
        client.sendall(start)
        assert_cut_off(client, endless)
    assert_still_serves(http)


def test_a_head_after_a_request_that_was_refused_unread_has_a_measure(
    gateway: GatewayServer, http: httpx.Client
) -> None:
    with connected(gateway) as client:
        client.sendall(head("wrong", length=10))
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
        client.sendall(b"x" * 10 + b"GET / HTTP/1.1\r\n")
        assert_cut_off(client, ENDLESS)
    assert_still_serves(http)


def assert_cut_off(client: socket.socket, piece: bytes) -> None:
    n_sent = 0
    with suppress(ConnectionError):
        while n_sent < 2 * MOST_SENT:
            n_sent += client.send(piece)
    assert n_sent < MOST_SENT


def test_fields_after_a_body_are_none_of_the_requests(gateway: GatewayServer, secret: str) -> None:
    body = json.dumps(chat()).encode()
    anonymous = chunked(secret).replace(b"authorization", b"x-none")
    with connected(gateway) as client:
        client.sendall(
            anonymous + b"%x\r\n%b\r\n0\r\nauthorization: Bearer %b\r\n\r\n" % (len(body), body, secret.encode())
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
        client.sendall(head(secret, length=len(body)) + body)  # the connection is fine
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_is_no_request_ends_the_answer_before_it(
    gateway: GatewayServer, http: httpx.Client, engine: FakeEngine, secret: str, *, has_begun: bool
) -> None:
    engine.script.first_pause_s = 0.0 if has_begun else 5.0
    engine.script.pieces, engine.script.pause_s = ["otter"] * 100, 0.1
    body = json.dumps(chat(stream=True)).encode()
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(lambda: engine.calls)
        answer = client.recv(65536) if has_begun else b""
        client.sendall(b"otter\x00\r\n\r\n")
        answer += read_all(client)

    assert answer.startswith(b"HTTP/1.1 200 " if has_begun else b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1  # no words in the midst of others
    assert only_exchange().status == ExchangeStatus.ABORTED
    engine.script.first_pause_s = engine.script.pause_s = 0.0
    assert_still_serves(http)


def test_a_client_that_asks_far_ahead_is_read_as_it_is_answered(
    gateway: GatewayServer, engine: FakeEngine, secret: str
) -> None:
    engine.script.first_pause_s = 1.0
    body = json.dumps(chat()).encode()
    n_asked, n_waiting = 3000, 0
    asked = b"GET /healthz HTTP/1.1\r\n" + ENDLESS + b"\r\n"
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(lambda: engine.calls)
        sender = threading.Thread(target=client.sendall, args=(n_asked * asked,))
        sender.start()
        answers = b""
        (connection,) = gateway.server.server_state.connections
        assert isinstance(connection, guard.GuardedProtocol)
        while answers.count(b"HTTP/1.1 200 ") <= n_asked:
            answers += client.recv(65536)
            n_waiting = max(n_waiting, len(connection.pipeline))
        sender.join()
    assert guard.MOST_AHEAD < n_waiting < n_asked / 2  # what one read brings, and no more
    assert only_exchange().status == ExchangeStatus.COMPLETE


@pytest.mark.parametrize("has_begun", [False, True])
def test_who_asks_for_a_socket_before_its_answer_gets_neither(
    world: None, engine: FakeEngine, secret: str, caplog: pytest.LogCaptureFixture, *, has_begun: bool
) -> None:
    engine.script.first_pause_s = 0.0 if has_begun else 5.0
    engine.script.pieces, engine.script.pause_s = ["otter"] * 100, 0.1
    body = json.dumps(chat(stream=True)).encode()
    wish = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    with GatewayServer(has_sockets=True) as gateway, connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(lambda: engine.calls)
        answer = client.recv(65536) if has_begun else b""
        client.sendall(wish)
        answer += read_all(client)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert only_exchange().status == ExchangeStatus.ABORTED
    assert not [record for record in caplog.records if record.exc_info]
