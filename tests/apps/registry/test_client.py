"""What the engine's client makes of an engine's answers."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from apps.registry import client as client_module
from apps.registry.client import TOP_LOGPROBS, EngineClient, EngineNonsense, EngineRefused, EngineUnreachable
from tests.fakes.adapter_engine import FakeEngine


def test_it_lists_base_and_adapters(fake_engine: FakeEngine) -> None:
    fake_engine.adapters["a"] = "x"
    with EngineClient(fake_engine.base_url) as client:
        assert [(model.name, model.parent) for model in client.list_models()] == [("tiny", ""), ("a", "tiny")]


def test_it_reads_the_logprobs_that_are_wanted(fake_engine: FakeEngine) -> None:
    with EngineClient(fake_engine.base_url) as client:
        assert client.probe_logprobs("tiny", [9, 1, 2], [(0, 1), (1, 2)]) == pytest.approx([-0.2, -0.3])


def test_a_token_that_the_engine_does_not_name_counts_as_its_last(fake_engine: FakeEngine) -> None:
    with EngineClient(fake_engine.base_url) as client:
        assert client.probe_logprobs("tiny", [9, 1], [(0, 400)]) == pytest.approx([-0.7])


def test_what_happened_to_be_sampled_is_not_among_the_first(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = {token: -token / 10 for token in range(TOP_LOGPROBS)} | {400: -9.0}
    monkeypatch.setattr(EngineClient, "list_top_logprobs", lambda *_args, **_more: [top, top])
    with EngineClient(fake_engine.base_url) as client:
        found = client.probe_logprobs("tiny", [9, 1], [(0, 400), (1, 3)])
    assert found == pytest.approx([-(TOP_LOGPROBS - 1) / 10, -0.3])


def test_a_refusal_carries_the_engines_words(fake_engine: FakeEngine) -> None:
    fake_engine.refuses = "rank 4 is not supported"
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineRefused, match="rank 4"):
        client.load_adapter("a", "/nowhere")


def test_unloading_what_is_gone_is_no_error(fake_engine: FakeEngine) -> None:
    with EngineClient(fake_engine.base_url) as client:
        client.unload_adapter("never-there")


def test_a_broken_engine_counts_as_unreachable(fake_engine: FakeEngine) -> None:
    fake_engine.breaks = "/v1/models"
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineUnreachable, match="out of memory"):
        client.list_models()


def test_nobody_there_is_unreachable_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with EngineClient(address) as client, pytest.raises(EngineUnreachable) as caught:
            client.list_models()
    assert not caught.value.is_timeout


def test_a_silent_engine_runs_into_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "QUICK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with EngineClient(address) as client, pytest.raises(EngineUnreachable) as caught:
            client.list_models()
    assert caught.value.is_timeout


OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def sends_for_ever(start: bytes, piece: bytes, *, pause_s: float) -> Iterator[str]:
    """The address of a server whose answer does not end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(start)
                while True:
                    connection.sendall(piece)
                    time.sleep(pause_s)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


@pytest.mark.parametrize("start", [OK + b"\r\n", OK + b"x: "])
def test_an_answer_that_trickles_for_ever_runs_into_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_S", 0.5)
    with sends_for_ever(start, b" ", pause_s=0.05) as address, EngineClient(address) as client:
        began = time.monotonic()
        with pytest.raises(EngineUnreachable, match=r"no answer in 0.2 s") as caught:
            client.ask_chat({}, read_s=0.2)
    assert caught.value.is_timeout
    assert time.monotonic() - began < 10


def test_an_answer_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_CHAT", 10**6)
    endless = sends_for_ever(OK + b"\r\n", b" " * 10**5, pause_s=0)
    too_long = pytest.raises(EngineNonsense, match="more than 1000000 bytes")
    with endless as address, EngineClient(address) as client, too_long:
        client.ask_chat({}, read_s=20)


def test_a_connection_is_used_again(fake_engine: FakeEngine) -> None:
    with EngineClient(fake_engine.base_url) as client:
        for _ in range(3):
            client.list_models()
        pool = client._pool.connection_from_url(fake_engine.base_url)
        assert (pool.num_requests, pool.num_connections) == (3, 1)


@pytest.mark.parametrize("lie", [{"data": 3}, {"data": [{}]}, {}, "not json at all"])
def test_a_list_of_another_shape_is_nonsense(fake_engine: FakeEngine, lie: object) -> None:
    fake_engine.lies["/v1/models"] = lie
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineNonsense):
        client.list_models()


@pytest.mark.parametrize(
    "lie",
    [
        {"choices": [{"index": 0, "logprobs": None}, {"index": 1, "logprobs": None}]},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:1": -1.0}]}}]},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{}]}}] * 2},
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": [{"token_id:1": "x"}]}}] * 2},
        {"choices": []},
    ],
)
def test_logprobs_of_other_tokens_are_nonsense(fake_engine: FakeEngine, lie: object) -> None:
    fake_engine.lies["/v1/completions"] = lie
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineNonsense):
        client.probe_logprobs("tiny", [9, 1, 2], [(0, 1), (1, 2)])


@pytest.mark.parametrize(
    "lie",
    [
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": "x"}}], "usage": {"total_tokens": "many"}},
        "[" * 100_000,
    ],
)
def test_a_chat_of_another_shape_is_nonsense(fake_engine: FakeEngine, lie: object) -> None:
    fake_engine.lies["/v1/chat/completions"] = lie
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineNonsense):
        client.ask_chat({"model": "tiny"}, read_s=5)


def test_a_canary_that_says_nothing_is_nonsense(fake_engine: FakeEngine) -> None:
    choice = {"message": {"role": "assistant", "content": ""}}
    fake_engine.lies["/v1/chat/completions"] = {"choices": [choice], "usage": {"completion_tokens": 0}}
    with EngineClient(fake_engine.base_url) as client, pytest.raises(EngineNonsense, match="nothing"):
        client.ask_canary("tiny")
