"""Clients that send half a request, or do not read what they asked for."""

import gc
import json
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from apps.gateway import bodies, guard
from apps.trajectories.models import Exchange, ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer, chat, only_exchange, wait_until
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"


@contextmanager
def connected(gateway: GatewayServer, *, receive_buffer: int = 0) -> Iterator[socket.socket]:
    """A connection on which each byte is ours to send."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(10)
        client.connect((host, int(port)))
        yield client


def head(secret: str, *, length: int) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "host: x", f"authorization: Bearer {secret}", f"content-length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def assert_still_serves(http: httpx.Client) -> None:
    assert http.post(PATH, json=chat()).status_code == 200


@pytest.mark.parametrize("sent", [b"", b'{"model"'])
def test_a_body_that_stops_is_a_408_in_words(
    gateway: GatewayServer, http: httpx.Client, secret: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(bodies, "IDLE_S", 0.2)
    with connected(gateway) as client:
        client.sendall(head(secret, length=100) + sent)
        answer = read_all(client)

    status, _, body = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert not Exchange.objects.exists()
    assert_still_serves(http)


def test_a_body_that_trickles_for_ever_is_ended_too(
    gateway: GatewayServer, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "WHOLE_S", 1.5)
    with connected(gateway) as client:
        client.sendall(head(secret, length=10_000))
        began = time.monotonic()
        for _ in range(5):
            client.sendall(b"x")
            time.sleep(0.1)
        assert read_all(client).startswith(b"HTTP/1.1 408 ")

    assert time.monotonic() - began < bodies.IDLE_S


def test_a_body_in_pieces_is_taken(gateway: GatewayServer, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "IDLE_S", 1.5)
    body = json.dumps(chat()).encode()
    began = time.monotonic()
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        for start in range(0, len(body), 20):
            client.sendall(body[start : start + 20])
            time.sleep(0.5)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - began > bodies.IDLE_S


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_shuts_its_side_once_it_has_asked_gets_its_answer(
    gateway: GatewayServer, engine: FakeEngine, secret: str, is_streamed: bool
) -> None:
    engine.script.first_pause_s = 3 * guard.PROBE_EVERY_S
    body = json.dumps(chat(stream=is_streamed)).encode()
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        interim, _, answer = read_all(client).rpartition(b"HTTP/1.1 200 ")

    assert answer.endswith((b"}", b"0\r\n\r\n"))
    assert b"connection: close" in answer
    assert set(filter(None, interim.split(b"\r\n"))) == {b"HTTP/1.1 100 Continue"}
    assert only_exchange().status == ExchangeStatus.COMPLETE


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_of_http_1_0_gets_its_answer_without_chunks(
    gateway: GatewayServer, secret: str, is_streamed: bool
) -> None:
    body = json.dumps(chat(stream=is_streamed)).encode()
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        heading, _, answer = read_all(client).partition(b"\r\n\r\n")

    assert b"transfer-encoding" not in heading
    assert b"connection: close" in heading
    assert (b"content-length" in heading) is not is_streamed
    if is_streamed:
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["object"] == "chat.completion"
    assert only_exchange().status == ExchangeStatus.COMPLETE


def test_a_client_that_shuts_its_side_in_the_midst_of_asking_has_left(
    gateway: GatewayServer, http: httpx.Client, secret: str
) -> None:
    with connected(gateway) as client:
        client.sendall(head(secret, length=100) + b"{")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    assert not Exchange.objects.exists()
    assert_still_serves(http)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_client_that_asks_ahead_and_hangs_up_ends_what_it_was_being_answered(
    gateway: GatewayServer,
    http: httpx.Client,
    engine: FakeEngine,
    secret: str,
    caplog: pytest.LogCaptureFixture,
    *,
    is_streamed: bool,
    is_cut: bool,
) -> None:
    engine.script.first_pause_s = 0.0 if is_streamed else 1.0
    engine.script.pause_s = 0.2 if is_streamed else 0.0
    engine.script.pieces = ["otter"] * 20
    body = json.dumps(chat(stream=is_streamed)).encode()
    with connected(gateway) as client:
        client.sendall(2 * (head(secret, length=len(body)) + body))
        wait_until(lambda: engine.calls)
        if is_cut:  # it resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    (call,) = engine.calls
    wait_until(lambda: call.is_cancelled)
    assert only_exchange().status == ExchangeStatus.ABORTED
    engine.script.first_pause_s = engine.script.pause_s = 0.0
    assert_still_serves(http)
    assert len(engine.calls) == 2  # the second was never begun
    assert not [record for record in caplog.records if record.exc_info]


def test_a_half_head_ends_the_answer_before_it_without_a_word(
    world: None, engine: FakeEngine, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 1.0)
    engine.script.pieces, engine.script.pause_s = ["otter"] * 100, 0.1
    body = json.dumps(chat(stream=True)).encode()
    with GatewayServer() as gateway, connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(lambda: engine.calls)
        client.sendall(b"POST /v1")
        answer = read_all(client)

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " not in answer
        assert not answer.endswith(b"0\r\n\r\n")  # nobody takes it for whole
        assert only_exchange().status == ExchangeStatus.ABORTED


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_wish_for_another_protocol_does_not_cost_the_body(
    gateway: GatewayServer, secret: str, protocol: str, is_second: bool
) -> None:
    body = json.dumps(chat()).encode()
    plain = head(secret, length=len(body))
    wish = f"\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAEAAEAA\r\n\r\n"
    asking = plain.replace(b"\r\n\r\n", wish.encode())
    with connected(gateway) as client:
        if is_second:
            client.sendall(plain + body)
            wait_until(Exchange.objects.exists)
        client.sendall(asking)  # the body comes by itself, as Java's client sends it
        time.sleep(0.05)
        client.sendall(body)
        assert read_all(client).count(b"HTTP/1.1 200 ") == 1 + is_second


def test_a_handshake_of_a_websocket_is_left_alone() -> None:
    handshake = b"GET /live HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
    assert guard.hide_upgrade(handshake) == handshake
    said = b'POST / HTTP/1.1\r\nhost: x\r\n\r\n{"a": "\r\nupgrade: h2c\r\n"}'
    assert guard.hide_upgrade(said) == said


@pytest.mark.parametrize(("sent", "answer"), [(b"", b""), (b"POST /v1/chat HTTP/1.1\r\nx: ", b"HTTP/1.1 408 ")])
def test_a_head_that_does_not_end_ends_the_connection(
    world: None, monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 1.0)
    with GatewayServer() as gateway, connected(gateway) as client:
        client.sendall(sent)
        for _ in range(2):
            time.sleep(0.1)
            client.sendall(b"y" if sent else b"")
        assert read_all(client).startswith(answer)


def test_a_second_head_on_a_connection_is_timed_too(
    gateway: GatewayServer, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 1.0)
    body = json.dumps(chat()).encode()
    with connected(gateway) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(Exchange.objects.exists)
        client.sendall(b"POST /v1")
        answers = read_all(client)
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answers


def test_a_head_without_measure_is_refused(gateway: GatewayServer, http: httpx.Client) -> None:
    with connected(gateway) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        n_sent = 0
        with suppress(ConnectionError):  # it closes the door while we are still talking
            while not select.select([client], [], [], 0)[0]:
                n_sent += client.send(b"x-header: " + b"y" * 1000 + b"\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 431 ")
        assert n_sent < 100 * guard.MAX_HEAD_BYTES  # buffers of the system's
    assert_still_serves(http)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_large_head_is_refused_before_its_sender_is_known(
    gateway: GatewayServer, secret: str, *, is_known: bool, is_second: bool
) -> None:
    body = json.dumps(chat()).encode()
    plain = head(secret if is_known else "wrong", length=len(body))
    large = plain.replace(b"\r\n\r\n", b"\r\nx-large: " + b"y" * 70_000 + b"\r\n\r\n")
    with connected(gateway) as client:
        if is_second:
            client.sendall(head(secret, length=len(body)) + body)
            wait_until(Exchange.objects.exists)
        client.sendall(large + body)
        answers = read_all(client)
    assert answers.count(b"HTTP/1.1 200 ") == Exchange.objects.count() == is_second
    assert b"HTTP/1.1 431 " in answers
    assert answers.endswith(b"larger than 64 KiB together.\n")


def test_a_large_body_is_no_large_head(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.max_prompt_chars = 10**6
    long = [{"role": "user", "content": "x" * 3 * guard.MAX_HEAD_BYTES}]
    assert [http.post(PATH, json=chat(messages=long)).status_code for _ in range(2)] == [200, 200]


def test_a_client_that_does_not_read_holds_up_the_engine_and_is_cut_off(
    gateway: GatewayServer, http: httpx.Client, engine: FakeEngine, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_S", 1.0)
    engine.script.has_logprobs = False  # the fake's are slow to make
    n_pieces, piece = 20_000, "x" * 4000
    engine.script.pieces = [piece] * n_pieces
    body = json.dumps(chat(stream=True)).encode()
    gc.collect()
    before = psutil.Process().memory_info().rss
    with connected(gateway, receive_buffer=4096) as client:
        client.sendall(head(secret, length=len(body)) + body)
        wait_until(lambda: engine.calls)
        (call,) = engine.calls
        wait_until(lambda: call.is_cancelled, timeout_s=20)
        grown = psutil.Process().memory_info().rss - before

    assert call.n_chunks_sent < n_pieces // 2  # it was held up while the client did not read
    assert grown < 100 * 1024 * 1024
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ABORTED
    kept = json.loads(bytes(exchange.response or b""))["choices"][0]["message"]["content"]
    assert 0 < len(kept) <= call.n_chunks_sent * len(piece)
    engine.script.pieces = ["ok"]
    assert_still_serves(http)


def test_a_client_that_reads_slowly_gets_everything(
    gateway: GatewayServer, engine: FakeEngine, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_S", 1.0)
    engine.script.has_logprobs = False  # the fake's are slow to make
    engine.script.pieces = ["x" * 4000] * 300
    body = json.dumps(chat(stream=True)).encode()
    with connected(gateway, receive_buffer=4096) as client:
        client.sendall(head(secret, length=len(body)).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body)
        answer = b""
        while part := client.recv(60_000):
            answer += part
            time.sleep(0.02)

    assert answer.count(b"x" * 4000) == 300
    assert b"data: [DONE]" in answer
    assert only_exchange().status == ExchangeStatus.COMPLETE
